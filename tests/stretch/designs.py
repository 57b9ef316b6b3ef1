"""Designs for tests: the identity, fixed designs, and random designs of Hypothesis."""

import copy
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from predictors.graph import OpGraph
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import join_width, legal_widths, partitions
from stretch.planning.network.segments import Segment, cut_segment, join_kinds, split_segments


def whole(segment: Segment, processor: str = "cpu") -> SegmentDesign:
    return SegmentDesign(segment.name, segment.start, segment.end, (BranchScale(processor, segment.depth, segment.width),))


def divided(graph: OpGraph, *parts: SegmentDesign) -> BranchDesign:
    """Make a design with the given segments divided and all others whole."""
    by_name = {part.name: part for part in parts}
    return BranchDesign(graph.name, "test", tuple(by_name.get(s.name) or whole(s) for s in split_segments(graph)))


def identity_design(graph: OpGraph) -> BranchDesign:
    return divided(graph)


def part_of(segment: Segment, join: str, branches: Iterable[BranchScale]) -> SegmentDesign:
    return SegmentDesign(segment.name, segment.start, segment.end, tuple(branches), join)


def pair(segment: Segment, join: str, depths: tuple[int, int], processors: tuple[str, str] = ("cpu", "gpu")) -> SegmentDesign:
    """Make two branches of the full width, with equal shares of a projection."""
    shares = partitions(segment.width, [segment.width] * 2, 4) if join == "project" else (0, 0)
    rows = zip(processors, depths, shares, strict=True)
    return part_of(segment, join, (BranchScale(p, depth, segment.width, "none", share) for p, depth, share in rows))


def in_bands(segment: Segment, processors: tuple[str, str] = ("cpu", "gpu"), first: int | None = None) -> SegmentDesign:
    """Make two bands of rows; each has half of the rows unless the height of the first is given."""
    rows = segment.graph.by_name[segment.end].shape[2]
    first = rows // 2 if first is None else first
    bands = zip(processors, ((0, first), (first, rows)), strict=True)
    return part_of(segment, "rows", (BranchScale(p, segment.depth, segment.width, rows=band) for p, band in bands))


def branchable(graph: OpGraph) -> list[Segment]:
    return [s for s in split_segments(graph) if s.branchable]


def cpu_and(other: str, graph: OpGraph, join: str) -> BranchDesign:
    """Branch every possible segment over two processors: full depth on the CPU, minimum depth on the other."""
    return divided(graph, *(pair(s, join, (s.depth, s.min_depth), ("cpu", other)) for s in branchable(graph)))


def two_whole(graph: OpGraph, join: str) -> BranchDesign:
    """Branch every possible segment over two processors that both keep the full segment."""
    return divided(graph, *(pair(s, join, (s.depth, s.depth)) for s in branchable(graph)))


def without_blocks(module, segment: Segment, numbers: Iterable[int]):
    """Copy a tiny network and replace the modules of some residual blocks by identities."""
    from torch import nn

    result = copy.deepcopy(module)
    for number in numbers:
        path = re.match(r"((?:stages|features)(?:_\d+)+)_[a-z]", segment.blocks[number].ops[0])[1]
        result.set_submodule(path.replace("_", "."), nn.Identity())
    return result


def with_rewrites(design: BranchDesign, *names: str) -> BranchDesign:
    """Add rewrites to the scaled branches of a design."""
    parts = (
        replace(s, branches=tuple(replace(b, rewrites=names) for b in s.branches)) if len(s.branches) > 1 else s for s in design.segments
    )
    return replace(design, segments=tuple(parts))


@st.composite
def random_designs(draw: st.DrawFn, graph: OpGraph, processors: tuple[str, ...] = ("cpu", "gpu", "dsp")) -> BranchDesign:
    """Draw any mixture of whole and branched segments, with all joins, entries, depths and widths."""
    segments = split_segments(graph)
    parts: list[SegmentDesign] = []
    arriving = graph.input.shape[1]
    for i, segment in enumerate(segments):
        following = segments[i + 1] if i + 1 < len(segments) else None
        count = draw(st.integers(1, len(processors))) if segment.branchable else 1
        if count == 1:
            parts.append(whole(segment, draw(st.sampled_from(processors))))
        else:
            join = draw(st.sampled_from(join_kinds(segment, following)))
            scales = []
            for processor in processors[:count]:
                align = draw(st.sampled_from((1, 4, 8)))
                width = draw(st.sampled_from(legal_widths(segment, align)))
                depth = draw(st.integers(segment.min_depth, segment.depth))
                entry = draw(st.sampled_from(("project", "slice"))) if segment.entry(width, arriving) == "project" else "none"
                scales.append(BranchScale(processor, depth, width, entry, 0, align))
            shares = partitions(segment.width, [b.width for b in scales], 4) if join == "project" else [0] * count
            branches = tuple(BranchScale(b.processor, b.depth, b.width, b.entry, s, b.align) for b, s in zip(scales, shares, strict=True))
            parts.append(SegmentDesign(segment.name, segment.start, segment.end, branches, join))
        arriving = join_width(segment, parts[-1])
    return BranchDesign(graph.name, "test", tuple(parts))


def cut_at_random(draw: st.DrawFn, graph: OpGraph, cuts: Sequence[str], most: int) -> list[Segment]:
    """Draw segments between at most `most` of the network's cut points."""
    points = draw(st.lists(st.sampled_from(cuts), min_size=1, max_size=most, unique=True))
    bounds = [graph.input.name, *sorted(points, key=list(cuts).index), graph.output]
    return [cut_segment(graph, f"p{i}", start, end) for i, (start, end) in enumerate(itertools.pairwise(bounds))]
