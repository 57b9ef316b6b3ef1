"""The experiment at a tiny size: a trained design in fp32 and rounded, as it is and after more epochs."""

import json

import pytest

torch = pytest.importorskip("torch")

from experiments.rounding import run  # noqa: E402
from tests.experiments.calibration.test_planned import tiny  # noqa: E402, F401 - a fixture

pytestmark = pytest.mark.torch


def test_tensors_that_are_kept_are_those_of_the_design_that_is_rounded():
    found = json.loads(run.TENSORS.read_text())
    assert found.keys() == {case.name for case in run.ROUNDED}
    assert all(name.endswith(".cpu") and tensors for own in found.values() for name, tensors in own.items())
