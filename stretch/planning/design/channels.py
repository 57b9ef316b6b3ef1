"""Branches of channels: some channels of a segment's output, or of a hidden tensor whose projection is then a sum.

A range of *output channels* is computed by the filters of the last convolution or
linear layer that write it, and side by side the ranges are the output. A range of
*hidden channels* is computed by its filters of the expanding layer and multiplied with its columns of the
projecting one; each branch then has a partial sum of the whole output, and the sum
of these is the output. What shifts a sum (a bias, the shift of a batch norm, a
skip) belongs to the branch of the first channels alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import join_of
from predictors.operators import kind_of
from predictors.slices import Additive, Channels, every, weight_rows, width
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.divisions import Hidden, channel_step, divided_tensor, find_hidden, is_between_groups, needed_channels
from stretch.planning.network.segments import Segment

#: The operator that cuts out of what arrives the channels that a branch reads.
ENTRY_CHANNELS = "entry_channels"


@dataclass(frozen=True)
class Taken:
    """What a branch of channels has of one operator's weights."""

    channels: Channels  # The output channels that it computes, of which each weight has a row, or a row for several.
    width: int  # Output channels of the whole operator.
    columns: Channels | None = None  # Of a projection, the channels that it reads; None where it reads all that there are.
    zeros: tuple[str, ...] = ()  # Weights that are zero, since another branch has them.

    def rows(self, count: int) -> Channels:
        """Its rows of a weight that has so many in the whole operator."""
        return weight_rows(self.channels, self.width, count)


@dataclass(frozen=True)
class ChannelPart:
    """A branch of channels."""

    graph: OpGraph  # Its operators; they have the names of the segment's.
    taken: Mapping[str, Taken]  # What it has of each operator's weights, by name.


def channel_part(graph: OpGraph, name: str, channels: Channels, *, hidden: bool) -> ChannelPart:
    """What computes some channels of a segment's output, or the part of its output that comes of some hidden channels.

    It begins with all that arrives, and with a cut where it reads some channels of it.
    """
    tensor = divided_tensor(graph, hidden=hidden)
    if not 0 <= channels.start < channels.stop <= width(graph.by_name[tensor].shape):
        raise StretchError(
            f"`{tensor}` has {width(graph.by_name[tensor].shape)} channels, not channels {channels.start} to {channels.stop}"
        )
    if hidden:
        return _partial_sum(graph, name, channels, find_hidden(graph))
    builder = _Builder(graph, needed_channels(graph, {tensor: channels}))
    for op in graph.ops:
        builder.add(op)
    return builder.part(name)


def _partial_sum(graph: OpGraph, name: str, channels: Channels, hidden: Hidden) -> ChannelPart:
    """The branch of some hidden channels; that of the first ones has everything that is added once."""
    first = channels.start == 0
    start = {hidden.tensor: channels}
    sums = (hidden.projection, *hidden.tail)
    for item in hidden.tail if first else ():
        for arguments in graph.by_name[item].inputs:
            if arguments not in sums:
                before = start.get(arguments)
                wanted = every(graph.by_name[arguments].shape)
                start[arguments] = wanted if before is None else wanted.union(before)
    builder = _Builder(graph, needed_channels(graph, start))
    for op in graph.ops:
        if op.name == hidden.projection:
            builder.project(op, channels, first=first)
        elif op.name in hidden.tail:
            builder.add_term(op, sums, first=first)
        else:
            builder.add(op)
    return builder.part(name)


def check_channels(segment: Segment, design: SegmentDesign) -> None:
    """Refuse a design whose branches do not compute every channel once, in order, and end where a group and an aligned slice end."""
    where, join = f"segment `{segment.name}`", join_of(design.join)
    if not join.channels:
        if any(b.channels is not None for b in design.branches):
            raise StretchError(
                f"{where} has branches of some channels, which `{design.join}` does not join", 'set join = "channels" or "partial_sums"'
            )
        return
    try:
        tensor = divided_tensor(segment.graph, hidden=join.hidden)
    except StretchError as error:
        raise StretchError(f"{where} cannot be divided by {design.join}: {error.message}", error.hint) from error
    count, at = width(segment.graph.by_name[tensor].shape), 0
    what = f"{'hidden ' if join.hidden else ''}channels"
    for i, branch in enumerate(design.branches):
        if branch.channels is None:
            raise StretchError(
                f"{where} is joined by {design.join}, its branch on {branch.processor} does not say which {what} it computes",
                "give it channels = [first, behind the last]",
            )
        start, stop = branch.channels
        if start != at or stop <= start:
            raise StretchError(
                f"{where} has {what} {start} to {stop} on {branch.processor}, where those from {at} on are due",
                f"the branches follow each other from channel 0 to {count} of `{tensor}`, and none is empty",
            )
        at = stop
        if at > count:
            break
        if not is_between_groups(segment.graph, tensor, Channels(start, stop)):
            raise StretchError(
                f"{where} has {what} {start} to {stop} on {branch.processor}, which divide a group",
                f"{what} of `{tensor}` are divided in steps of {channel_step(segment.graph, tensor)}",
            )
        if i < len(design.branches) - 1 and (stop - start) % branch.align:
            raise StretchError(
                f"{where} has {stop - start} {what} on {branch.processor}, which computes {branch.align} at a time",
                f"give it a multiple of {branch.align}, or a smaller align",
            )
    if at != count:
        raise StretchError(f"{where} has branches up to channel {at}, `{tensor}` has {count} channels", "let the last branch end there")


@dataclass
class _Builder:
    """Puts the graph of a branch together, operator by operator."""

    graph: OpGraph  # The segment.
    need: Mapping[str, Channels]  # Channels of every tensor that the branch needs; those of no use are left out.
    ops: list[Op] = field(default_factory=list)
    taken: dict[str, Taken] = field(default_factory=dict)
    #: Where the channels that are needed of a tensor are.
    reads: dict[str, str] = field(default_factory=dict)

    def add(self, op: Op) -> None:
        """An operator, with the channels that are needed of its output."""
        wanted = self.need.get(op.name)
        if not op.inputs:
            self.ops.append(Op(op.name, op.kind, (), op.attrs, tags=op.tags))
            # what reads nothing that arrives is no branch, which `made` refuses
            self.reads[op.name] = op.name if wanted is None else self._cut(ENTRY_CHANNELS, op.name, every(op.shape), wanted)
        elif wanted is not None:
            part = self.graph.op_slice(op, wanted)
            inputs = tuple(self._given(op, at, read) for at, read in enumerate(part.reads) if len(read))
            if len(inputs) < kind_of(op.kind).min_inputs:
                # of tensors side by side one is left; it is handed on by an operator, whose place in int8 has a scale of its own
                self.ops.append(Op(op.name, "slice", inputs, {"start": 0, "stop": len(wanted)}, tags=op.tags))
                self.reads[op.name] = op.name
                return
            self.ops.append(Op(op.name, op.kind, inputs, part.attrs, tags=op.tags))
            self.taken[op.name] = Taken(part.computes, width(op.shape))
            self.reads[op.name] = self._cut(f"{op.name}_channels", op.name, part.computes, wanted)

    def project(self, op: Op, channels: Channels, *, first: bool) -> None:
        """The projection of some hidden channels; its bias counts once."""
        attrs = {**op.attrs, "bias": bool(op.attrs["bias"]) and first}
        self.ops.append(Op(op.name, op.kind, (self._given(op, 0, channels),), attrs, tags=op.tags))
        self.taken[op.name] = Taken(every(op.shape), width(op.shape), channels)
        self.reads[op.name] = op.name

    def add_term(self, op: Op, sums: Collection[str], *, first: bool) -> None:
        """An operator behind the projection, done to a term of the sum."""
        additive = kind_of(op.kind).additive or Additive(once=True)
        if additive.once and not first:
            self.reads[op.name] = self.reads[next(name for name in op.inputs if name in sums)]
            return
        shapes = self.graph.input_shapes(op)
        inputs = [
            self.reads[name] if name in sums else self._given(op, at, every(shape))
            for at, (name, shape) in enumerate(zip(op.inputs, shapes, strict=True))
        ]
        self.ops.append(Op(op.name, op.kind, tuple(inputs), op.attrs, tags=op.tags))
        self.taken[op.name] = Taken(every(op.shape), width(op.shape), zeros=() if first else additive.offsets)
        self.reads[op.name] = op.name

    def part(self, name: str) -> ChannelPart:
        """The branch."""
        output = self.reads[self.graph.output]
        if {op.kind for op in self.ops} <= {"input", "slice"}:
            raise StretchError(f"`{name}` would compute nothing: its channels are handed on as they arrive", "give it others, too")
        return ChannelPart(OpGraph.build(name, self.ops, output), self.taken)

    def _given(self, op: Op, at: int, wanted: Channels) -> str:
        """The tensor with the channels that an operator wants of one of its inputs."""
        arguments = op.inputs[at]
        return self._cut(f"{op.name}_channels{at}", self.reads[arguments], self.need[arguments], wanted)

    def _cut(self, name: str, source: str, has: Channels, wanted: Channels) -> str:
        """The tensor that holds the wanted channels of one: itself if it has no others, else what a new operator cuts out."""
        if wanted == has:
            return source
        self.ops.append(Op(name, "slice", (source,), {"start": wanted.start - has.start, "stop": wanted.stop - has.start}))
        return name
