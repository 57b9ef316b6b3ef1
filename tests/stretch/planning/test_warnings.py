"""Statements of a plan: unused processors, warnings and numbers in sentences."""

import msgspec
import pytest

from predictors.devices import Spread, load_device
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.messages import format_probability
from stretch.planning.plan import PlanningProblem, choose, design_of, evaluate, plan, unused_processors
from tests.predictors.networks import efficientnet, resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

NETWORK = small_resnet(128)


@pytest.fixture(scope="module")
def result():
    return plan(NETWORK, load_device("pixel6"), PlanConfig(processors=("cpu", "gpu")))


@pytest.mark.slow
def test_design_outside_the_range_of_macs_gives_a_warning(result):
    for highest, outside in ((0.2, True), (10.0, False)):
        evaluated = evaluate(result.graph, result.device, result.design, PlanConfig(macs=(0.1, highest)))
        assert any("of the original's multiply-accumulates, outside" in warning for warning in evaluated.warnings) is outside


def test_operators_that_need_every_row_are_named_if_bands_are_requested(result):
    gated = efficientnet([(1, 3, 1, 16, 1), (4, 3, 2, 24, 2)], 16, 64, 64, se=True, act="silu")
    split = plan(gated, load_device("pixel6"), PlanConfig(processors=("cpu", "gpu"), kinds=("rows",)))
    [message] = [warning for warning in split.warnings if "not split by rows" in warning]
    assert "`global_avg_pool` in s1, s2" in message
    assert "head" not in message
    assert not any("not split by rows" in warning for warning in result.warnings)


def test_exact_plan_states_the_gain_of_int8_and_that_int8_rounds():
    device = load_device("mi9")
    graph = small_resnet(64, blocks=(2, 2), mids=(64, 128))
    exact = plan(graph, device, PlanConfig(processors=("cpu", "gpu"), lossless=True))
    [message] = [warning for warning in exact.warnings if warning.startswith("planned with")]
    with_int8 = plan(graph, device, PlanConfig(processors=("cpu", "gpu"), lossless=True, precision={"cpu": "int8"}))
    assert f"{with_int8.run.makespan_ms:.2f} ms, {with_int8.speedup:.2f}x against the {with_int8.best_single.processor} alone" in message
    assert "cpu fp32, gpu fp16;" in message
    assert "int8 rounds" in message
    assert (exact.exact, exact.rounding) == (True, ["fp16"])
    assert (with_int8.exact, with_int8.rounding) == (True, ["int8", "fp16"])
    assert not [warning for warning in with_int8.warnings if warning.startswith("planned with")]


@pytest.mark.slow
def test_stages_kept_apart_for_accuracy_state_the_gain_of_merging_them():
    graph, request = resnet50(), {"processors": ("cpu", "gpu")}
    apart, merged = (plan(graph, load_device("mi9"), PlanConfig(merge=merge, **request)) for merge in ("auto", "always"))
    [message] = [warning for warning in apart.warnings if "keep less accuracy" in warning]
    assert f"{merged.run.makespan_ms:.2f} ms instead of {apart.run.makespan_ms:.2f} ms" in message
    assert f"with {merged.design.n_meet} instead of {apart.design.n_meet} meeting points" in message
    assert not [warning for warning in merged.warnings if "keep less accuracy" in warning]


MI9 = specified("mi9")
GRAPH = small_resnet()


def planned(device=MI9, **changes):
    """The problem, the chosen design and the unused processors with their reasons."""
    problem = PlanningProblem.of(GRAPH, device, PlanConfig(**({"processors": ("cpu", "gpu", "dsp")} | LOOSE | changes)))
    choice = choose(problem)
    used = {name for options, _ in choice.result.picks for name in options.processors}
    return problem, choice, unused_processors(choice, sorted(used), choice.makespan_ms)


def test_unused_processor_is_also_reported_with_merged_stages():
    problem, choice, unused = planned(slow_start(30), merge="always")
    assert choice.space.longest_span > 1
    assert any(options.span > 1 for options, _ in choice.result.picks)
    for item in unused:
        # transfers included
        assert item.ms > item.best_ms == timeline(GRAPH, design_of(problem, choice.result), problem.costs).makespan_ms
        assert f"the fastest design that uses it is predicted to take {item.ms:.2f} ms" in item.reason
    assert "dsp" in [item.processor for item in unused]


def slower(quantity, factor):
    return msgspec.structs.replace(quantity, value=quantity.value * factor)


def slow_link(factor):
    """The device with transfers of the dsp slower by `factor`."""
    link = MI9.links["dsp"]
    changes = {name: slower(getattr(link, name), factor) for name in ("map_ms", "unmap_ms", "sync_ms")}
    return msgspec.structs.replace(MI9, links=MI9.links | {"dsp": msgspec.structs.replace(link, **changes)})


def slow_start(factor):
    """The device with launches of the dsp slower by `factor`."""
    dsp = MI9.processors["dsp"]
    slow = msgspec.structs.replace(dsp, launch_us=slower(dsp.launch_us, factor))
    return msgspec.structs.replace(MI9, processors=MI9.processors | {"dsp": slow})


@pytest.mark.parametrize(
    ("device", "flag", "measure"),
    [
        (slow_link(1000), "alpha", lambda g, base: g.exchange_ms.min() / base),
        (slow_start(1000), "beta", lambda g, base: g.slowest_ms.min() / base),
    ],
)
def test_rule_that_excludes_a_processor_is_named_with_the_nearest_value(device, flag, measure):
    _, choice, unused = planned(device)
    first = next(item for item in unused if item.processor == "dsp")
    groups = [o for options in choice.space.options for o in options if "dsp" in o.processors and len(o.candidates) > 1]
    nearest = min(measure(group, choice.space.alone_ms(group)) for group in groups)
    assert f"no branch on it meets `{flag}`: " in first.rule
    assert f" {nearest:.2g} " in first.rule
    assert "the maximum is 10" in first.rule


@pytest.mark.parametrize(("probability", "text"), [(1.0, "over 99 %"), (0.996, "over 99 %"), (0.64, "64 %"), (0.0, "under 1 %")])
def test_probability_is_never_rounded_to_certainty(probability, text):
    assert format_probability(probability) == text


@pytest.mark.slow
def test_plan_states_its_times_at_the_interval_ends_of_its_links():
    wide_link = msgspec.structs.replace(MI9.links["gpu"], spread=Spread((0.5, 4.0), "link_gpu"))
    devices = MI9, msgspec.structs.replace(MI9, links=MI9.links | {"gpu": wide_link})
    default, widened = (plan(resnet50(), device, PlanConfig(processors=("cpu", "gpu"))) for device in devices)
    assert [row.factor for row in default.predicted.links] == [0.5, 1.0, 2.0]
    assert [row.factor for row in widened.predicted.links] == [0.5, 1.0, 4.0]
    slow = widened.predicted.links[2].makespan_ms
    transfers = sum(sum(branch.links.values()) for row in widened.run.segments for branch in row.branches) + widened.run.output_ms
    assert default.predicted.links[2].makespan_ms < slow == widened.at_links(4.0).makespan_ms <= widened.run.makespan_ms + 3 * transfers
    assert widened.predicted.makespan_high_ms > default.predicted.makespan_high_ms


def test_lossless_plan_counts_halo_macs_and_is_compared_with_the_original():
    lossless = plan(NETWORK, MI9, PlanConfig(processors=("cpu", "gpu"), lossless=True))
    halo = lossless.run.halo_macs / lossless.graph.macs
    assert halo > 0
    assert lossless.macs_ratio == pytest.approx(1 + halo)
    # halos do not make the network larger
    assert not any("outside" in warning for warning in lossless.warnings)
    assert lossless.recommended in ("branched", "no clear winner", f"single:{lossless.best_single.processor}")
    assert "sequential_same_macs" in lossless.predicted.probability_faster
    assert lossless.predicted.reference == ["sequential_same_macs"]
    assert "sequential_same_macs" not in {control.name for control in lossless.recommendation.beatable}
