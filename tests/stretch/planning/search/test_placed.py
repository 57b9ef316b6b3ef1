"""Placed portions as options: each is what the timeline says of its design, and faster than one processor alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import InfeasibleError
from predictors.graph import Op, OpGraph
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.portions import portion_graphs
from stretch.planning.network.segments import cut_segment
from stretch.planning.plan import plan
from stretch.planning.search.placed import placed_ways
from stretch.planning.search.rules import Rules
from stretch.planning.search.space import DesignSpace
from tests.effort import examples
from tests.predictors.specified import specified
from tests.stretch.planning.design.test_paths import conv

MI9 = specified("mi9")


def space_of(segment, processors):
    config = PlanConfig(processors=processors).checked(MI9)
    return DesignSpace([segment], processors, Costs(LatencyPredictor(MI9), config.precision), Rules.of(config))


def cells(count=3, channels=128, size=28):
    """Modules of two chains each, the second of which also reads what skips over the module before."""
    ops = [Op("x", "input", attrs={"shape": (1, channels, size, size)})]
    skipped, last = "x", "x"
    for i in range(count):
        a, b, c = (conv(f"{name}{i}", source, channels) for name, source in (("a", last), ("b", skipped), ("c", f"b{i}")))
        ops += [a, b, c, Op(f"sum{i}", "add", (f"a{i}", f"c{i}"))]
        skipped, last = last, f"sum{i}"
    return OpGraph.build("cells", ops, last)


def ways_of(graph, processors):
    segment = cut_segment(graph, "s1", graph.input.name, graph.output)
    space = space_of(segment, processors)
    return space, segment, placed_ways(space, segment, [space.costs.whole(segment, p).ms for p in processors])


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.integers(1, 3), st.sampled_from([32, 128]), st.sampled_from([14, 28]), st.sampled_from([("cpu", "gpu"), ("cpu", "gpu", "dsp")]))
def test_every_way_takes_what_the_timeline_says_and_less_than_one_processor(count, channels, size, processors):
    graph = cells(count, channels, size)
    space, segment, found = ways_of(graph, processors)
    costs = space.costs
    elements = channels * size * size
    for ways in found:
        design = ways.design(0, costs)
        graphs = portion_graphs(graph, design.names, [b.ends for b in design.branches])
        assert sum(portion.macs for portion in graphs) == graph.macs
        run = timeline(graph, BranchDesign("cells", "mi9", (design,)), costs)
        # the input is on the host
        at = space.holders.index(costs.host)
        if np.isfinite(ways.ms[at, 0]):
            assert run.segments[0].ms == pytest.approx(ways.ms[at, 0])
        assert (run.macs, run.params) == (graph.macs, graph.params)
        assert sum(run.output.values()) == pytest.approx(costs.transfer(design.branches[-1].processor, costs.host, elements))
        assert ways.holder(costs.host) == design.branches[-1].processor
        for i, holder in enumerate(space.holders):
            for processor in processors:
                whole = costs.whole(segment, processor).ms
                alone = costs.transfer(holder, processor, elements) + whole + costs.transfer(processor, ways.holder(costs.host), elements)
                assert ways.ms[i, 0] < alone or np.isinf(ways.ms[i, 0])


@pytest.mark.slow
def test_modules_whose_tensors_skip_over_their_ends_are_placed():
    graph = cells()
    _, _, found = ways_of(graph, ("cpu", "gpu"))
    assert found
    assert all(len(set(ways.processors)) == 2 for ways in found)
    result = plan(graph, MI9, PlanConfig(processors=("cpu", "gpu"), kinds=("graph",), n_meet=1))
    assert result.exact
    assert [row.design.join for row in result.run.segments].count("placed") >= 1
    assert result.run.makespan_ms < result.best_single.ms
    # draws of the uncertain numbers leave the prediction as it is where nothing is off
    assert result.recommendation.rivals[0].ms == pytest.approx(result.best_single.ms)
    assert result.predicted_run.ms() == pytest.approx(result.run.makespan_ms)


def test_chain_is_not_placed():
    ops = [Op("x", "input", attrs={"shape": (1, 64, 28, 28)}), conv("a", "x", 64), conv("b", "a", 64), Op("end", "add", ("x", "b"))]
    graph = OpGraph.build("chain", ops, "end")
    assert ways_of(graph, ("cpu", "gpu"))[2] == []
    with pytest.raises(InfeasibleError, match="no segment with parallel paths"):
        plan(graph, MI9, PlanConfig(processors=("cpu", "gpu"), kinds=("graph",)))


def test_small_work_is_left_on_one_processor():
    assert ways_of(cells(2, 4, 4), ("cpu", "gpu"))[2] == []
