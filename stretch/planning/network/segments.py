"""Segments: the operators between two meeting points."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import groupby, pairwise
from typing import Any, Literal, TypeVar

from predictors.channels import Groups, OperatorView, Pieces
from predictors.errors import StretchError, UnknownNameError
from predictors.fusion import Kernel
from predictors.graph import Op, OpGraph
from predictors.joins import JoinKind, joins_that
from predictors.operators import kind_of
from predictors.order import stable_order
from predictors.rewrites import HALF_RESOLUTION, HALF_WIDTH, apply_rewrites, inexact_rewrites
from predictors.rows import all_rows, height
from predictors.shapes import ints, width

# Cut points, blocks, and removable blocks.

Resolution = tuple[int, int]
C = TypeVar("C", bound=Callable[..., Any])

#: Kinds that only read feature maps, and two that make a feature map of a vector or of tokens.
_MAP_KINDS = frozenset(
    {"conv", "max_pool", "avg_pool", "global_avg_pool", "global_max_pool", "pad", "upsample", "unflatten", "channels_first"}
)


def memoised(function: C) -> C:
    """Return a function or method that caches its results on the object that is its first argument, because planning repeats calls often."""
    name = f"_memo_{function.__name__}"

    @wraps(function)
    def call(owner: Any, *key: Any) -> Any:
        known = vars(owner).setdefault(name, {})
        if key not in known:
            known[key] = function(owner, *key)
        return known[key]

    # the wrapper has the parameters of `function`
    return call  # type: ignore[return-value]


@dataclass(frozen=True)
class Block:
    """A single-entry single-exit part of a graph between two cut points, with its trailing activations."""

    start: str  # Name of the input tensor.
    end: str  # Name of the output tensor.
    ops: tuple[str, ...]  # Names of its operators.
    run: int = 0  # Number of its run of equal blocks.
    removable: bool = False  # Whether it is a *unit*: equal input and output shape, and not the entry block of its run.


def cone(graph: OpGraph, names: Iterable[str], stop: Collection[str] = ()) -> set[str]:
    """Return the names of the operators that compute some tensors, without the operators in `stop` and the graph's inputs."""
    members: set[str] = set()
    left = list(names)
    while left:
        op = graph.by_name[left.pop()]
        if op.name not in members and op.name not in stop and op.kind != "input":
            members.add(op.name)
            left += op.inputs
    return members


def components(names: Iterable[str], sets: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the connected components of the names, where each set connects its members, in the order of the names."""
    position = {name: i for i, name in enumerate(names)}
    member_of = {name: [name] for name in position}
    for first, *others in sets:
        for name in others:
            if member_of[name] is not member_of[first]:
                member_of[first] += member_of[name]
                member_of |= dict.fromkeys(member_of[name], member_of[first])
    return [sorted(members, key=position.__getitem__) for members in {id(members): members for members in member_of.values()}.values()]


@memoised
def cut_points(graph: OpGraph) -> list[str]:
    """Return the cut points, in order: tensors through which every path from input to output passes, so that no edge spans them."""
    cuts = cut_candidates(graph.ops)
    return cuts[: cuts.index(graph.output) + 1] if graph.output in cuts else cuts


def cut_candidates(ops: Sequence[Op]) -> list[str]:
    """Return the cut points of operators in execution order: all inputs come before them, and no edge between other operators spans them."""
    position = {op.name: i for i, op in enumerate(ops)}
    last_use = list(range(len(ops)))
    for i, op in enumerate(ops):
        for name in op.inputs:
            if name in position:
                last_use[position[name]] = i
    cuts, reach, waiting = [], 0, sum(op.kind == "input" for op in ops)
    for i, op in enumerate(ops):
        waiting -= op.kind == "input"
        # an input that comes later is read after this operator
        if reach <= i and not waiting:
            cuts.append(op.name)
        reach = max(reach, last_use[i])
    return cuts


def regions(graph: OpGraph) -> list[Block]:
    """Return the parts of a graph between successive cut points, in order."""
    cuts = cut_points(graph)
    names = [op.name for op in graph.ops]
    return [Block(a, b, tuple(names[graph.position[a] + 1 : graph.position[b] + 1])) for a, b in itertools.pairwise(cuts)]


def feature_maps(graph: OpGraph) -> frozenset[str]:
    """Return the tensors with axes batch, channels, height and width, without outputs of operators with a stated shape (opaque ones, views) and of their elementwise readers."""
    members: set[str] = set()
    for op in graph.ops:
        known = not op.inputs or any(name in members for name in op.inputs) or op.kind in _MAP_KINDS
        if len(op.shape) == 4 and known and not kind_of(op.kind).stated:
            members.add(op.name)
    return frozenset(members)


def resolution(op: Op) -> Resolution:
    """Return the height and width of an operator's output; (1, 1) for vectors."""
    return (op.shape[2], op.shape[3]) if len(op.shape) == 4 else (1, 1)


def is_block(graph: OpGraph, region: Block) -> bool:
    """Return whether a region is a block: parallel paths with weights at its output's resolution, unlike a gate, which works on pooled vectors."""
    if len(region.ops) == 1:
        return False
    end = graph.by_name[region.end]
    return any(
        not kind_of(op.kind).weightless and resolution(op) == resolution(end) and (resolution(end) != (1, 1) or len(op.shape) == 4)
        for op in (graph.by_name[name] for name in region.ops)
    )


def find_blocks(graph: OpGraph) -> list[Block]:
    """Return the blocks of a segment, in order.

    Consecutive blocks with one output shape form a run. The entry block of a run is never removed. It is the first region if
    this changes the shape, else the chain of weighted operators before it (the first MBConv of a stage), else the first region
    anyway. The blocks of a segment without parallel paths are convolution-activation chains. Weightless operators after the last block
    (pooling) belong to no block: every depth keeps them.
    """
    parts = [r for r in regions(graph) if is_block(graph, r)] or _conv_chains(graph)
    if not parts:
        return [Block(graph.input.name, graph.output, tuple(op.name for op in graph.ops if op.kind != "input"))]
    names, position = [op.name for op in graph.ops], graph.position
    blocks: list[Block] = []
    run, key, done = -1, None, graph.input.name
    for part in parts:
        start, end = graph.by_name[part.start], graph.by_name[part.end]
        part_key = (resolution(end), width(end.shape))
        same_shape = start.shape == end.shape
        chain = _weighted(graph, names[position[done] + 1 : position[part.start] + 1])
        opens = part_key != key or chain
        if opens:
            run, key = run + 1, part_key
        tail = push_past_weightless(graph, part.end, elementwise_only=True)
        if opens and (chain and same_shape):
            # The chain before this region is the entry block, so the region is already a unit.
            blocks.append(Block(done, part.start, tuple(names[position[done] + 1 : position[part.start] + 1]), run, False))
            done, opens = part.start, False
        ops = tuple(names[position[done] + 1 : position[tail] + 1])
        blocks.append(Block(done, tail, ops, run, same_shape and not opens))
        done = tail
    rest = tuple(names[position[done] + 1 :])
    if _weighted(graph, rest):
        blocks.append(Block(done, graph.output, rest, run + 1, False))
    return blocks


def _weighted(graph: OpGraph, names: list[str] | tuple[str, ...]) -> bool:
    return any(not kind_of(graph.by_name[name].kind).weightless for name in names)


def push_past_weightless(graph: OpGraph, name: str, *, elementwise_only: bool = False) -> str:
    """Return the cut point after `name` and the weightless operators that follow it, where the tensor to transfer is smaller."""
    cuts = cut_points(graph)
    while True:
        readers = graph.consumers[name]
        if len(readers) != 1 or readers[0] not in cuts:
            return name
        op = graph.by_name[readers[0]]
        kind = kind_of(op.kind)
        if not kind.weightless or len(op.inputs) != 1 or len(op.shape) != 4 or (elementwise_only and not kind.elementwise):
            return name
        name = op.name


def _conv_chains(graph: OpGraph) -> list[Block]:
    """Return blocks for a graph without parallel paths: each dense K×K convolution with its batch norm and activation."""
    cuts, names = set(cut_points(graph)), [op.name for op in graph.ops]
    convs = [op for op in graph.ops if op.kind == "conv" and op.attrs["groups"] == 1 and max(ints(op.attrs, "kernel")) > 1]
    ends = [(op, push_past_weightless(graph, op.name, elementwise_only=True)) for op in convs if op.name in cuts]
    return [Block(op.inputs[0], end, tuple(names[graph.position[op.name] : graph.position[end] + 1])) for op, end in ends]


# Groups of channels that must be kept or dropped together.
#
# The graph is interpreted over pieces of channels instead of numbers: each kind's rule (`predictors.channels`) derives the pieces of its
# output from the pieces of its inputs. Additions and depthwise convolutions unify groups, grouped convolutions coarsen units to whole
# convolution groups, concatenation puts pieces side by side, flattening multiplies the channels per unit.


@dataclass(frozen=True)
class ChannelGroups:
    """Channel pieces of every tensor of a graph."""

    pieces: dict[str, Pieces]  # Per operator, its output channels as (group, channels per unit).
    units: dict[int, int]  # Number of units of each group.
    frozen: frozenset[int]  # Groups that must keep all units.
    input_group: int  # The group of the graph's input.

    def channels(self, name: str, kept: Mapping[int, int] | None = None) -> int:
        """Return the number of channels of operator `name` if groups keep `kept` units (all by default)."""
        return sum((kept or self.units)[group] * per for group, per in self.pieces[name])

    def widths(self, kept: Mapping[int, int]) -> dict[str, int]:
        """Return the number of channels of every operator if groups keep `kept` units."""
        return {name: sum([kept[group] * per for group, per in row]) for name, row in self.pieces.items()}

    @cached_property
    def per_unit(self) -> dict[int, int]:
        """Channels per unit of each group where the group is narrowest: at its producers."""
        per: dict[int, int] = {}
        for pieces in self.pieces.values():
            for group, size in pieces:
                per[group] = min(per.get(group, size), size)
        return per

    def position(self, name: str, channel: int, kept: Mapping[int, int]) -> int:
        """Return the new index of a channel of operator `name` if groups keep `kept` units; exact within pieces of frozen groups only."""
        before = new = 0
        for group, size in self.pieces[name]:
            if before + self.units[group] * size > channel:
                break
            before += self.units[group] * size
            new += kept[group] * size
        return new + channel - before


def channel_groups(graph: OpGraph) -> ChannelGroups:
    """Return the channel groups of a graph, by interpretation over channel pieces."""
    groups = Groups()
    pieces: dict[str, Pieces] = {}
    for op in graph.ops:
        seen = OperatorView(graph.input_shapes(op), op.attrs, op.shape)
        pieces[op.name] = kind_of(op.kind).channels(groups, seen, [pieces[i] for i in op.inputs])
    final = {name: tuple(groups.find(p) for p in row) for name, row in pieces.items()}
    roots = {group for row in final.values() for group, _ in row}
    return ChannelGroups(
        final, {g: groups.units[g] for g in roots}, frozenset(g for g in roots if groups.frozen[g]), final[graph.input.name][0][0]
    )


# The backbone of a network with several inputs or outputs, and its other parts.
#
# A network with one input and one output is a chain of segments between cut points. But a detector's pyramid reads three backbone stages,
# and a tower has a separate input. The *backbone* is the chain with most multiply-accumulates. A *side* is
# another part, which runs undivided as soon as its inputs are ready. A tensor of the backbone that a side reads or the network
# returns is a *tap*: a segment ends there, with the original's channels.

#: Tag of a tap.
TAP = "tap"

#: Maximum number of sides of a network; neighbours are joined if there are more.
MAX_SIDES = 24


@dataclass(frozen=True)
class Backbone:
    """A network's backbone and its sides."""

    graph: OpGraph  # The backbone, with one input and one output; taps have the tag `TAP`.
    before: tuple[OpGraph, ...] = ()  # Sides that compute the backbone's input, in a valid execution order.
    after: tuple[OpGraph, ...] = ()  # All other sides, in a valid execution order.

    @property
    def sides(self) -> tuple[OpGraph, ...]:
        """All sides, in a valid execution order; the backbone runs between `before` and `after`."""
        return (*self.before, *self.after)


def is_tap(op: Op) -> bool:
    """Return whether an operator of a backbone computes a tap."""
    return op.tags.get(TAP) == "true"


@memoised
def backbone_of(graph: OpGraph) -> Backbone:
    """Return the backbone of a network; the whole network if it has one input and one output."""
    if len(graph.inputs) == len(graph.outputs) == 1:
        return Backbone(graph)
    names = _chain(graph)
    inside = set(names[1:])
    outside = [op for op in graph.ops if op.kind != "input" and op.name not in inside]
    read = {name for op in outside for name in op.inputs} | set(graph.outputs)
    taps = {name: {TAP: "true"} for name in names if name in read}
    ops = [Op(names[0], "input", attrs={"shape": graph.by_name[names[0]].shape}, tags=taps.get(names[0], {}))]
    ops += [replace(op, tags={**op.tags, **taps.get(op.name, {})}) for op in map(graph.by_name.__getitem__, names[1:])]
    needed = cone(graph, names[:1])
    before, after = (_side_parts(graph, [op for op in outside if (op.name in needed) is early], inside) for early in (True, False))
    sides = [
        part_graph(graph, f"side{number}", part, operators_read_outside(graph, part))
        for number, part in enumerate([*before, *after], start=1)
    ]
    return Backbone(OpGraph.build(graph.name, ops, names[-1]), tuple(sides[: len(before)]), tuple(sides[len(before) :]))


def operators_read_outside(graph: OpGraph, ops: Sequence[Op]) -> list[str]:
    """Return the names of the operators in `ops` whose output an operator outside of `ops` reads, or the network returns."""
    inside = {op.name for op in ops}
    return [op.name for op in ops if op.name in graph.outputs or any(reader not in inside for reader in graph.consumers[op.name])]


def part_graph(graph: OpGraph, name: str, ops: Sequence[Op], ends: Collection[str]) -> OpGraph:
    """Return a separate graph of some operators; its inputs are tensors from outside, its outputs are `ends`."""
    inside = {op.name for op in ops}
    reads = dict.fromkeys(source for op in ops for source in op.inputs if source not in inside)
    entries = [Op(source, "input", attrs={"shape": graph.by_name[source].shape}) for source in reads]
    return OpGraph.build(name, [*entries, *ops], [op.name for op in ops if op.name in ends])


def _chain(graph: OpGraph) -> list[str]:
    """Return the backbone's input and operators, in order: the chain with most multiply-accumulates whose taps are cut points."""
    best: tuple[tuple[int, int], list[str]] | None = None
    macs = {op.name: graph.op_macs(op) for op in graph.ops}
    for end in graph.ops:
        readers = graph.consumers[end.name]
        merges = len(readers) == 1 and len(set(graph.by_name[readers[0]].inputs)) > 1
        if end.kind == "input" or not (merges or len(readers) != 1 or end.name in graph.outputs):
            continue
        above = cone(graph, [end.name])
        arriving = {name for op in above for name in graph.by_name[op].inputs}
        inside = [op for op in graph.ops if op.name in above or op.name in arriving]
        cuts, names = cut_candidates(inside), [op.name for op in inside]
        chain = names[names.index(cuts[0]) :]
        members = set(chain[1:])
        read = {name for op in graph.ops if op.name not in members for name in op.inputs} | set(graph.outputs)
        if members and members & read <= set(cuts):
            value = (sum(macs[name] for name in members), len(members))
            if best is None or value > best[0]:
                best = value, chain
    if best is None:
        problem = f"`{graph.name}` has no operator that computes with one tensor alone, so there is nothing to divide"
        raise StretchError(problem, "give a network with layers")
    return best[1]


def _side_parts(graph: OpGraph, ops: Sequence[Op], backbone: set[str]) -> list[list[Op]]:
    """Return the operators outside the backbone as parts that each run undivided.

    The operators of a part are connected, contribute to the same outputs, and wait for the same tensor of the backbone.
    """
    reaches = {op.name: {op.name} & set(graph.outputs) for op in graph.ops}
    for op in reversed(graph.ops):
        for name in op.inputs:
            reaches[name] |= reaches[op.name]
    latest: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    names = {op.name for op in ops}
    for op in ops:
        waits = [graph.position[name] if name in backbone else latest.get(name, -1) for name in op.inputs]
        latest[op.name] = max(waits, default=-1)
        for name in op.inputs:
            same = name in names and reaches[name] == reaches[op.name]
            if same and latest[name] == latest[op.name]:
                pairs.append((name, op.name))
    groups = [[graph.by_name[name] for name in group] for group in components(latest, pairs)]
    of = {op.name: number for number, group in enumerate(groups) for op in group}
    sources = [{of[name] for op in group for name in op.inputs if name in of} - {number} for number, group in enumerate(groups)]
    groups = [groups[number] for number in stable_order(dict(enumerate(sources)))]
    if len(groups) <= MAX_SIDES:
        return groups
    # too many parts: join neighbours
    bounds = [round(i * len(groups) / MAX_SIDES) for i in range(MAX_SIDES + 1)]
    return [[op for group in groups[a:b] for op in group] for a, b in pairwise(bounds)]


#: Number of equal parts for a network whose blocks all have one shape.
EQUAL_PARTS = 4


def find_stem_end(graph: OpGraph) -> str:
    """Return the stem's end: the start of a first block that changes the shape, else the first weighted operator and its weightless followers."""
    first_weighted = next((op for op in graph.ops if not kind_of(op.kind).weightless), None)
    if first_weighted is None:
        return graph.input.name
    cuts = cut_points(graph)
    after = next((c for c in cuts if graph.position[c] >= graph.position[first_weighted.name]), graph.output)
    stem = push_past_weightless(graph, after)
    block = next((r for r in regions(graph) if is_block(graph, r)), None)
    if block is not None and graph.position[block.start] > graph.position[stem]:
        start, end = graph.by_name[block.start], graph.by_name[block.end]
        between = graph.ops[graph.position[stem] + 1 : graph.position[block.start] + 1]
        if start.shape != end.shape or any(kind_of(op.kind).stated for op in between):
            return block.start
    return stem


def find_meeting_points(graph: OpGraph) -> list[str]:
    """Return the ends of the stages, in order; the stem's end is not among them.

    Rule: consecutive blocks of one (resolution, channels) form a run. The end of a run, moved past weightless operators, is a
    boundary. A resolution without a run ends at its last narrowest cut point. A network of one long run is divided into parts of equal cost.
    """
    maps = feature_maps(graph)
    cuts = [name for name in cut_points(graph) if name in maps or len(graph.by_name[name].shape) != 4]
    stem = find_stem_end(graph)
    ends_of = [r.end for r in regions(graph) if is_block(graph, r) and r.end in cuts and graph.position[r.end] > graph.position[stem]]
    blocks = [graph.by_name[name] for name in ends_of]
    runs = [list(run) for _, run in groupby(blocks, key=lambda op: (resolution(op), width(op.shape)))]
    ends = _equal_parts(graph, runs[0]) if len(runs) == 1 and len(runs[0]) > EQUAL_PARTS else [run[-1].name for run in runs]
    with_run = {resolution(op) for run in runs for op in run}
    for size, group in groupby((graph.by_name[c] for c in cuts if graph.position[c] > graph.position[stem]), key=resolution):
        members = list(group)
        if size in with_run or size == (1, 1) or not any(not kind_of(op.kind).weightless for op in members):
            continue
        narrowest = min(width(op.shape) for op in members)
        ends.append([op for op in members if width(op.shape) == narrowest][-1].name)
    pushed = {push_past_weightless(graph, name) for name in ends}
    return sorted((p for p in pushed if graph.position[p] > graph.position[stem]), key=graph.position.__getitem__)


def _equal_parts(graph: OpGraph, run: list[Op]) -> list[str]:
    """Return the block ends that divide one long run into parts of about equal cost."""
    costs = list(itertools.accumulate(graph.op_macs(op) for op in graph.ops[: graph.position[run[-1].name] + 1]))
    targets = [costs[-1] * part / EQUAL_PARTS for part in range(1, EQUAL_PARTS + 1)]
    ends = (min(run, key=lambda op: abs(costs[graph.position[op.name]] - target)).name for target in targets)
    return list(dict.fromkeys(ends))


#: Operator at the start of a branch.
EntryKind = Literal["none", "slice", "project"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators after cut point `start` up to and including cut point `end`; the object caches derived facts."""

    name: str  # ``stem``, ``s1``, …, ``head``.
    start: str  # Name of the input tensor.
    end: str  # Name of the output tensor.
    graph: OpGraph  # Graph of the segment alone; the input operator is called `start`.
    #: Whether it may have several branches: its input and output are feature maps, and it is neither stem nor head.
    branchable: bool
    rewrites: tuple[str, ...] = ()  # Rewrites that `rewrite_segment` applied.

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The segment's blocks, in order; a unit is not removable if this would change the pieces of the backbone, as in Inception."""
        blocks = find_blocks(self.graph)
        last, runs = {block.run: self._backbone(block.end) for block in blocks}, [None, *(block.run for block in blocks)]
        stays = [
            block.run == before and self._backbone(block.start) != last[block.run] for block, before in zip(blocks, runs, strict=False)
        ]
        return tuple(replace(block, removable=block.removable and not stay) for block, stay in zip(blocks, stays, strict=True))

    def _backbone(self, name: str) -> tuple[tuple[int, bool], ...]:
        """Return the number of channels of each piece of a tensor, and whether the piece comes from the input."""
        groups = self.channels
        return tuple((groups.units[g] * per, g == groups.input_group) for g, per in groups.pieces[name])

    @cached_property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @cached_property
    def min_depth(self) -> int:
        """Number of blocks that are never removed."""
        return sum(not block.removable for block in self.blocks)

    @cached_property
    def width(self) -> int:
        """Number of channels of its output."""
        return width(self.graph.by_name[self.end].shape)

    @property
    def widest(self) -> float:
        """Maximum ratio of a branch's channels to the original's."""
        return HALF_WIDTH if HALF_RESOLUTION in self.rewrites else 1.0

    @cached_property
    def in_width(self) -> int:
        """Number of channels of its input."""
        return width(self.graph.input.shape)

    @property
    def tapped(self) -> bool:
        """Whether a side reads its end or the network returns it, so that its number of channels is fixed."""
        return is_tap(self.graph.by_name[self.end])

    @cached_property
    def channels(self) -> ChannelGroups:
        """Channel groups of the whole segment."""
        return channel_groups(self.graph)

    @cached_property
    def fixed_width(self) -> bool:
        """Whether the output cannot be scaled, because the segment contains a frozen group."""
        return any(group in self.channels.frozen for group, _ in self.channels.pieces[self.end])

    @cached_property
    def passes_input(self) -> bool:
        """Whether the output has the channels of the input, because the segment starts with an identity skip."""
        pieces = self.channels.pieces[self.end]
        return len(pieces) == 1 and pieces[0][0] == self.channels.input_group

    @cached_property
    def dense_input(self) -> bool:
        """Whether only dense layers read its input, so that a `concat` join before it may change the number of channels."""
        tied = {name for name, pieces in self.channels.pieces.items() if any(g == self.channels.input_group for g, _ in pieces)}
        return (
            not self.passes_input
            and self.channels.input_group not in self.channels.frozen
            and all(self.graph.by_name[name].kind not in ("add", "mul", "concat", "conv") for name in tied)
        )

    @cached_property
    def rewires(self) -> bool:
        """Whether only dense convolutions read its input, so that another input width only changes their kernels."""
        readers = (self.graph.by_name[name] for name in self.graph.consumers[self.start])
        return all(op.kind == "conv" and op.attrs["groups"] == 1 for op in readers) and not self.passes_input

    def entry(self, width: int, arriving: int) -> EntryKind:
        """Return the entry of a branch with output width `width` for `arriving` input channels."""
        if not self.passes_input:
            return "none"
        # a grouped convolution may write several channels per input channel
        ((_, written),), ((_, read), *_) = self.channels.pieces[self.graph.output], self.channels.pieces[self.graph.input.name]
        return "none" if width * read // written == arriving else "project"


def split_segments(graph: OpGraph, meeting: Sequence[str] | None = None) -> list[Segment]:
    """Return the backbone of a graph as stem, segments and head.

    Args:
        meeting: Names of meeting points, any cut points in order; by default
            the result of `find_meeting_points`. Taps are always meeting points.
    """
    graph = backbone_of(graph).graph
    cuts = cut_points(graph)
    points = list(meeting) if meeting is not None else find_meeting_points(graph)
    for point in points:
        if point not in cuts:
            raise UnknownNameError.among("cut point", point, cuts)
    order = {name: i for i, name in enumerate(cuts)}
    if [order[p] for p in points] != sorted({order[p] for p in points}):
        raise StretchError("meeting points must differ and follow the order of the network", "list them from the input to the output")
    ends = {graph.input.name, graph.output}
    points = [name for name in cuts if name in points or (is_tap(graph.by_name[name]) and name not in ends)]
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
    """Return the segment between two cut points, the same object for each call, so that its cached facts are reused."""
    cuts = cut_points(graph)
    for point in (start, end):
        if point not in cuts:
            raise UnknownNameError.among("cut point", point, cuts)
    if graph.position[start] >= graph.position[end]:
        raise StretchError(f"segment `{name}` ends at `{end}`, which is not after its start `{start}`")
    source = Op(start, "input", attrs={"shape": graph.by_name[start].shape})
    inside = graph.ops[graph.position[start] + 1 : graph.position[end] + 1]
    piece = OpGraph.build(f"{graph.name}.{name}", [source, *inside], end)
    maps = feature_maps(graph)
    return Segment(name, start, end, piece, branchable=start in maps and end in maps and name not in ("stem", "head"))


@memoised
def rewrite_segment(segment: Segment, names: tuple[str, ...]) -> Segment:
    """Return a segment with inexact rewrites applied; the same segment if nothing changes, or if its depth or width would change."""
    graph, done = apply_rewrites(segment.graph, inexact_rewrites(names))
    if not done:
        return segment
    rewritten = replace(segment, graph=OpGraph.build(graph.name, graph.ops, graph.outputs), rewrites=done)
    same = (rewritten.depth, rewritten.width, rewritten.min_depth) == (segment.depth, segment.width, segment.min_depth)
    return rewritten if same else segment


def join_kinds(segment: Segment, following: Segment | None) -> tuple[JoinKind, ...]:
    """Return the joins that may end `segment`, given the segment that follows it."""
    any_width = following is not None and following.dense_input and not segment.fixed_width and not segment.tapped
    return joins_that(lambda join: not join.exact and (any_width or not join.widens))


# Parts: the pieces of stages for which bands of rows and branches of channels are planned.
#
# Scaled copies meet at the ends of stages. Bands of rows are exact wherever they meet, and fewer operators between two meetings mean
# a smaller halo. So bands may also meet within a stage, between its blocks.


@memoised
def divide(graph: OpGraph, stage: Segment, clean: frozenset[str], every: bool = False, vectors: bool = False) -> list[Segment]:
    """Return the parts of a stage between cut points that no kernel spans: its blocks, and the operators after its last tensor with rows.

    With `every` it is also divided within blocks; with `vectors` also before each linear layer but the first.
    """
    cuts = [stage.graph.by_name[name] for name in cut_points(stage.graph)]
    tall = [op.name for op in cuts if len(op.shape) == 4 and height(op.shape) > 1]
    layers = [op for op in stage.graph.ops if op.kind == "linear"] if vectors else []
    layer_inputs = [op.inputs[0] for op in layers[1:] if op.inputs[0] in cut_points(stage.graph)]
    wanted = tall if every else (*(block.end for block in stage.blocks), *tall[-1:])
    inside = clean.intersection((*wanted, *layer_inputs)) - {stage.start, stage.end}
    inner = sorted(inside, key=stage.graph.position.__getitem__)
    if not inner:
        return [stage]
    bounds = [stage.start, *inner, stage.end]
    return [cut_segment(graph, f"{stage.name}_{i}", a, b) for i, (a, b) in enumerate(itertools.pairwise(bounds), start=1)]


def clean_cuts(graph: OpGraph, launched: Sequence[Sequence[Kernel]]) -> frozenset[str]:
    """Return the cut points that no kernel spans: each kernel only computes operators on one side of them."""
    positions = [[graph.position[name] for name in kernel.ops] for kernels in launched for kernel in kernels if kernel.ops]
    spans = [(min(position), max(position)) for position in positions]
    return frozenset(name for name in cut_points(graph) if not any(first <= graph.position[name] < last for first, last in spans))


def mixing_operators(graph: OpGraph) -> list[str]:
    """Return the names of operators for which every output row needs all rows of an input."""
    return [op.name for op in graph.ops if op.inputs and kind_of(op.kind).rows is all_rows and max(map(height, graph.input_shapes(op))) > 1]
