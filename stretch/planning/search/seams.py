"""Segments that need no seam: parts of a stage that one processor runs one after the other are one segment."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from predictors.graph import OpGraph
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import Segment, cut_segment


def without_seams(graph: OpGraph, stages: Sequence[Segment], parts: Sequence[SegmentDesign]) -> tuple[SegmentDesign, ...]:
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
