"""The paper's grid: uniform ratios, whole segments where a rule fails."""

import pytest

from stretch.planning.cost.makespan import timeline
from stretch.planning.strategies.grid import search as search_grid
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import as_design, make_space

GRAPH = small_resnet()
RANGE = (round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs))


@pytest.mark.slow
def test_grid_result_is_what_the_timeline_says():
    space = make_space(GRAPH)
    found = search_grid(space, *RANGE, 1)
    run = timeline(GRAPH, as_design(GRAPH, found.segments(space.costs)), space.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs == found.macs
    assert not found.optimal
