"""Search with joins that change the trunk's width."""

import pytest

from predictors.errors import InfeasibleError, UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.plan import plan
from stretch.planning.search.concat import search_concat
from stretch.planning.search.space import DesignSpace
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import as_design, make_space


def builder(space):
    return lambda arriving: DesignSpace(space.segments, space.processors, space.costs, space.rules, "concat", arriving)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("device", ["mi9", "pixel6"])
def test_found_design_costs_at_its_own_widths_what_the_timeline_says(device):
    graph = small_resnet()
    space = make_space(graph, device)
    low, high = round(0.95 * graph.macs), round(1.05 * graph.macs)
    found = search_concat(builder(space), low, high, 1)
    run = timeline(graph, as_design(graph, found.segments(space.costs)), space.costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert low <= run.macs == found.macs <= high
    assert run.params == found.params
    assert any(len(p.branches) > 1 and p.join == "concat" for p in run.design.segments)
    assert not found.optimal


def test_concat_joins_refuse_what_they_are_not_planned_with():
    with pytest.raises(UsageError, match="without `strategy` and `params`"):
        plan(resnet50(), specified("pixel6"), PlanConfig(join="concat", strategy="grid"))


def test_range_that_concat_misses_points_to_project():
    with pytest.raises(InfeasibleError) as caught:
        plan(resnet50(), specified("pixel6"), PlanConfig(join="concat", macs=(0.99999, 1.00001)))
    assert caught.value.hint == 'use `join="project"`'
