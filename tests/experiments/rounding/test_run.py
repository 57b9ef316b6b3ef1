"""The experiment at a tiny size: a trained design in fp32 and rounded, as it is and after more epochs."""

import json

import pytest

torch = pytest.importorskip("torch")

from experiments.calibration import planned  # noqa: E402 - torch may be missing
from experiments.rounding import run  # noqa: E402
from tests.experiments.calibration.test_planned import tiny  # noqa: E402, F401 - a fixture

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_every_state_is_measured_in_fp32_and_rounded(tiny, tmp_path, monkeypatch):  # noqa: F811 - the fixture
    monkeypatch.setattr(run, "TENSORS", tmp_path / "tensors.json")
    monkeypatch.setattr(run, "CASES", planned.CASES)
    monkeypatch.setattr(run, "EPOCHS", 1)
    monkeypatch.setattr(run, "RANGES", 16)
    run.write_tensors()
    work = run.Rounding(0, tiny, tmp_path / "out", planned.Epochs(1, 1, 1))
    run.job(work, until=60.0)
    rows = json.loads((tmp_path / "out" / "planned-0.json").read_text())["rows"]
    case = planned.CASES[0]
    assert work.done(case)
    assert work.rounded_done(case)
    states = [row["state"] for row in rows if row["state"] not in ("original", *planned.STATES)]
    assert states == [f"{state}, {form}" for state in run.STATES for form in ("fp32", "rounded")]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)


def test_tensors_that_are_kept_are_those_of_the_design_that_is_rounded():
    found = json.loads(run.TENSORS.read_text())
    assert found.keys() == {case.name for case in run.ROUNDED}
    assert all(name.endswith(".cpu") and tensors for own in found.values() for name, tensors in own.items())
