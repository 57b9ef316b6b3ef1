"""The evolutionary search keeps the constraints, is the same for a seed, and loses nothing it began with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretch.planning.objective import read_objective
from stretch.planning.search.evolve import evolve, fastest_designs
from stretch.planning.search.exact import search_exact
from stretch.planning.search.goal import Goal
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.score import Added, score_of
from tests.effort import examples
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import every_design, make_space

GRAPH = small_resnet(blocks=(2, 2))
LOW, HIGH = round(0.9 * GRAPH.macs), round(1.2 * GRAPH.macs)
SPACE = make_space(GRAPH, processors=("cpu", "gpu", "dsp"))
MERGED = merge_stages(GRAPH, make_space(GRAPH))


def of(objective, space):
    return score_of(read_objective(objective), Goal(), space)


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["latency", "throughput", "robust"]), st.sampled_from([SPACE, MERGED]), st.integers(0, 2))
def test_design_keeps_every_constraint_and_is_the_same_for_a_seed(seed, objective, space, n_meet):
    found, again = (evolve(space, LOW, HIGH, n_meet, of(objective, space), (), seed=seed, evaluations=60) for _ in range(2))
    assert found.picks == again.picks
    assert LOW <= found.macs <= HIGH
    assert found.n_meet >= n_meet
    assert found.evaluated <= 60
    assert not found.optimal
    assert sum(ways.span for ways, _ in found.picks) == len(space.segments)
    holder = space.costs.host
    for ways, index in found.picks:
        assert ways.allowed[space.holders.index(holder), index]
        holder = ways.holder(space.costs.host)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("objective", ["latency", "throughput", "robust"])
def test_design_is_no_worse_than_those_it_began_with(objective):
    score = of(objective, SPACE)
    starts = fastest_designs(SPACE, LOW, HIGH, 1)
    assert len(starts) >= 3
    found = evolve(SPACE, LOW, HIGH, 1, score, starts, evaluations=100)
    assert found.value <= min(score(each.picks) for each in starts)
    assert found.value == pytest.approx(score(found.picks))


@pytest.mark.slow
def test_throughput_comes_near_the_best_of_a_small_space():
    space = make_space(GRAPH, min_width=0.85)
    score = of("throughput", space)
    best = min(score(picks) for picks, _, _ in every_design(space, LOW, HIGH, 0))
    found = evolve(space, LOW, HIGH, 0, score, fastest_designs(space, LOW, HIGH, 0), evaluations=1000)
    assert best <= found.value + 1e-9
    assert found.value <= 1.02 * best


@pytest.mark.slow
def test_design_that_breaks_a_bound_on_whole_designs_is_not_kept():
    fastest = search_exact(SPACE, LOW, HIGH, 1)
    found = evolve(
        SPACE, LOW, HIGH, 1, of("throughput", SPACE), [fastest], keeps=lambda each: each.ms <= fastest.ms * 1.001, evaluations=80
    )
    assert found.ms <= fastest.ms * 1.001


def test_range_without_designs_has_none():
    assert evolve(SPACE, 0, 10, 1, Added(Goal(), SPACE), ()) is None
