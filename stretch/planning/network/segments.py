"""Segments: the operators between two meeting points."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from predictors.errors import StretchError, UnknownNameError
from predictors.fusion import Kernel
from predictors.graph import Op, OpGraph
from predictors.joins import JoinKind, joins_that
from predictors.operators import kind_of
from predictors.rewrites import changing, rewritten
from predictors.rows import all_rows, height
from stretch.planning.network.backbone import backbone_of, is_tap
from stretch.planning.network.channels import ChannelGroups, channel_groups
from stretch.planning.network.units import (
    Block,
    cut_points,
    feature_maps,
    find_blocks,
    is_block,
    memoised,
    push_past_weightless,
    regions,
    resolution,
)

#: A net whose blocks all have one shape is divided into this many equal parts.
EQUAL_PARTS = 4


def find_stem_end(graph: OpGraph) -> str:
    """The cut point where the stem ends: the start of a first block that changes the shape, else the first weighted operator, past weightless ones."""
    first_weighted = next((op for op in graph.ops if not kind_of(op.kind).weightless), None)
    if first_weighted is None:
        return graph.input.name
    cuts = cut_points(graph)
    position = {op.name: i for i, op in enumerate(graph.ops)}
    after = next((c for c in cuts if position[c] >= position[first_weighted.name]), graph.output)
    stem = push_past_weightless(graph, after)
    block = next((r for r in regions(graph) if is_block(graph, r)), None)
    if block is not None and position[block.start] > position[stem]:
        start, end = graph.by_name[block.start], graph.by_name[block.end]
        between = graph.ops[position[stem] + 1 : position[block.start] + 1]
        if start.shape != end.shape or any(kind_of(op.kind).stated for op in between):
            return block.start
    return stem


def find_meeting_points(graph: OpGraph) -> list[str]:
    """Ends of the stages, in order; the stem's end is not among them.

    Rule: blocks of one (resolution, channels) that follow each other are a run,
    and a run's end, pushed past weightless operators, is a boundary. A
    resolution without a run takes its last narrowest cut point. A net that is
    one long run is divided into parts of equal cost.
    """
    maps = feature_maps(graph)
    cuts = [name for name in cut_points(graph) if name in maps or len(graph.by_name[name].shape) != 4]
    position = {op.name: i for i, op in enumerate(graph.ops)}
    stem = find_stem_end(graph)
    ends_of = [r.end for r in regions(graph) if is_block(graph, r) and r.end in cuts and position[r.end] > position[stem]]
    blocks = [graph.by_name[name] for name in ends_of]
    runs = [list(run) for _, run in groupby(blocks, key=lambda op: (resolution(op), op.shape[1]))]
    ends = _equal_parts(graph, runs[0]) if len(runs) == 1 and len(runs[0]) > EQUAL_PARTS else [run[-1].name for run in runs]
    with_run = {resolution(op) for run in runs for op in run}
    for size, group in groupby((graph.by_name[c] for c in cuts if position[c] > position[stem]), key=resolution):
        members = list(group)
        if size in with_run or size == (1, 1) or not any(not kind_of(op.kind).weightless for op in members):
            continue
        narrowest = min(op.shape[1] for op in members)
        ends.append([op for op in members if op.shape[1] == narrowest][-1].name)
    pushed = {push_past_weightless(graph, name) for name in ends}
    return sorted((p for p in pushed if position[p] > position[stem]), key=position.__getitem__)


def _equal_parts(graph: OpGraph, run: list[Op]) -> list[str]:
    """Block ends that divide one long run into parts of about equal cost."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    total, costs = 0, []
    for op in graph.ops[: position[run[-1].name] + 1]:
        total += graph.op_macs(op)
        costs.append(total)
    ends = []
    for part in range(1, EQUAL_PARTS + 1):
        target = total * part / EQUAL_PARTS
        ends.append(min(run, key=lambda op: abs(costs[position[op.name]] - target)).name)
    return list(dict.fromkeys(ends))


#: How branches meet, and how one begins.
EntryKind = Literal["none", "slice", "project"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators after cut point `start` up to and with cut point `end`; what is known of one is kept by the object itself."""

    name: str  # ``stem``, ``s1``, …, ``head``.
    start: str  # Tensor it reads.
    end: str  # Tensor it writes.
    graph: OpGraph  # Its own graph; the input operator is called `start`.
    #: Whether it may be replicated: what it reads and writes has channels that can be joined, and it is neither stem nor head.
    branchable: bool
    rewrites: tuple[str, ...] = ()  # What was done to its operators, by `rewrite_segment`.

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Its blocks, in order; a unit whose removal would leave a backbone made of other parts stays, as in Inception."""
        blocks = find_blocks(self.graph)
        last = {block.run: self._backbone(block.end) for block in blocks}
        kept = []
        for i, block in enumerate(blocks):
            stays = block.removable and i > 0 and blocks[i - 1].run == block.run and self._backbone(block.start) != last[block.run]
            kept.append(replace(block, removable=False) if stays else block)
        return tuple(kept)

    def _backbone(self, name: str) -> tuple[tuple[int, bool], ...]:
        """Channels of each part of a tensor, and whether it comes from the input."""
        groups = self.channels
        return tuple((groups.units[g] * per, g == groups.input_group) for g, per in groups.pieces[name])

    @cached_property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @cached_property
    def min_depth(self) -> int:
        """Blocks that are never removed."""
        return sum(not block.removable for block in self.blocks)

    @cached_property
    def width(self) -> int:
        """Channels it writes."""
        return self.graph.by_name[self.end].shape[1]

    @cached_property
    def in_width(self) -> int:
        """Channels it reads."""
        return self.graph.input.shape[1]

    @property
    def tapped(self) -> bool:
        """Whether something beside the backbone reads its end, or the network returns it: then it keeps its channels."""
        return is_tap(self.graph.by_name[self.end])

    @cached_property
    def channels(self) -> ChannelGroups:
        """Channel groups of the whole segment."""
        return channel_groups(self.graph)

    @cached_property
    def fixed_width(self) -> bool:
        """Whether its output cannot be scaled (a frozen group is in it)."""
        return any(group in self.channels.frozen for group, _ in self.channels.pieces[self.end])

    @cached_property
    def passes_input(self) -> bool:
        """Whether its output has the channels of its input (it starts with an identity skip)."""
        pieces = self.channels.pieces[self.end]
        return len(pieces) == 1 and pieces[0][0] == self.channels.input_group

    @cached_property
    def dense_input(self) -> bool:
        """Whether only dense layers read its input, so that the segment before it may end with a `concat` join, which changes its channels."""
        tied = {name for name, pieces in self.channels.pieces.items() if any(g == self.channels.input_group for g, _ in pieces)}
        return (
            not self.passes_input
            and self.channels.input_group not in self.channels.frozen
            and all(self.graph.by_name[name].kind not in ("add", "mul", "concat", "conv") for name in tied)
        )

    @cached_property
    def rewires(self) -> bool:
        """Whether only dense convolutions read what arrives, so that other widths change their kernels alone."""
        readers = (self.graph.by_name[name] for name in self.graph.consumers[self.start])
        return all(op.kind == "conv" and op.attrs["groups"] == 1 for op in readers) and not self.passes_input

    def entries(self, width: int) -> tuple[EntryKind, ...]:
        """How a branch of this output width may begin."""
        arriving = self.arriving(width)
        if arriving is None or arriving == self.in_width:
            return ("none",)
        return ("project", "slice") if arriving < self.in_width else ("project",)

    def arriving(self, width: int) -> int | None:
        """Channels that must arrive for a branch of this width without an entry; None where any number may."""
        if not self.passes_input:
            return None
        # a grouped convolution may write several channels for each that arrives
        ((_, written),), ((_, read), *_) = self.channels.pieces[self.graph.output], self.channels.pieces[self.graph.input.name]
        return width * read // written


def split_segments(graph: OpGraph, meeting: Sequence[str] | None = None) -> list[Segment]:
    """Cut the backbone of a graph into stem, segments and head.

    Args:
        meeting: Meeting points, any of the cut points, in order; by default
            those of `find_meeting_points`. Taps are meeting points in any case.
    """
    backbone = backbone_of(graph)
    graph, cuts = backbone.graph, cut_points(backbone.graph)
    points = list(meeting) if meeting is not None else find_meeting_points(graph)
    for point in points:
        if point not in cuts:
            raise UnknownNameError.among("cut point", point, cuts)
    order = {name: i for i, name in enumerate(cuts)}
    if [order[p] for p in points] != sorted({order[p] for p in points}):
        raise StretchError("meeting points must differ and stand in the order of the network", "list them from the input to the output")
    ends = {graph.input.name, graph.output}
    points = [name for name in cuts if name in points or (name in backbone.taps and name not in ends)]
    stem = find_stem_end(graph)
    first = order[points[0]] if points else len(cuts)
    bounds = [graph.input.name, *([stem] if 0 < order[stem] < first else []), *points]
    names = ["stem"] * (order[stem] < first and order[stem] > 0) + [f"s{i}" for i in range(1, len(points) + 1)]
    if bounds[-1] != graph.output:
        bounds.append(graph.output)
        names.append("head")
    return [cut_segment(graph, name, start, end) for name, start, end in zip(names, bounds, bounds[1:], strict=False)]


@memoised
def cut_segment(graph: OpGraph, name: str, start: str, end: str) -> Segment:
    """The segment between two cut points, the same one each time, so that what is known of it is found again."""
    cuts = cut_points(graph)
    for point in (start, end):
        if point not in cuts:
            raise UnknownNameError.among("cut point", point, cuts)
    position = {op.name: i for i, op in enumerate(graph.ops)}
    if position[start] >= position[end]:
        raise StretchError(f"segment `{name}` ends at `{end}`, which is not after its start `{start}`")
    source = Op(start, "input", attrs={"shape": graph.by_name[start].shape})
    inside = graph.ops[position[start] + 1 : position[end] + 1]
    piece = OpGraph.build(f"{graph.name}.{name}", [source, *inside], end)
    maps = feature_maps(graph)
    return Segment(name, start, end, piece, branchable=start in maps and end in maps and name not in ("stem", "head"))


@memoised
def rewrite_segment(segment: Segment, names: tuple[str, ...]) -> Segment:
    """A segment of another network, with other operators in the place of some; the segment itself where nothing changes, or its blocks would."""
    graph, done = rewritten(segment.graph, changing(names))
    if not done:
        return segment
    other = replace(segment, graph=OpGraph.build(graph.name, graph.ops, graph.outputs), rewrites=done)
    same = (other.depth, other.width, other.min_depth) == (segment.depth, segment.width, segment.min_depth)
    return other if same else segment


def join_kinds(segment: Segment, following: Segment | None) -> tuple[JoinKind, ...]:
    """Joins that may end `segment`, given the one that reads it."""
    any_width = following is not None and following.dense_input and not segment.fixed_width and not segment.tapped
    return joins_that(lambda join: not join.exact and (any_width or not join.widens))


# Parts: the pieces that bands of rows and branches of channels are planned for.
#
# Branches that are scaled copies meet at the ends of stages. Bands of rows are
# exact wherever they meet, and the fewer operators lie between two meetings, the
# smaller is what two bands both compute; so they may also meet within a stage,
# between its blocks.


def divide(graph: OpGraph, stage: Segment, clean: Collection[str], *, every: bool = False, vectors: bool = False) -> list[Segment]:
    """The parts of a stage between cut points that no kernel spans: its blocks, and what is behind its last tensor with rows.

    With `every` it is divided within blocks, too, with `vectors` at each linear layer that reads what another computed.
    """
    ends = [block.end for block in stage.blocks]
    tall = [
        name
        for name in cut_points(stage.graph)
        if len(stage.graph.by_name[name].shape) == 4 and height(stage.graph.by_name[name].shape) > 1
    ]
    order = {op.name: i for i, op in enumerate(stage.graph.ops)}
    layers = [op for op in stage.graph.ops if op.kind == "linear"] if vectors else []
    behind = [op.inputs[0] for op in layers[1:] if op.inputs[0] in cut_points(stage.graph)]
    wanted = tall if every else (*ends, *tall[-1:])
    inner = sorted({name for name in (*wanted, *behind) if name in clean and name not in (stage.start, stage.end)}, key=order.__getitem__)
    if not inner:
        return [stage]
    bounds = [stage.start, *inner, stage.end]
    return [cut_segment(graph, f"{stage.name}_{i}", a, b) for i, (a, b) in enumerate(itertools.pairwise(bounds), start=1)]


def clean_cuts(graph: OpGraph, launched: Sequence[Sequence[Kernel]]) -> set[str]:
    """Cut points of a network that no kernel spans: none computes operators both before and behind them."""
    order = {op.name: i for i, op in enumerate(graph.ops)}
    spans = [(min(places), max(places)) for kernels in launched for k in kernels if (places := [order[name] for name in k.ops])]
    return {name for name in cut_points(graph) if not any(first <= order[name] < last for first, last in spans)}


def mixing(graph: OpGraph) -> list[str]:
    """Operators that need every row of what they read for any row of what they write, by name."""
    return [op.name for op in graph.ops if op.inputs and kind_of(op.kind).rows is all_rows and max(map(height, graph.input_shapes(op))) > 1]
