"""Sentences of warning: each where it is due."""

import pytest

from predictors.devices import load_device
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.warnings import warnings_of
from tests.predictors.networks import efficientnet, resnet50, small_resnet


@pytest.fixture(scope="module")
def result():
    return plan(resnet50(), load_device("pixel6"), PlanConfig(processors=("cpu", "gpu")))


def test_design_outside_the_range_of_macs_is_told(result):
    assert any("of the original's multiply-accumulates, outside" in each for each in warnings_of(result, 0, 1))
    assert not any("outside" in each for each in warnings_of(result, 0, 10**12))


def test_operators_that_need_every_row_are_named_where_bands_are_asked_for(result):
    gated = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 64, se=True, act="silu")
    split = plan(gated, load_device("pixel6"), PlanConfig(processors=("cpu", "gpu"), kinds=("rows",)))
    [said] = [each for each in split.warnings if "not split by rows" in each]
    assert "`global_avg_pool` in s1, s2" in said
    assert "head" not in said
    assert not any("not split by rows" in each for each in result.warnings)


def test_nothing_is_far_ahead_where_others_help(result):
    assert not result.ahead.far
    assert result.predicted.far_ahead is None


def test_exact_plan_says_what_int8_would_add_and_that_it_rounds():
    device = load_device("mi9")
    graph = small_resnet(64, blocks=(2, 2), mids=(64, 128))
    found = plan(graph, device, PlanConfig(processors=("cpu", "gpu"), lossless=True))
    [said] = [each for each in found.warnings if "need no images" in each]
    other = plan(graph, device, PlanConfig(processors=("cpu", "gpu"), lossless=True, precision={"cpu": "int8"}))
    assert f"{other.run.makespan_ms:.2f} ms, {other.speedup:.2f} times as fast as the {other.best_single.processor} alone" in said
    assert "(cpu fp32, gpu fp16)" in said
    assert "int8 rounds" in said
    assert (found.exact, found.rounding) == (True, ["fp16"])
    assert (other.exact, other.rounding) == (True, ["int8", "fp16"])
    assert not [each for each in other.warnings if "need no images" in each]
