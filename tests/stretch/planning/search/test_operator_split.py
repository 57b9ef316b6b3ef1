"""The operator-split control is a design like any other: exact, buildable, and as fast as it is said to be."""

from itertools import product

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import ideal_split_ms, single_ms, timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import split_segments
from stretch.planning.search.banded import BandedSpace
from stretch.planning.search.operator_split import operator_split
from stretch.planning.search.rules import Rules
from stretch.planning.search.space import DesignSpace
from tests.predictors.networks import Net, efficientnet_lite4, resnet50, small_resnet
from tests.predictors.specified import specified


def setup(device, processors=()):
    profile = specified(device)
    config = PlanConfig(processors=processors).checked(profile)
    return config.processors, Costs(LatencyPredictor(profile), config.precision)


def split(graph, device, processors=()):
    processors, costs = setup(device, processors)
    return operator_split(graph, split_segments(graph), costs, processors), processors, costs


@pytest.mark.slow
@pytest.mark.parametrize("device", ["host", "mi9", "pixel6"])
def test_time_lies_between_the_ideal_and_never_splitting(device):
    graph = resnet50()
    found, processors, costs = split(graph, device)
    assert ideal_split_ms(graph, processors, costs.predictor, costs.precision) < found.ms
    assert found.ms <= min(single_ms(graph, p, costs.precision[p], costs) for p in processors) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_design_is_exact_and_takes_the_time_that_is_stated(processors):
    graph = small_resnet(64)
    found, _, costs = split(graph, "mi9", processors)
    run = timeline(graph, found.design, costs)
    assert run.makespan_ms == pytest.approx(found.ms)
    assert run.macs - run.halo_macs == graph.macs
    assert run.params == graph.params
    assert {part.join for part in found.design.segments} <= {"none", "rows"}


@pytest.mark.slow
def test_single_operators_are_divided_where_blocks_have_tensors_within():
    graph = efficientnet_lite4()
    processors, costs = setup("host")
    found = operator_split(graph, split_segments(graph), costs, processors).design
    divided = [part for part in found.segments if not part.whole]
    assert divided
    inside = {block.end for stage in split_segments(graph) for block in stage.blocks}
    assert any(part.end not in inside for part in divided)


def test_part_that_launches_no_kernel_is_planned_like_any_other():
    net = Net(1, 3, 32, 32)
    net.conv(16, 3)
    net.add("identity")
    net.conv(16, 3)
    net.head(5)
    found, _, _ = split(net.graph("passing"), "mi9")
    assert found.ms > 0


@pytest.mark.slow
def test_no_division_of_two_parts_at_a_place_that_was_tried_is_faster():
    """Every combination of two parts' options, on the timeline's own arithmetic."""
    graph = small_resnet(16, blocks=(1,), mids=(64,))
    processors, costs = setup("host")
    stages = split_segments(graph)
    space = BandedSpace(graph, DesignSpace(stages, processors, costs, Rules({}), stretched=False), single=True).mixed(("rows",))
    ways = [[(o, i) for o in options for i in range(len(o.macs))] for options in space.options]
    assert all(o.span == 1 for options in space.options for o in options)
    times = []
    for picks in product(*ways):
        design = BranchDesign(graph.name, "host", tuple(o.design(i, costs) for o, i in picks))
        times.append(timeline(graph, design, costs).makespan_ms)
    assert len(times) > 50
    assert operator_split(graph, stages, costs, processors).ms == pytest.approx(min(times))


@pytest.mark.slow
def test_splitting_pays_where_the_link_is_almost_free():
    graph = resnet50()
    found, _, costs = split(graph, "host")
    assert found.ms < 0.75 * single_ms(graph, "cpu", "fp32", costs)
    assert sum(not part.whole for part in found.design.segments) > 5
