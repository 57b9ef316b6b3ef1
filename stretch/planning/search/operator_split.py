"""A network whose operators are split over processors, as a design that can be built.

CoDL computes some of every operator on each processor and meets behind it. As
a design of ours that is the original in its smallest parts: between two
tensors where everything meets and no kernel is under way, one processor
computes, or several compute bands of rows. Where a residual block has no such
tensor within, the block is the part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from predictors.graph import OpGraph
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.backbone import backbone_of
from stretch.planning.network.segments import Segment
from stretch.planning.search.exact import search_exact
from stretch.planning.search.merging import merge_neighbours
from stretch.planning.search.parts import PartSpace
from stretch.planning.search.placing import place_sides
from stretch.planning.search.rules import Rules
from stretch.planning.search.space import DesignSpace


@dataclass(frozen=True)
class OperatorSplit:
    """The fastest design of kernel-sized parts."""

    design: BranchDesign  # Exact; parts that one processor computes one after the other are one segment.
    ms: float  # Its predicted makespan.


def operator_split(graph: OpGraph, stages: Sequence[Segment], costs: Costs, processors: Sequence[str]) -> OperatorSplit:
    """Each kernel-sized part on one processor, or its rows over several, so that all of them together are fastest.

    No rule of a request binds it, and nothing need be split.
    """
    whole = DesignSpace(stages, processors, costs, Rules({}), stretched=False)
    backbone = backbone_of(graph).graph
    search_result = search_exact(PartSpace(backbone, whole, single=True).mixed(("rows",)), 0, backbone.macs, 0)
    assert search_result is not None  # every part may stay whole
    design = BranchDesign(graph.name, costs.predictor.device.id, merge_neighbours(backbone, stages, search_result.segments(costs)))
    design = place_sides(graph, design, costs, processors)
    return OperatorSplit(design, timeline(graph, design, costs).makespan_ms)
