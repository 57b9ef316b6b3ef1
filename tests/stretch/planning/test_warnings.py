"""Sentences of warning: each where it is due."""

import pytest

from predictors.devices import load_device
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.warnings import warnings_of
from tests.predictors.networks import resnet50


@pytest.fixture(scope="module")
def result():
    return plan(resnet50(), load_device("pixel6"), PlanConfig(processors=("cpu", "gpu")))


def test_processors_without_measurements_are_named(result):
    [said] = [each for each in warnings_of(result, 0, 10**12) if "were not fitted to measurements" in each]
    assert "gpu in fp16 (from fits of its relatives)" in said
    assert "pixel6" in said


def test_design_outside_the_range_of_macs_is_told(result):
    assert any("of the original's multiply-accumulates, outside" in each for each in warnings_of(result, 0, 1))
    assert not any("outside" in each for each in warnings_of(result, 0, 10**12))


def test_what_is_not_recommended_is_told_with_what_to_measure(result):
    said = [each for each in warnings_of(result, 0, 10**12) if "measure that next" in each]
    assert bool(said) == (result.recommended != "branched")
