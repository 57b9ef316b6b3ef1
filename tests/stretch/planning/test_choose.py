"""When stages are merged, and what is said about it."""

from functools import cache

import pytest

from predictors.errors import InfeasibleError, UnknownNameError, UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
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


def test_merging_is_refused_where_it_is_forbidden_and_the_hint_helps():
    with pytest.raises(InfeasibleError) as caught:
        planned(merge="never")
    assert caught.value.hint == 'let stages merge with `merge="auto"`'


@pytest.mark.representatives(1)
@pytest.mark.parametrize("request_", [{"strategy": "grid"}, {"join": "concat"}])
def test_other_searches_meet_where_the_exact_one_would(request_):
    loose = {"alpha": 0.65, "macs": (0.9, 1.2)}
    result = planned(**request_, **loose)
    assert stages_of(result) == stages_of(planned(**loose)) == {"stem": ["stem"], "s1_to_s2": ["s1", "s2"], "head": ["head"]}
    assert result.design.n_meet == 1


def test_number_of_meeting_points_that_merging_takes_away_is_named():
    with pytest.raises(InfeasibleError) as caught:
        planned(n_meet=2)
    assert "n_meet=2" in caught.value.message
    assert caught.value.hint == "the nearest value with a design is `n_meet=1`, or split the network as it is with `lossless`"


def test_concat_joins_are_not_planned_on_the_grid():
    with pytest.raises(UsageError, match="strategy"):
        plan(GRAPH, PIXEL6, PlanConfig(join="concat", strategy="grid"))


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
    latency = {objective: result.run.makespan_ms for objective, result in results.items()}
    energy = {objective: result.energy_mj for objective, result in results.items()}
    assert min(latency, key=latency.get) == "latency"
    assert min(energy.values()) == pytest.approx(energy["energy"])
    for objective, result in results.items():
        answer = result.answer().objective
        assert (answer.requested, answer.strategy) == (objective, "evolve" if objective in ("throughput", "robust") else "exact")
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
