"""Sentences of warning: each where it is due."""

import pytest

from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.graph import Op, OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan, warnings_of
from tests.predictors.networks import efficientnet, resnet50, small_resnet


@pytest.fixture(scope="module")
def result():
    return plan(resnet50(), load_device("pixel6"), PlanConfig(processors=("cpu", "gpu")))


@pytest.mark.slow
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


@pytest.mark.slow
def test_operators_without_a_family_are_counted_and_named(result):
    stated = {"kernel": "elementwise", "in_channels": 1, "out_channels": 1, "groups": 1, "taps": 1, "pixels": 1, "weights": 0}
    graph = small_resnet()
    last = graph.by_name[graph.output]
    more, before = [], last.name
    for i, variant in enumerate(("softmax", "roll", "softmax", *map(str, range(8)))):
        more.append(Op(f"more{i}", "opaque", (before,), {**stated, "variant": variant, "shape": last.shape}))
        before = more[-1].name
    mixed = OpGraph.build("mixed", [*graph.ops, *more], before)
    [said] = [
        each for each in plan(mixed, result.device, PlanConfig(processors=("cpu", "gpu"), lossless=True)).warnings if "torch's own" in each
    ]
    assert said.startswith(f"11 of the {len(graph.ops) + 11} operators")
    assert "2 `softmax`, 1 `roll`" in said
    assert "and 4 other kinds" in said
    assert not any("torch's own" in each for each in warnings_of(result, 0, 10**12))


def test_operators_that_need_every_row_are_named_where_bands_are_asked_for(result):
    gated = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 64, se=True, act="silu")
    split = plan(gated, load_device("pixel6"), PlanConfig(processors=("cpu", "gpu"), kinds=("rows",)))
    [said] = [each for each in split.warnings if "not split by rows" in each]
    assert "`global_avg_pool` in s1, s2" in said
    assert "head" not in said
    assert not any("not split by rows" in each for each in result.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "precision"), [("s24", {}), ("x-elite", {"cpu": "int8", "npu": "int8"})], ids=["s24", "x-elite"])
def test_processor_that_is_far_ahead_is_to_be_used_alone_and_the_crossover_is_told(device, precision):
    found = plan(resnet50(), load_device(device), PlanConfig(precision=precision))
    [said] = [each for each in found.warnings if "alone, it is far ahead" in each]
    assert found.recommended == "single:npu"
    assert f"{found.ahead.crossover:.3g} times as fast" in said
    assert found.predicted.far_ahead == "npu"
    assert f"it takes {found.predicted.best_single_ms:.2f} ms for" in said
    assert found.predicted.crossover_divided == found.ahead.crossover > 1
    assert not any("the tightest" in each for each in found.warnings)


@pytest.mark.slow
def test_rule_that_leaves_no_design_is_named_where_it_was_asked_for_though_one_processor_is_far_ahead():
    with pytest.raises(InfeasibleError) as caught:
        plan(resnet50(), load_device("s24"), PlanConfig(alpha=0.01))
    assert caught.value.rules


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
