"""Paths of a segment as options: each is what the timeline says of its design, and none is left out."""

from itertools import permutations

import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import cut_segment
from stretch.planning.search.pathed import path_ways
from stretch.planning.search.rules import Rules
from stretch.planning.search.space import DesignSpace
from tests.predictors.specified import specified
from tests.stretch.planning.design.test_paths import conv, joined

MI9 = specified("mi9")
PROCESSORS = ("cpu", "gpu", "dsp")


def space_of(segment):
    config = PlanConfig(processors=PROCESSORS).checked(MI9)
    return DesignSpace([segment], PROCESSORS, Costs(LatencyPredictor(MI9), config.precision), Rules.of(config))


def module(kind="concat", paths=4):
    """Paths of one convolution, of two, and so on."""
    ops = [conv(f"p{i}_{j}", f"p{i}_{j - 1}" if j else "x", 16) for i in range(paths) for j in range(i + 1)]
    return joined([f"p{i}_{i}" for i in range(paths)], kind, *ops)


@pytest.mark.parametrize(("kind", "count"), [("concat", 4), ("add", 3)])
def test_every_way_takes_what_the_timeline_says(kind, count):
    graph = module(kind, count)
    segment = cut_segment(graph, "s1", "x", "end")
    space = space_of(segment)
    found = path_ways(space, segment)
    assert {ways.processors for ways in found} == {order for n in (2, 3) for order in permutations(PROCESSORS, n)}
    for ways in found:
        pairs = count - 1 if len(ways.processors) == 2 else (count - 1) * (count - 2) // 2
        assert len(ways.macs) == pairs
        for index in range(pairs):
            design = ways.design(index, space.costs)
            run = timeline(graph, BranchDesign("net", "mi9", (design,)), space.costs)
            # the input is on the host
            assert run.segments[0].ms == pytest.approx(ways.ms[space.holders.index(space.costs.host)][index])
            assert (run.macs, run.params) == (graph.macs, graph.params)
            assert ways.slowest_ms[index] == pytest.approx(max(b.ms + b.contention_ms for b in run.segments[0].branches))
