"""Objectives of the search: latency, energy, accuracy and bounds on them."""

import re
from functools import cache
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.energy import EnergyModel
from predictors.errors import InfeasibleError, TightRule, UsageError
from stretch.evaluation.sensitivity.source import NEAR, random_designs, trials
from stretch.planning.config import PlanConfig, read_objective
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.scale import scaled_graph
from stretch.planning.pareto import non_dominated
from stretch.planning.plan import plan
from stretch.planning.search.exact import LATENCY, ProcessorPowers, SearchResult, measure_of, restrict_processors, search_exact
from stretch.planning.search.goal import Bounds, loss_of, search_best, tightest_rules_error
from stretch.planning.search.parts import merge_stages, with_exact_kinds, without_stretched
from stretch.planning.search.space import Totals
from tests.effort import examples
from tests.predictors.networks import Net, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.cost.measured import GRAPH as MEASURED
from tests.stretch.planning.cost.measured import made, merged_space
from tests.stretch.planning.cost.test_accuracy import predictor
from tests.stretch.planning.search.test_exact_kinds import small_network
from tests.stretch.planning.search.test_placing import cells
from tests.stretch.planning.spaces import as_design, every_design, make_space, waiting
from tests.stretch.planning.test_pareto import small_criteria, weigh

TINY = small_resnet(96, blocks=(1, 1), mids=(64, 64))
#: A stage of two blocks, which become separate parts if segments are divided.
BLOCKS = small_resnet(64, blocks=(2, 1), mids=(64, 64))
GRAPHS = {"resnet": TINY, "blocks": BLOCKS, "paths": small_network(), "cells": cells(2)}
DEVICE = waiting()
OBJECTIVES = ("latency", "energy", "0.7*latency+0.3*energy", "0*latency+2*energy")


@cache
def spaced(name, kinds, processors, merged=False):
    graph = GRAPHS[name]
    space = make_space(graph, DEVICE, processors, min_width=0.9, min_depth=1.0)
    if merged:
        space = merge_stages(graph, space)
    exact = [kind for kind in kinds if kind != "stretch"]
    if not exact:
        return space
    return with_exact_kinds(graph, PlanConfig(kinds=tuple(kinds)), space if "stretch" in kinds else without_stretched(space))


def energy_of(space, busy, ms):
    return EnergyModel(space.costs.predictor.device).plan_mj({name: item for name, item in busy.items() if item}, ms)


def goal_of(text, space):
    return measure_of(read_objective(text), space.costs.predictor.device, space.processors)


def value(text, space, ms, busy):
    weights = read_objective(text)
    return weights.get("latency", 0.0) * ms + (weights["energy"] * energy_of(space, busy, ms) if weights.get("energy") else 0.0)


@pytest.mark.representatives(8)
@pytest.mark.parametrize("text", OBJECTIVES)
@pytest.mark.parametrize(
    ("name", "kinds", "processors", "merged"),
    [
        ("resnet", ("stretch",), ("cpu", "gpu"), False),
        ("resnet", ("stretch",), ("cpu", "gpu", "dsp"), False),
        ("resnet", ("stretch",), ("cpu", "gpu"), True),
        ("resnet", ("stretch", "rows"), ("cpu", "dsp"), False),
        ("blocks", ("stretch", "channels"), ("cpu", "gpu"), False),
        ("paths", ("stretch", "channels"), ("gpu", "dsp"), False),
        ("paths", ("channels", "graph"), ("cpu", "gpu"), False),
        ("cells", ("graph",), ("cpu", "gpu", "dsp"), False),
    ],
)
def test_best_design_equals_brute_force(text, name, kinds, processors, merged):
    space = spaced(name, kinds, processors, merged)
    assert space.size_log10 <= 5
    low, high = round(0.9 * GRAPHS[name].macs), round(1.9 * GRAPHS[name].macs)
    every = list(every_design(space, low, high, 1))
    assert every
    search_result = search_best(space, Totals(low, high, 1), goal_of(text, space))
    assert search_result.optimal
    assert search_result.value == pytest.approx(min(value(text, space, ms, busy) for _, ms, busy in every))


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_energy_of_a_design_equals_the_energy_of_its_timeline(data):
    name, kinds = data.draw(st.sampled_from([*KINDS, ("paths", ("rows",))]))
    processors = data.draw(st.sampled_from([("cpu", "gpu"), ("cpu", "gpu", "dsp")]))
    graph, space = GRAPHS[name], spaced(name, kinds, processors)
    picks, at, holder = [], 0, space.costs.host
    while at < len(space.segments):
        row = space.holders.index(holder)
        feasible = [(o, i) for o in space.options[at] for i in range(len(o.macs)) if o.ms[row, i] < float("inf")]
        picks.append(data.draw(st.sampled_from(feasible)))
        at += picks[-1][0].span
        holder = picks[-1][0].holder(space.costs.host)
    search_result = SearchResult(tuple(picks), LATENCY.value(space, picks), 0, False, 0.0, 0, 0.0)
    run = timeline(graph, as_design(graph, search_result.segments(space.costs)), space.costs)
    busy = {}
    for segment in run.segments:
        for branch in segment.branches:
            busy[branch.scale.processor] = busy.get(branch.scale.processor, 0.0) + branch.ms + branch.contention_ms
    mj = EnergyModel(space.costs.predictor.device).plan_mj(busy, run.makespan_ms)
    goal = goal_of("energy", space)
    assert goal.value(space, picks) == pytest.approx(mj)


def test_unused_processor_takes_no_power_even_if_waiting_takes_power():
    space = spaced("resnet", ("stretch",), ("cpu", "gpu", "dsp"))
    assert (len(goal_of("energy", space).power.groups), goal_of("latency", space)) == (7, LATENCY)
    without = make_space(TINY, processors=("cpu", "gpu", "dsp"))
    assert goal_of("energy", without).power.groups == [without.processors]


def test_objective_that_is_not_additive_is_searched_from_latency():
    assert measure_of(read_objective("accuracy"), SimpleNamespace(), ("cpu", "gpu")) == LATENCY


GRAPH = small_resnet()


def accuracy_of(result, current):
    return current.value(loss_of(result, current))


MACS = (round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs))


def bounds(**request):
    space = make_space(GRAPH)
    return Bounds(GRAPH, space, PlanConfig(**request), Totals(*MACS, 1)), search_exact(space, Totals(*MACS, 1))


def test_accuracy_floor_that_the_fastest_design_meets_changes_nothing_and_more_budget_never_lowers_accuracy():
    current, (built, fastest) = predictor(), bounds(min_accuracy=0.01)
    assert built.satisfy_accuracy(fastest, current) is fastest
    accuracies = []
    for slack in (1.0, 1.05, 1.3, 2.0):
        built, fastest = bounds(objective="accuracy", accuracy="x", latency_budget=fastest.ms * slack)
        accuracies.append(accuracy_of(built.most_accurate(fastest, current), current))
    assert accuracies == sorted(accuracies)


def test_unreachable_agreement_is_refused_with_the_highest_agreement_and_a_hint_to_exact_kinds():
    current = made()
    space = merged_space()
    low, high = round(0.9 * space.segments[0].graph.macs), round(1.1 * sum(s.graph.macs for s in space.segments))
    fastest = search_exact(space, Totals(low, high, 1))
    bounds = Bounds(MEASURED, space, PlanConfig(min_agreement=0.9999), Totals(low, high, 1))
    with pytest.raises(InfeasibleError, match="to see the original's class in 100") as caught:
        bounds.satisfy_accuracy(fastest, current)
    nearest = caught.value.rules[0].nearest
    assert nearest == pytest.approx(accuracy_of(bounds.least_loss(current), current), abs=1e-4)
    assert nearest > accuracy_of(fastest, current) + 1e-3
    assert (caught.value.rules[0].rule, "kinds" in caught.value.hint) == ("min_agreement", True)
    accurate_enough = Bounds(MEASURED, space, PlanConfig(min_agreement=nearest), Totals(low, high, 1)).satisfy_accuracy(fastest, current)
    assert current.value(loss_of(accurate_enough, current)) >= nearest


def test_space_restricted_to_processors_gives_work_to_no_other():
    space = make_space(TINY, processors=("cpu", "gpu", "dsp"))
    part = restrict_processors(space, ("gpu", "dsp"))
    assert restrict_processors(space, space.processors) is space
    assert {name for options in part.options for option in options for name in option.processors} == {"gpu", "dsp"}


def test_profile_without_the_power_of_a_processor_is_refused_by_its_name():
    device, change = specified("mi9"), msgspec.structs.replace
    gpu = device.processors["gpu"]
    cores = {name: change(core_set, power_w=None) for name, core_set in gpu.core_sets.items()}
    without_power = change(device, processors={**device.processors, "gpu": change(gpu, core_sets=cores)})
    with pytest.raises(UsageError, match="states no power of the gpu"):
        ProcessorPowers(without_power, ("cpu", "gpu"))
    assert ProcessorPowers(without_power, ("cpu", "dsp")).groups == [("cpu", "dsp")]


NAMES = ("latency", "energy", "macs", "loss")


@pytest.mark.parametrize("name", NAMES)
def test_minimum_of_one_criterion_equals_brute_force(name):
    criteria, every = small_criteria()
    assert criteria.value(name, criteria.minimize(name, {})[0]) == pytest.approx(min(criteria.value(name, item) for item in every))


@pytest.mark.parametrize("bounded", [("macs",), ("macs", "energy"), ("macs", "loss")])
def test_several_bounds_are_kept_at_once(bounded):
    criteria, every = small_criteria()
    ends = {name: sorted(criteria.value(name, item) for item in every) for name in bounded}
    bounds = {name: values[len(values) // 2] for name, values in ends.items()}
    feasible = [item for item in every if all(criteria.value(name, item) <= most for name, most in bounds.items())]
    least, _ = criteria.minimize("latency", bounds)
    assert all(criteria.value(name, least) <= most + 1e-6 for name, most in bounds.items())
    assert least.ms == pytest.approx(min(item.ms for item in feasible))
    assert criteria.minimize("latency", {name: values[0] * 0.5 - 1 for name, values in ends.items()})[0] is None


def test_dominated_and_duplicate_designs_are_left_out():
    criteria, every = small_criteria()
    designs = [*every[:200], every[0]]
    values = [weigh(criteria, ("latency", "macs"), item) for item in designs]
    kept = non_dominated(designs, values)
    for number in range(len(designs)):
        dominated = any(all(b <= a + 1e-9 for a, b in zip(values[number], values[k], strict=True)) for k in kept)
        assert dominated
    assert len({values[k] for k in kept}) == len(kept)


KINDS = [
    ("resnet", ("stretch", "rows")),
    ("blocks", ("stretch", "rows")),
    ("paths", ("stretch", "channels", "graph")),
    ("cells", ("graph",)),
]


@cache
def searched(name, kinds):
    graph, space = GRAPHS[name], spaced(name, kinds, ("cpu", "gpu", "dsp"))
    search_result = search_exact(space, Totals(round(0.9 * graph.macs), round(1.2 * graph.macs), 1))
    return space, search_result, timeline(graph, as_design(graph, search_result.segments(space.costs)), space.costs)


@pytest.mark.parametrize(("name", "kinds"), KINDS)
def test_time_macs_and_parameters_equal_the_timeline(name, kinds):
    space, result, run = searched(name, kinds)
    for at, options in enumerate(space.options):
        assert all((option.tail or option.segment).end == space.segments[at + option.span - 1].end for option in options)
    assert (run.macs - run.repeated_macs, run.params) == (result.macs, result.params)
    assert (result.ms, LATENCY.value(space, result.picks)) == (pytest.approx(run.makespan_ms), pytest.approx(run.makespan_ms))


SPACE = merged_space()


def test_trials_keep_the_rules_and_compute_about_as_much_as_their_segment():
    for trial in trials(SPACE, 3):
        assert trial.options.allowed[:, trial.index].any()
        assert NEAR[0] <= trial.options.macs[trial.index] / trial.options.segment.graph.macs <= NEAR[1]
        assert trial.options.segment.start == SPACE.segments[trial.first].start
        assert trial.stages(SPACE)[0] == SPACE.segments[trial.first].name
        assert len(trial.stages(SPACE)) == trial.options.span


def test_random_designs_are_branched_distinct_reproducible_and_in_range():
    designs = random_designs(SPACE, MEASURED.name, "mi9", 12, (0.9, 1.1), 3)
    assert designs == random_designs(SPACE, MEASURED.name, "mi9", 12, (0.9, 1.1), 3)
    assert len(set(designs)) == len(designs) == 12
    for design in designs:
        assert design.n_meet >= 1
        assert 0.9 <= scaled_graph(MEASURED, design).macs / MEASURED.macs <= 1.1
    assert len({tuple(part.name for part in design.segments if not part.whole) for design in designs}) == 4
    assert random_designs(SPACE, MEASURED.name, "mi9", 2, (0.01, 0.02), 0) == []


PIXEL6 = specified("pixel6")


def refusal(graph, **request):
    with pytest.raises(InfeasibleError) as caught:
        plan(graph, PIXEL6, PlanConfig(**request))
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        pytest.param({"alpha": 0.02}, "alpha", marks=pytest.mark.slow),
        ({"beta": 0.3}, "beta"),
        pytest.param({"macs": (1.6, 1.7)}, "macs", marks=pytest.mark.slow),
        pytest.param({"n_meet": 5}, "n_meet", marks=pytest.mark.slow),
        pytest.param({"latency_budget": 1.0}, "latency_budget", marks=pytest.mark.slow),
        pytest.param({"params": (0.5, 0.6)}, "params", marks=pytest.mark.slow),
        pytest.param({"peak_memory": 10_000}, "peak_memory", marks=pytest.mark.slow),
        pytest.param({"min_depth": 1.0, "min_width": 1.0}, "min_", marks=pytest.mark.slow),
    ],
)
def test_named_value_is_feasible_when_used(request_, rule):
    graph = small_resnet(96)
    error = refusal(graph, **request_)
    (tightest,) = error.rules
    assert tightest.rule.startswith(rule)
    assert tightest.value == request_[tightest.rule]
    assert re.search(rf"the nearest value with a design is `{tightest.rule}=\(?[\d.]+", error.hint)
    result = plan(graph, PIXEL6, PlanConfig(**(request_ | {tightest.rule: tightest.nearest})))
    assert result.design.n_meet >= 1


def test_network_without_stages_to_branch_is_refused():
    net = Net(1, 3, 8, 8)
    net.conv(8, 3)
    net.head(10)
    assert "no segment that can branch" in refusal(net.graph("toy"), kinds=("stretch",)).message


def test_tightest_rules_are_named_with_their_nearest_values():
    rules = TightRule("alpha", 0.2, 0.676), TightRule("macs", (3.0, 4.0), (1.503, 4.0))
    error = tightest_rules_error("net", list(rules))
    assert error.message.endswith("the tightest are `alpha=0.2` and `macs=3:4`")
    assert error.hint.endswith("`alpha=0.676` with `macs=1.503:4`")
    assert (error.rules, error.exit_code) == (rules, 4)
