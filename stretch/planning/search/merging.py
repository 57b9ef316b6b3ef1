"""Neighbouring stages as one segment, with fewer meeting points.

An exchange costs about the same whatever lies between two of them, so equation
4 of paper 003 rules out short stages. Several stages that become one segment
share one exchange. Their units are dropped evenly and their widths follow one
ratio.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, groupby

from predictors.graph import OpGraph
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import Segment, cut_segment
from stretch.planning.search.lazy_options import LazyOptions
from stretch.planning.search.space import DesignSpace


def merge_stages(graph: OpGraph, space: DesignSpace) -> DesignSpace:
    """The designs of a space, and those in which runs of stages that follow each other are merged."""
    stages = space.segments
    more: list[list[LazyOptions]] = [[] for _ in stages]
    for first, last in combinations(range(len(stages)), 2):
        run = stages[first : last + 1]
        if not all(stage.branchable and stage.name not in space.kept for stage in run) or any(stage.tapped for stage in run[:-1]):
            continue
        segment = space.costs.cut(graph, merged_name(run), run[0].start, run[-1].end)
        more[first] += space.offered(segment, first, len(run))
    return space.with_runs(more)


def merged_name(stages: Sequence[Segment]) -> str:
    """Name of a segment of several stages, such as ``s2_to_s4``."""
    return f"{stages[0].name}_to_{stages[-1].name}"


# Segments that need no seam: parts of a stage that one processor runs one after the other are one segment.


def merge_neighbours(graph: OpGraph, stages: Sequence[Segment], parts: Sequence[SegmentDesign]) -> tuple[SegmentDesign, ...]:
    """A design whose neighbours that stay whole on one processor are one segment, as long as they are of one stage."""
    order = {op.name: i for i, op in enumerate(graph.ops)}

    def place(part: SegmentDesign) -> tuple[int, str] | str:
        if not part.whole:
            return part.name
        stage = next(i for i, stage in enumerate(stages) if order[part.end] <= order[stage.end])
        return stage, part.branches[0].processor

    result: list[SegmentDesign] = []
    for _, group in groupby(parts, key=place):
        run = list(group)
        if len(run) == 1:
            result += run
            continue
        stage = next((stage for stage in stages if (stage.start, stage.end) == (run[0].start, run[-1].end)), None)
        name = stage.name if stage else f"{run[0].name}_to_{run[-1].name}"
        segment = cut_segment(graph, name, run[0].start, run[-1].end)
        branch = run[0].branches[0]
        result.append(
            SegmentDesign(name, segment.start, segment.end, (replace(branch, depth=segment.depth, width=segment.width),), run[0].join)
        )
    return tuple(result)
