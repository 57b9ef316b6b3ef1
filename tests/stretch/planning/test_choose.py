"""When stages are merged, and what is said about it."""

from functools import cache
from itertools import combinations
from math import ceil, floor, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from predictors.errors import InfeasibleError, UnknownNameError, UsageError
from stretch.planning.choose import choose
from stretch.planning.config import PlanConfig
from stretch.planning.network.segments import split_segments
from stretch.planning.plan import Asked, evaluate, plan
from stretch.planning.search.exact import search_exact
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.sieve import search_sieved
from tests.effort import examples
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE, make_space

PIXEL6 = specified("pixel6")
#: Both stages of this network take too little time for an exchange each, together they take enough.
GRAPH = small_resnet()
SHORT = {"alpha": 0.4}


@cache
def planned(**changes):
    return plan(GRAPH, PIXEL6, PlanConfig(**(SHORT | changes)))


def stages_of(result):
    return {row["name"]: row["stages"] for row in result.to_json()["segments"]}


def test_stages_merge_by_themselves_where_none_can_branch_alone():
    result = planned()
    assert stages_of(result) == {"stem": ["stem"], "s1_to_s2": ["s1", "s2"], "head": ["head"]}
    assert result.design.n_meet == 1
    assert result.optimal
    assert 0.97 <= result.macs_ratio <= 1.03
    warning = next(w for w in result.warnings if "merged" in w)
    assert "s1 to s2" in warning
    assert "accuracy" in warning


def test_merged_stages_keep_the_constraints():
    result = planned()
    row = result.run.segments[1]
    alone = min(result.best_single.ms, *(plan_ms(row.segment, p) for p in ("cpu", "gpu")))
    assert max(b.in_ms + b.out_ms for b in row.branches) + row.join_ms <= 0.4 * alone
    assert sum(b.macs for b in row.branches) >= 0.9 * row.segment.graph.macs
    assert all(b.scale.depth >= 0.5 * row.segment.depth and b.scale.width >= 0.5 * row.segment.width for b in row.branches)


def plan_ms(segment, processor):
    space = make_space(GRAPH, "pixel6")
    return space.costs.whole(segment, processor).ms


@pytest.mark.slow
def test_stages_that_can_branch_alone_are_left_alone():
    result = plan(resnet50(), PIXEL6)
    assert all(len(stages) == 1 for stages in stages_of(result).values())
    assert not any("merged" in w for w in result.warnings)


def test_merging_is_refused_where_it_is_forbidden_and_the_hint_helps():
    with pytest.raises(InfeasibleError) as caught:
        planned(merge="never")
    assert caught.value.hint == 'let stages merge with `merge="auto"`'


@pytest.mark.slow
def test_meeting_points_that_were_asked_for_are_not_merged():
    ends = tuple(s.end for s in split_segments(GRAPH) if s.branchable)
    with pytest.raises(InfeasibleError, match="alpha"):
        planned(meet=ends)


@pytest.mark.slow
def test_merging_allowed_everywhere_is_at_least_as_fast():
    graph = resnet50()
    never, always = (plan(graph, PIXEL6, PlanConfig(merge=merge)) for merge in ("never", "always"))
    assert always.run.makespan_ms <= never.run.makespan_ms
    assert any(len(stages) > 1 for stages in stages_of(always).values())


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 0.5])
def test_as_many_meeting_points_as_possible_are_kept(alpha):
    graph = small_resnet(blocks=(3, 3, 3, 3), mids=(32, 32, 64, 64))
    result = plan(graph, PIXEL6, PlanConfig(alpha=alpha))
    defaults = PlanConfig()
    merged = merge_stages(graph, make_space(graph, "pixel6", alpha=alpha, beta=defaults.beta, balance=defaults.balance))
    low, high = ceil(0.97 * graph.macs), floor(1.03 * graph.macs)
    assert search_exact(merged, low, high, result.design.n_meet + 1) is None
    assert search_sieved(merged, low, high, result.design.n_meet).ms == pytest.approx(result.run.makespan_ms)


@pytest.mark.slow
def test_stages_merge_to_reach_the_number_of_meeting_points_asked_for():
    graph = small_resnet(32, blocks=(2, 2, 2), mids=(8, 16, 32))
    request = LOOSE | {"processors": ("cpu", "dsp"), "alpha": 7.1, "min_width": 0.25, "n_meet": 2}
    with pytest.raises(InfeasibleError):
        plan(graph, specified("mi9"), PlanConfig(**request, merge="never"))
    result = plan(graph, specified("mi9"), PlanConfig(**request))
    assert result.design.n_meet == 2
    assert any(len(stages) > 1 for stages in stages_of(result).values())


@pytest.mark.representatives(1)
@pytest.mark.parametrize("request_", [{"strategy": "grid"}, {"join": "concat"}])
def test_other_searches_meet_where_the_exact_one_would(request_):
    loose = {"alpha": 0.65, "macs": (0.9, 1.2)}
    result = planned(**request_, **loose)
    assert stages_of(result) == stages_of(planned(**loose)) == {"stem": ["stem"], "s1_to_s2": ["s1", "s2"], "head": ["head"]}
    assert result.design.n_meet == 1


@pytest.mark.slow
def test_number_of_meeting_points_that_merging_takes_away_is_named():
    with pytest.raises(InfeasibleError) as caught:
        planned(n_meet=2)
    assert "n_meet=2" in caught.value.message
    assert caught.value.hint == "the nearest value with a design is `n_meet=1`, or split the network as it is with `lossless`"


@pytest.mark.slow
def test_design_with_merged_stages_is_evaluated_like_a_planned_one():
    result = planned()
    again = evaluate(GRAPH, PIXEL6, result.design)
    assert again.run.makespan_ms == pytest.approx(result.run.makespan_ms)
    assert stages_of(again) == stages_of(result)
    assert any("merged" in w for w in again.warnings)


def test_concat_joins_are_not_planned_on_the_grid():
    with pytest.raises(UsageError, match="strategy"):
        plan(GRAPH, PIXEL6, PlanConfig(join="concat", strategy="grid"))


@pytest.mark.slow
def test_stages_that_are_kept_are_not_stretched_alone_nor_with_others():
    free, kept = (planned(kinds=("stretch", "rows"), merge="always", alpha=5.0, beta=5.0, keep=keep) for keep in ((), ("s1",)))
    assert any(row.kind == "stretch" for row in free.answer().segments if "s1" in row.name)
    assert all(row.kind in ("whole", "rows") for row in kept.answer().segments if "s1" in row.name)
    assert kept.run.makespan_ms >= free.run.makespan_ms


def test_stages_are_not_merged_with_one_that_is_kept():
    assert "s1_to_s2" in stages_of(planned())
    with pytest.raises(InfeasibleError):
        planned(keep=("s1",))


def test_stage_to_keep_that_is_none_is_an_unknown_name():
    with pytest.raises(UnknownNameError, match="unknown stage to keep `s9`"):
        planned(keep=("s9",))


OBJECTIVES = ("latency", "energy", "0.5*latency+0.5*energy", "throughput", "robust")


def best_in(objective, **changes):
    return plan(small_resnet(96), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), objective=objective, **(LOOSE | changes)))


@pytest.mark.slow
def test_each_objective_has_the_best_value_of_its_own_among_designs_of_all():
    results = {objective: best_in(objective) for objective in OBJECTIVES}
    latency = {objective: each.run.makespan_ms for objective, each in results.items()}
    energy = {objective: each.energy_mj for objective, each in results.items()}
    assert min(latency, key=latency.get) == "latency"
    assert min(energy.values()) == pytest.approx(energy["energy"])
    for objective, result in results.items():
        answer = result.answer().objective
        assert (answer.asked, answer.strategy) == (objective, "evolve" if objective in ("throughput", "robust") else "exact")
        assert result.optimal is (objective not in ("throughput", "robust"))
        assert any("does not add up" in warning for warning in result.warnings) is (objective in ("throughput", "robust"))
    assert results["energy"].objective.value == pytest.approx(energy["energy"])
    mixed = results["0.5*latency+0.5*energy"]
    assert mixed.objective.value == pytest.approx(0.5 * mixed.run.makespan_ms + 0.5 * mixed.energy_mj)
    assert results["throughput"].objective.value >= 1000 / results["latency"].run.makespan_ms


def test_least_energy_within_a_bound_on_latency_takes_more_than_without():
    free, fastest = best_in("energy"), best_in("latency")
    budget = (free.run.makespan_ms + fastest.run.makespan_ms) / 2
    kept = best_in("energy", latency_budget=budget)
    assert kept.run.makespan_ms <= budget
    assert free.energy_mj <= kept.energy_mj <= fastest.energy_mj + 1e-9
    with pytest.raises(InfeasibleError, match="takes"):
        best_in("energy", latency_budget=0.5 * fastest.run.makespan_ms)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_strategy_evolve_is_never_better_than_exact_and_claims_nothing(objective):
    tried, best = best_in(objective, strategy="evolve"), best_in(objective)
    assert tried.objective.value >= best.objective.value - 1e-9
    assert tried.optimal is False
    assert tried.gap is None


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from(["mi9", "mi9 fitted"]),
    st.sampled_from([(1, 1), (2, 2), (3, 3, 3)]),
    st.floats(0.1, 3.0),
    st.sampled_from([("stretch",), ("stretch", "rows")]),
    st.sampled_from(["latency", "energy"]),
)
def test_one_processor_more_never_makes_the_best_design_worse(device, blocks, alpha, kinds, objective):
    profile = load_device("mi9") if device == "mi9 fitted" else specified(device)
    graph = small_resnet(32, blocks=blocks, mids=(16, 32, 64)[: len(blocks)])

    def best(processors):
        asked = Asked.of(graph, profile, PlanConfig(processors=processors, alpha=alpha, kinds=kinds, objective=objective))
        try:
            found = choose(asked.trunk, asked.config, asked.costs, asked.stages, explain=False).found
        except InfeasibleError:
            return inf
        return found.ms if found.value is None else found.value

    every = best(("cpu", "gpu", "dsp"))
    for some in combinations(("cpu", "gpu", "dsp"), 2):
        assert every <= best(some) * (1 + 1e-9)
