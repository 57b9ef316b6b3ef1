"""The evolutionary search keeps the constraints, is the same for a seed, and loses nothing it began with."""

import pytest

from stretch.planning.objective import read_objective
from stretch.planning.search.evolve import evolve, fastest_designs
from stretch.planning.search.goal import Goal
from stretch.planning.search.score import Added, score_of
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import make_space

GRAPH = small_resnet(blocks=(2, 2))
LOW, HIGH = round(0.9 * GRAPH.macs), round(1.2 * GRAPH.macs)
SPACE = make_space(GRAPH, processors=("cpu", "gpu", "dsp"))


def of(objective, space):
    return score_of(read_objective(objective), Goal(), space)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("objective", ["latency", "throughput", "robust"])
def test_design_is_no_worse_than_those_it_began_with(objective):
    score = of(objective, SPACE)
    starts = fastest_designs(SPACE, LOW, HIGH, 1)
    assert len(starts) >= 3
    found = evolve(SPACE, LOW, HIGH, 1, score, starts, evaluations=100)
    assert found.value <= min(score(each.picks) for each in starts)
    assert found.value == pytest.approx(score(found.picks))


def test_range_without_designs_has_none():
    assert evolve(SPACE, 0, 10, 1, Added(Goal(), SPACE), ()) is None
