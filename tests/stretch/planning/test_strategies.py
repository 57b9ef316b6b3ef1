"""Every strategy finds a design; what is particular to each."""

import pytest

from predictors.errors import UsageError
from stretch.planning.config import SINGLE, STRATEGIES, PlanConfig, read_objective
from stretch.planning.search.evolve import added, evolve, fastest_designs, score_of
from stretch.planning.search.exact import search_exact
from stretch.planning.search.goal import Goal
from stretch.planning.search.parts import with_exact_kinds
from stretch.planning.strategies import search
from stretch.planning.strategies.exact import search as strategy_exact
from stretch.planning.strategies.operator_split import search as strategy_operator_split
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import make_space


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_finds_a_design_in_the_range(name):
    graph = small_resnet(64)
    low, high = round(0.9 * graph.macs), round(1.1 * graph.macs)
    space = make_space(graph)
    if name in SINGLE:
        space = with_exact_kinds(graph, PlanConfig(strategy=name), space)
    search_result = search(name, space, low, high, 1)
    assert low <= search_result.macs <= high
    assert search_result.n_meet >= 1


def test_unknown_strategy_is_refused_with_those_that_exist():
    with pytest.raises(UsageError) as caught:
        search("random", make_space(), 0, 1, 1)
    assert caught.value.hint == "choose from evolve, exact, grid, operator_split"


GRAPH = small_resnet()


@pytest.mark.slow
def test_strategy_finds_what_the_exact_search_finds():
    low, high = round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs)
    space = make_space(GRAPH)
    result = strategy_exact(space, low, high, 2)
    assert result.optimal
    assert result.ms == search_exact(space, low, high, 2).ms
    assert result.n_meet >= 2


OPERATOR_SPLIT_GRAPH = small_resnet(64)
HOST = specified("host")


def test_space_without_exact_kinds_has_no_such_design():
    assert strategy_operator_split(make_space(OPERATOR_SPLIT_GRAPH), 0, 2 * OPERATOR_SPLIT_GRAPH.macs, 1) is None


def test_stretched_segments_are_refused():
    with pytest.raises(UsageError, match="divides a network exactly, and `stretch` segments make another one"):
        PlanConfig(strategy="operator_split", kinds=("stretch", "rows")).checked(HOST)


EVOLVE_GRAPH = small_resnet(blocks=(2, 2))
LOW, HIGH = round(0.9 * EVOLVE_GRAPH.macs), round(1.2 * EVOLVE_GRAPH.macs)
SPACE = make_space(EVOLVE_GRAPH, processors=("cpu", "gpu", "dsp"))


def of(objective, space):
    return score_of(read_objective(objective), Goal(), space)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("objective", ["latency", "throughput", "robust"])
def test_design_is_no_worse_than_those_it_began_with(objective):
    score = of(objective, SPACE)
    starts = fastest_designs(SPACE, LOW, HIGH, 1)
    assert len(starts) >= 3
    result = evolve(SPACE, LOW, HIGH, 1, score, starts, evaluations=100)
    assert result.value <= min(score(start.picks) for start in starts)
    assert result.value == pytest.approx(score(result.picks))


def test_range_without_designs_has_none():
    assert evolve(SPACE, 0, 10, 1, added(Goal(), SPACE), ()) is None
