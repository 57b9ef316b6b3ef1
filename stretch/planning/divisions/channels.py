"""Branches of channels: each computes some channels of a segment's output, or of a hidden tensor, whose projections then add up.

*Output channels* need only their filters of the last convolution or linear layer; concatenated, they are the output.
*Hidden channels* need their filters of the expanding layer and their columns of the projecting layer,
so that each branch has a partial sum. Only the first branch adds terms that count once (a bias, a batch norm's shift, a skip).
If a ReLU or another operator that needs the whole sum follows, the part is divided up to the sum, and the host computes the rest.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import lcm, prod

import numpy as np

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import JoinKind
from predictors.operators import kind_of
from predictors.shapes import width
from predictors.slices import Additive, Channels, full_range
from stretch.planning.cost.branch import BranchCost, Floats, SegmentOptions
from stretch.planning.design.branch_design import Division, Piece, SegmentDesign, Share, Taken, check_ranges, range_of
from stretch.planning.network.segments import Segment, cone, cut_points, cut_segment, memoised
from stretch.planning.search.parts import Divisible, PartSpace, RangeCandidates, Split, SplitBranches, Structure, part_costs, structure

#: Name of the operator that cuts the channels of a branch out of its input.
ENTRY_CHANNELS = "entry_channels"
#: Join of branches of output channels, and join of branches of hidden channels.
OUTPUT, HIDDEN = "channels", "partial_sums"


def find_hidden(graph: OpGraph) -> tuple[str, str, tuple[str, ...]]:
    """Return a segment's hidden tensor, the convolution or linear layer that mixes its channels, and the operators after that layer.

    The layer is the last projection; at an addition, follow the operand with most multiply-accumulates. Each operator after it may be
    applied to the terms of a sum.
    """
    tail: list[str] = []
    op = graph.by_name[graph.output]
    # go back to an operator that sums over all channels of its input, if these can be divided
    while not (op.inputs and kind_of(op.kind).dense(op.attrs) and len(op.shape) in (2, 4) and width(graph.input_shapes(op)[0]) > 1):
        if op.kind == "add":
            operand = max(op.inputs, key=lambda name: sum(graph.op_macs(graph.by_name[item]) for item in cone(graph, [name])))
        elif not op.inputs:
            problem = f"`{graph.name}` ends without a convolution or linear layer that projects hidden channels"
            raise StretchError(problem, 'divide its output by join = "channels", or let it stay whole')
        elif kind_of(op.kind).additive is None:
            problem = f"operator `{op.name}` ({op.kind}) needs the whole sum of its input, so no hidden channels are divided before it"
            raise StretchError(problem, f'let the segment end before `{op.name}`, or divide its output by join = "channels"')
        else:
            operand = op.inputs[0]
        tail.append(op.name)
        op = graph.by_name[operand]
    if _is_read_beside(graph, op.name, tail):
        raise StretchError(f"the result of `{op.name}` ({op.kind}) is read before its sum is complete", "let the segment stay whole")
    return op.inputs[0], op.name, tuple(reversed(tail))


def _is_read_beside(graph: OpGraph, projection: str, tail: Collection[str]) -> bool:
    """Return whether a useful operator outside the tail reads a sum, or an operator of the tail reads two sums."""
    sums = {projection, *tail}
    if any(sum(arguments in sums for arguments in graph.by_name[name].inputs) != 1 for name in tail):
        return True
    useful = cone(graph, [graph.output])
    return any(reader in useful and reader not in sums for name in sums - {graph.output} for reader in graph.consumers[name])


def divided_tensor(graph: OpGraph, *, hidden: bool) -> str:
    """Return the name of the tensor whose channels branches divide: the output, or the hidden tensor."""
    fixed = next((op for op in graph.ops if kind_of(op.kind).stated), None)
    if fixed is not None:
        reason = f"operator `{fixed.name}` ({fixed.attrs.get('variant', fixed.kind)}) only states the shape of what it computes, not its channels"
        raise StretchError(reason, "let the segment stay whole, or let it start or end elsewhere")
    name = find_hidden(graph)[0] if hidden else graph.output
    inside, whole = _computed_in_part(graph, name)
    mixer = _mixer(graph, inside, whole)
    if mixer is not None:
        reason = f"operator `{mixer.name}` ({mixer.kind}) mixes the channels of `{name}` that branches would divide"
        raise StretchError(reason, "let the segment stay whole, or let it start or end elsewhere")
    return name


def channel_step(graph: OpGraph, tensor: str) -> int:
    """Return the number of inseparable channels: of a convolution group, an attention head, or the pixels of a flattened image."""
    one = Channels(0, 1)
    return lcm(*[len(graph.op_slice(graph.by_name[name], one).computes) for name in _computed_in_part(graph, tensor)[0]])


def is_between_groups(graph: OpGraph, tensor: str, channels: Channels) -> bool:
    """Return whether a range of a tensor's channels begins and ends at borders of groups, so that no other channels are computed."""
    partly, _ = _computed_in_part(graph, tensor)
    need = needed_channels(graph, {tensor: channels})
    return all(graph.op_slice(graph.by_name[name], need[name]).computes == need[name] for name in partly if name in need)


def needed_channels(graph: OpGraph, start: Mapping[str, Channels]) -> dict[str, Channels]:
    """Return the channels of every tensor that the channels in `start` need, by name; unneeded tensors are left out."""
    need = dict(start)
    for op in reversed(graph.ops):
        channels = need.get(op.name)
        if channels is None or not op.inputs:
            continue
        for name, reads in zip(op.inputs, graph.op_slice(op, channels).reads, strict=True):
            if len(reads):
                need[name] = need[name].union(reads) if name in need else reads
    return need


def _computed_in_part(graph: OpGraph, tensor: str) -> tuple[set[str], set[str]]:
    """Return the operators that a branch computes in part, and the tensors that these operators read in full."""
    partly: set[str] = set()
    whole: set[str] = set()
    pending = [tensor]
    while pending:
        op = graph.by_name[pending.pop()]
        if op.name in partly or not op.inputs:
            continue
        partly.add(op.name)
        for name, shape, reads in zip(op.inputs, graph.input_shapes(op), graph.op_slice(op, Channels(0, 1)).reads, strict=True):
            if len(reads) < width(shape):
                pending.append(name)
            else:
                whole.add(name)
    return partly, whole


def _mixer(graph: OpGraph, partly: Collection[str], whole: Iterable[str]) -> Op | None:
    """Return the first operator whose inputs every branch would have to compute in full; None if none exists."""
    depends = set(partly)
    in_full = cone(graph, whole)
    for op in graph.ops:
        if (op.name not in depends and op.name not in in_full) or not op.inputs:
            continue
        part = graph.op_slice(op, Channels(0, 1))
        if op.name in partly and width(op.shape) > 1 and part.computes == full_range(op.shape):
            return op
        reads = zip(op.inputs, graph.input_shapes(op), part.reads, strict=True)
        if any(name in depends and len(read) == width(shape) for name, shape, read in reads):
            return op
        if any(name in depends for name in op.inputs):
            depends.add(op.name)
    return None


def channel_part(graph: OpGraph, name: str, channels: Channels, *, hidden: bool) -> Piece:
    """Return the branch that computes some channels of a segment's output, or the partial sum of some hidden channels."""
    tensor = divided_tensor(graph, hidden=hidden)
    if not 0 <= channels.start < channels.stop <= width(graph.by_name[tensor].shape):
        raise StretchError(
            f"`{tensor}` has {width(graph.by_name[tensor].shape)} channels, not channels {channels.start} to {channels.stop}"
        )
    if hidden:
        return _partial_sum(graph, name, channels)
    builder = _Builder(graph, needed_channels(graph, {tensor: channels}))
    for op in graph.ops:
        builder.add(op)
    return builder.part(name)


def _partial_sum(graph: OpGraph, name: str, channels: Channels) -> Piece:
    """Return the branch of some hidden channels; the first branch has all terms that are added once."""
    first, (hidden, projection, tail) = channels.start == 0, find_hidden(graph)
    start, sums = {hidden: channels}, (projection, *tail)
    for item in tail if first else ():
        for source in graph.by_name[item].inputs:
            if source not in sums:
                started = start.get(source)
                needed = full_range(graph.by_name[source].shape)
                start[source] = needed if started is None else needed.union(started)
    builder = _Builder(graph, needed_channels(graph, start))
    for op in graph.ops:
        if op.name == projection:
            builder.project(op, channels, first=first)
        elif op.name in tail:
            builder.add_term(op, sums, first=first)
        else:
            builder.add(op)
    return builder.part(name)


@dataclass
class _Builder:
    graph: OpGraph  # The segment.
    need: Mapping[str, Channels]  # Channels that the branch needs of every tensor; unneeded tensors are left out.
    ops: list[Op] = field(default_factory=list)
    taken: dict[str, Taken] = field(default_factory=dict)
    #: Name of the tensor that holds the needed channels of each original tensor.
    reads: dict[str, str] = field(default_factory=dict)

    def add(self, op: Op) -> None:
        """Add an operator with the needed channels of its output."""
        needed = self.need.get(op.name)
        if not op.inputs:
            self._put(op)
            # `part` refuses a branch that only has inputs and slices
            if needed is not None:
                self.reads[op.name] = self._slice(ENTRY_CHANNELS, op.name, full_range(op.shape), needed)
        elif needed is not None:
            part = self.graph.op_slice(op, needed)
            inputs = [self._input_tensor(op, at, read) for at, read in enumerate(part.reads) if len(read)]
            if len(inputs) < kind_of(op.kind).min_inputs:
                # only one input of a concatenation is left; an operator passes it on, because its int8 tensor has a separate scale
                self._put(replace(op, kind="slice", attrs={"start": 0, "stop": len(needed)}), inputs)
                return
            self._put(replace(op, attrs=part.attrs), inputs, Taken(part.computes, width(op.shape)))
            self.reads[op.name] = self._slice(f"{op.name}_channels", op.name, part.computes, needed)

    def project(self, op: Op, channels: Channels, *, first: bool) -> None:
        """Add the projection of some hidden channels; its bias counts once."""
        part = replace(op, attrs={**op.attrs, "bias": bool(op.attrs["bias"]) and first})
        self._put(part, [self._input_tensor(op, 0, channels)], Taken(full_range(op.shape), width(op.shape), channels))

    def add_term(self, op: Op, sums: Collection[str], *, first: bool) -> None:
        """Add an operator after the projection, applied to a term of the sum."""
        additive = kind_of(op.kind).additive or Additive(once=True)
        if additive.once and not first:
            self.reads[op.name] = self.reads[next(name for name in op.inputs if name in sums)]
            return
        inputs = [
            self.reads[name] if name in sums else self._input_tensor(op, at, full_range(shape))
            for at, (name, shape) in enumerate(zip(op.inputs, self.graph.input_shapes(op), strict=True))
        ]
        self._put(op, inputs, Taken(full_range(op.shape), width(op.shape), zeros=() if first else additive.offsets))

    def _put(self, op: Op, inputs: Sequence[str] = (), taken: Taken | None = None) -> None:
        self.ops.append(Op(op.name, op.kind, tuple(inputs), op.attrs, tags=op.tags))
        self.reads[op.name] = op.name
        if taken is not None:
            self.taken[op.name] = taken

    def part(self, name: str) -> Piece:
        output = self.reads[self.graph.output]
        if {op.kind for op in self.ops} <= {"input", "slice"}:
            raise StretchError(f"`{name}` would compute nothing: its channels are handed on as they arrive", "give it others, too")
        return Piece(OpGraph.build(name, self.ops, output), self.taken)

    def _input_tensor(self, op: Op, at: int, needed: Channels) -> str:
        """Return the name of a tensor with the channels that an operator needs of input number `at`."""
        source = op.inputs[at]
        return self._slice(f"{op.name}_channels{at}", self.reads[source], self.need[source], needed)

    def _slice(self, name: str, source: str, present: Channels, needed: Channels) -> str:
        """Return the name of a tensor with the needed channels: the source if it has no others, else a new slice."""
        if needed == present:
            return source
        self.ops.append(Op(name, "slice", (source,), {"start": needed.start - present.start, "stop": needed.stop - present.start}))
        return name


#: Maximum multiply-accumulates that the two halves of a part repeat, as a share of the part's.
MAX_REPEATED = 0.5


@dataclass(frozen=True)
class _Tensor:
    """A divisible tensor of a part, and the device-independent facts on ranges of its channels."""

    join: JoinKind  # Join of the branches.
    segment: Segment  # The part, or its operators before the tail.
    tail: Segment | None  # Operators that need the whole sum; None without such operators.
    channels: int  # Number of its channels.
    step: int  # Number of inseparable channels.

    def ranges(self, split: Split, unit: int) -> list[Channels]:
        return [Channels(*pair) for pair in pairwise((0, *(place * unit for place in split), self.channels))]

    @memoised
    def graph(self, channels: Channels) -> OpGraph | None:
        """Return the graph of some channels; None if there is nothing to compute."""
        try:
            return channel_part(self.segment.graph, self.segment.name, channels, hidden=self.join == HIDDEN).graph
        except StretchError:
            return None


def _tensors(graph: OpGraph, part: Segment) -> list[_Tensor]:
    """Return the divisible tensors of a part whose halves do not repeat too many multiply-accumulates."""
    tensors = []
    for join in (OUTPUT, HIDDEN):
        segment, tail = _sections(graph, part, join)
        try:
            name = divided_tensor(segment.graph, hidden=join == HIDDEN)
        except StretchError:
            continue
        tensor = _Tensor(join, segment, tail, width(segment.graph.by_name[name].shape), channel_step(segment.graph, name))
        middle, macs = tensor.channels // tensor.step // 2, segment.graph.macs
        if not macs or not middle or not is_between_groups(segment.graph, name, Channels(0, middle * tensor.step)):
            continue
        halves = [half for channels in tensor.ranges((middle,), tensor.step) if (half := tensor.graph(channels)) is not None]
        if len(halves) == 2 and sum(half.macs for half in halves) / macs - 1 <= MAX_REPEATED:
            tensors.append(tensor)
    return tensors


class _ChannelCandidates(RangeCandidates):
    def __init__(self, parts: PartSpace) -> None:
        super().__init__(parts.space, DIVISION.word)
        self.parts = parts
        self._costs: dict[tuple[int, Channels, str], BranchCost] = {}

    def candidates(self) -> Iterator[tuple[int, SegmentOptions]]:
        """Yield options for each divisible part on each sequence of processors, with the index of the part."""
        tensors, host = self.space.costs.cache_of("divided tensors"), self.space.costs.host
        structures = [structure(part.graph) for part in self.parts.parts]
        divided_parts: dict[Structure, list[Divisible]] = {}
        for index, (part, key) in enumerate(zip(self.parts.parts, structures, strict=True)):
            if key not in tensors:
                tensors[key] = _tensors(self.parts.graph, part)
            if key not in divided_parts:
                usable = [tensor for tensor in tensors[key] if tensor.tail is None or host in self.space.processors]
                divided_parts[key] = [self._divisible(part, self.parts.alone_ms(index, index), tensor) for tensor in usable]
        options: dict[int, list[SegmentOptions]] = {}
        for divided_part, candidate in self.options([divided_part for parts in divided_parts.values() for divided_part in parts]):
            options.setdefault(id(divided_part), []).append(self._with_tail(divided_part.of.tail, candidate))
        for index, key in enumerate(structures):
            for candidate in (candidate for divided_part in divided_parts[key] for candidate in options.get(id(divided_part), ())):
                segment, tail = _sections(self.parts.graph, self.parts.parts[index], candidate.join)
                yield index, self.space.apply_rules(replace(candidate, segment=segment, tail=tail))

    def _divisible(self, part: Segment, alone_ms: Sequence[float], tensor: _Tensor) -> Divisible:
        costs, tail = self.space.costs, tensor.tail
        after_ms = costs.whole(tail, costs.host).ms if tail is not None else 0.0
        # in sums the first processor adds the terms that count once
        symmetric = tensor.join != HIDDEN
        return Divisible(tensor, tensor.join, lambda: tensor.segment, part, prod(part.graph.input.shape), alone_ms, after_ms, symmetric)

    def _with_tail(self, tail: Segment | None, options: SegmentOptions) -> SegmentOptions:
        """Return the options with the time and numbers of the tail on the host added."""
        if tail is None:
            return options
        host, cost = self.space.costs.host, self.space.costs.whole(tail, self.space.costs.host)

        def busy() -> dict[str, Floats]:
            current = options.busy()
            return {**current, host: current.get(host, np.zeros(len(options.macs))) + cost.ms}

        ms, macs, params = options.ms + cost.ms, options.macs + cost.macs, options.params + cost.params
        return replace(options, tail=tail, ms=ms, macs=macs, params=params, busy=busy)

    def _unit(self, tensor: _Tensor, order: Sequence[str]) -> int:
        """Return the number of channels per step; the remainder after the last whole step belongs to the last branch."""
        return lcm(tensor.step, *(self.space.costs.align(name) for name in order))

    def units(self, divisible: Divisible, order: Sequence[str]) -> int:
        tensor: _Tensor = divisible.of
        return -(-tensor.channels // self._unit(tensor, order))

    def branches(self, order: Sequence[str], requests: Sequence[tuple[Divisible, Sequence[Split]]]) -> list[SplitBranches]:
        requested: list[tuple[_Tensor, dict[Split, list[Channels]]]] = []
        costs = self.space.costs
        rounded = any(costs.precision.get(name) == "int8" for name in order)
        for divisible, splits in requests:
            # export keeps a partial sum in fp32, so it would take longer than predicted in int8
            allowed, tensor = () if rounded and divisible.join == HIDDEN else splits, divisible.of
            ranges = {split: tensor.ranges(split, self._unit(tensor, order)) for split in allowed}
            requested.append((tensor, {split: parts for split, parts in ranges.items() if None not in map(tensor.graph, parts)}))
        for at, processor in enumerate(order):
            graphs = {(id(tensor), ranges[at]): tensor.graph(ranges[at]) for tensor, divided in requested for ranges in divided.values()}
            missing = {key: graph for key, graph in graphs.items() if graph is not None and (*key, processor) not in self._costs}
            shares = {key: (key[1].start, key[1].stop) for key in missing}
            self._costs |= {(*key, processor): cost for key, cost in part_costs(self.space, processor, missing, shares).items()}
        return [
            {split: [self._costs[id(tensor), *pair] for pair in zip(ranges, order, strict=True)] for split, ranges in divided.items()}
            for tensor, divided in requested
        ]


@memoised
def _sections(graph: OpGraph, part: Segment, join: JoinKind) -> tuple[Segment, Segment | None]:
    """Return the segment of a part that is divided, and its tail: weightless operators that need the whole sum, or None."""
    if join != HIDDEN:
        return part, None
    for end in reversed(cut_points(part.graph)[1:]):
        following = part.graph.ops[part.graph.position[end] + 1 :]
        if any(not kind_of(op.kind).weightless for op in following):
            break
        head = part if end == part.end else cut_segment(graph, part.name, part.start, end)
        try:
            find_hidden(head.graph)
        except StretchError:
            continue
        return head, None if head is part else cut_segment(graph, f"{part.name}_rest", end, part.end)
    return part, None


class _ChannelRanges(Division):
    kind, joins, what, weights, vectors = "channels", (OUTPUT, HIDDEN), "some channels", "slices", True

    def check(self, segment: Segment, design: SegmentDesign, shares: Sequence[Share]) -> None:
        """Refuse ranges that do not cover every channel once and in order, or that end within a group or an aligned slice."""
        place, hidden = f"segment `{segment.name}`", design.join == HIDDEN
        try:
            tensor = divided_tensor(segment.graph, hidden=hidden)
        except StretchError as error:
            raise StretchError(f"{place} cannot be divided by {design.join}: {error.message}", error.hint) from error
        noun = f"{'hidden ' if hidden else ''}channels"
        count = width(segment.graph.by_name[tensor].shape)
        ranges = check_ranges(place, self, design.names, shares, count, noun, f"`{tensor}`")
        for branch, (start, stop) in zip(design.branches, ranges, strict=True):
            subject = f"{place} has {noun} {start} to {stop} on {branch.processor}"
            if not is_between_groups(segment.graph, tensor, Channels(start, stop)):
                step = channel_step(segment.graph, tensor)
                raise StretchError(f"{subject}, which divide a group", f"{noun} of `{tensor}` are divided in steps of {step}")
            if branch is not design.branches[-1] and (stop - start) % branch.align:
                raise StretchError(
                    f"{subject}, which computes {branch.align} at a time", f"give it a multiple of {branch.align}, or a smaller align"
                )

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        return [
            channel_part(graph, name, Channels(*range_of(share)), hidden=join == HIDDEN) for name, share in zip(names, shares, strict=True)
        ]

    def candidates(self, parts: PartSpace) -> list[tuple[int, SegmentOptions]]:
        return list(_ChannelCandidates(parts).candidates())

    def divisible_tensors(self, graph: OpGraph) -> set[str]:
        """Return the names of the divisible dimensions: ``channels`` of the output, ``hidden`` channels, or ``heads`` of attention."""
        words = set()
        for hidden in (True, False):
            with suppress(StretchError):
                tensor = divided_tensor(graph, hidden=hidden)
                if channel_step(graph, tensor) < width(graph.by_name[tensor].shape):
                    part = needed_channels(graph, {tensor: Channels(0, 1)})
                    attention_ops = [op for op in graph.ops if op.kind == "attention" and op.name in part]
                    heads = any(len(part[op.name]) < width(op.shape) for op in attention_ops)
                    words.add("heads" if heads and hidden else "hidden" if hidden else "channels")
        return words


DIVISION = _ChannelRanges()
