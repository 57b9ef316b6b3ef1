"""The paper's grid: uniform ratios, whole segments where a rule fails."""

import pytest

from stretch.planning.cost.makespan import timeline
from stretch.planning.strategies.grid import search as search_grid
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import as_design, make_space

GRAPH = small_resnet()
RANGE = (round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs))


@pytest.mark.slow
def test_branches_of_a_processor_have_the_same_ratios_in_every_segment():
    space = make_space(GRAPH)
    found = search_grid(space, *RANGE, 2)
    for processor in ("cpu", "gpu"):
        branches = [(s, b) for s, d in zip(space.segments, found.segments(space.costs), strict=True) if not d.whole for b in d.branches]
        ratios = {(round(b.depth / s.depth, 2), round(b.width / s.width, 1)) for s, b in branches if b.processor == processor}
        assert len(ratios) == 1


@pytest.mark.slow
def test_grid_result_is_what_the_timeline_says():
    space = make_space(GRAPH)
    found = search_grid(space, *RANGE, 1)
    run = timeline(GRAPH, as_design(GRAPH, found.segments(space.costs)), space.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs == found.macs
    assert not found.optimal


@pytest.mark.slow
def test_segment_that_breaks_a_rule_stays_whole():
    space = make_space(GRAPH, alpha=1e-6)
    assert search_grid(space, *RANGE, 1) is None
    found = search_grid(space, *RANGE, 0)
    assert found.n_meet == 0
    assert found.macs == GRAPH.macs


@pytest.mark.slow
def test_three_processors_are_searched_on_a_thinner_grid():
    space = make_space(GRAPH, processors=("cpu", "gpu", "dsp"))
    found = search_grid(space, round(0.8 * GRAPH.macs), round(1.3 * GRAPH.macs), 1)
    assert found.evaluated == 15**3
    assert {len(d.branches) for d in found.segments(space.costs)} == {1, 3}
