"""Neighbouring stages as one segment, with fewer meeting points.

An exchange costs about the same whatever lies between two of them, so equation
4 of paper 003 rules out short stages. Several stages that become one segment
share one exchange. Their units are dropped evenly and their widths follow one
ratio.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations, groupby

from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.division import of_kinds
from stretch.planning.network.segments import Segment, cut_segment
from stretch.planning.network.units import feature_maps
from stretch.planning.search.lazy_options import LazyOptions
from stretch.planning.search.parts import PartSpace
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


# Segments in scaled copies that begin and end at blocks, the stem among them, beside those that are whole stages.
#
# What arrives at a block of a stage has the original's channels, so a branch that begins
# there begins with an entry, as that of a stage whose first block keeps its shape does.

#: Room in a comparison that only leaves out what a rule will, for sums in another order.
ROUNDING = 1.001


def cut_blocks(graph: OpGraph, config: PlanConfig, space: DesignSpace, kinds: Collection[str] = (), *, merged: bool) -> DesignSpace:
    """The designs of a space of stages, and those whose stretched segments begin and end at any block."""
    banded = PartSpace(graph, space, merged=config.merge != "never", vectors=any(division.vectors for division in of_kinds(kinds)))
    return with_cuts(graph, banded, banded.mixed(kinds), merged=merged)


def with_cuts(graph: OpGraph, banded: PartSpace, fine: DesignSpace, *, merged: bool) -> DesignSpace:
    """The designs of a space of parts, and those in which any run of its parts is stretched."""
    stages = banded.space.segments
    more: list[list[LazyOptions]] = [[] for _ in banded.parts]
    for first, stage in enumerate(banded.stage):
        for last in range(first, len(banded.parts)):
            if not _stretches(banded, last) or (banded.stage[last] != stage and not merged):
                break
            run = banded.parts[first : last + 1]
            whole = any(part.start == run[0].start for part in stages) and any(part.end == run[-1].end for part in stages)
            if not (whole and stages[stage].branchable):
                segment = _cut(graph, fine, banded.name(first, last), run[0].start, run[-1].end)
                if segment.branchable and segment.graph.macs:
                    offers = fine.offered(segment, first, len(run))
                    more[first] += [offer for offer in offers if _pays(banded, first, last, offer)]
            if run[-1].tapped:
                break
    return fine.with_runs(more)


def _cut(graph: OpGraph, space: DesignSpace, name: str, start: str, end: str) -> Segment:
    """A segment, which may branch wherever it reads and writes feature maps, the stem too."""
    segment = space.costs.cut(graph, name, start, end)
    return segment if segment.branchable else replace(segment, branchable={start, end} <= feature_maps(segment.graph))


def _stretches(banded: PartSpace, part: int) -> bool:
    """Whether the stage of a part may be stretched: any but the head and those that are kept."""
    stage = banded.space.segments[banded.stage[part]]
    return stage.name != "head" and stage.name not in banded.space.kept


def _pays(banded: PartSpace, first: int, last: int, offer: LazyOptions) -> bool:
    """Whether the rule on communication leaves anything of an offer, as far as moving what arrives tells."""
    most = offer.rules.values.get("alpha")
    if most is None:
        return True
    least = min(max(offer.costs.transfer(holder, p, offer.elements) for p in offer.subset) for holder in banded.space.holders)
    alone = min(banded.alone_ms(first, last, banded.space.processors.index(p)) for p in offer.subset)
    return least <= most * alone * ROUNDING
