"""What of a segment may be divided by channels: its output, or a hidden tensor in front of its last projection."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from predictors.channels import Groups, OperatorView, Pieces
from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.slices import Channels, every, width

# Which channels of a graph must be kept or dropped together.
#
# The graph is interpreted over pieces of channels instead of numbers: each kind's
# rule (`predictors.channels`) gives the pieces of its output from those of its
# inputs. Additions and depthwise convolutions unify groups, grouped convolutions
# coarsen their units to whole convolution groups, concatenation puts pieces side
# by side, flattening multiplies the channels per unit.


@dataclass(frozen=True)
class ChannelGroups:
    """Channel pieces of every tensor of a graph."""

    pieces: dict[str, Pieces]  # Per operator, its output channels as (group, channels per unit).
    units: dict[int, int]  # Number of units of each group.
    frozen: frozenset[int]  # Groups that must keep all units.
    input_group: int  # The group of the graph's input.

    def channels(self, name: str, kept: Mapping[int, int] | None = None) -> int:
        """Channels of operator `name` when groups keep `kept` units (all by default)."""
        return sum((kept or self.units)[group] * per for group, per in self.pieces[name])

    def widths(self, kept: Mapping[int, int]) -> dict[str, int]:
        """Channels of every operator when groups keep `kept` units."""
        return {name: sum([kept[group] * per for group, per in row]) for name, row in self.pieces.items()}

    @cached_property
    def per_unit(self) -> dict[int, int]:
        """Channels of one unit where its group is narrowest: at its producers."""
        per: dict[int, int] = {}
        for pieces in self.pieces.values():
            for group, size in pieces:
                per[group] = min(per.get(group, size), size)
        return per

    def position(self, name: str, channel: int, kept: Mapping[int, int]) -> int:
        """Where a channel of operator `name` stands when groups keep `kept` units.

        Within a piece only where its group is frozen, so that the rest of the way is as it was.
        """
        before = new = 0
        for group, size in self.pieces[name]:
            if before + self.units[group] * size > channel:
                break
            before += self.units[group] * size
            new += kept[group] * size
        return new + channel - before


def channel_groups(graph: OpGraph) -> ChannelGroups:
    """Interpret `graph` over channel pieces.

    Returns:
        The pieces of every operator's output. The input's group is not frozen:
    """
    groups = Groups()
    pieces: dict[str, Pieces] = {}
    for op in graph.ops:
        seen = OperatorView(graph.input_shapes(op), op.attrs, op.shape)
        pieces[op.name] = kind_of(op.kind).channels(groups, seen, [pieces[i] for i in op.inputs])
    final = {name: tuple(groups.find(p) for p in row) for name, row in pieces.items()}
    roots = {group for row in final.values() for group, _ in row}
    return ChannelGroups(
        final,
        {g: groups.units[g] for g in roots},
        frozenset(g for g in roots if groups.frozen[g]),
        final[graph.input.name][0][0],
    )


@dataclass(frozen=True)
class Hidden:
    """A hidden tensor of a segment and what makes the segment's output of it."""

    tensor: str  # Operator that writes it.
    projection: str  # The convolution or linear layer that reads it and mixes its channels.
    tail: tuple[str, ...]  # Operators behind the projection up to the output, each of which may be done to the terms of a sum.


def find_hidden(graph: OpGraph) -> Hidden:
    """The hidden tensor of a segment: what its last projection reads, with nothing behind that which needs the whole sum.

    Where tensors are added, the projection is sought in the operand that takes most multiply-accumulates.
    """
    tail: list[str] = []
    op = graph.by_name[graph.output]
    while not _projects(graph, op):
        if op.kind == "add":
            behind = max(op.inputs, key=lambda name: sum(graph.op_macs(graph.by_name[item]) for item in _cone(graph, [name])))
        elif kind_of(op.kind).additive is not None and op.inputs:
            behind = op.inputs[0]
        else:
            raise _no_sum(graph, op)
        tail.append(op.name)
        op = graph.by_name[behind]
    if _is_read_beside(graph, op.name, tail):
        raise StretchError(f"what `{op.name}` ({op.kind}) writes is read before its sum is complete", "let the segment stay whole")
    return Hidden(op.inputs[0], op.name, tuple(reversed(tail)))


def _no_sum(graph: OpGraph, op: Op) -> StretchError:
    if not op.inputs:
        return StretchError(
            f"`{graph.name}` ends without a convolution or linear layer that projects hidden channels",
            'divide its output by join = "channels", or let it stay whole',
        )
    return StretchError(
        f"operator `{op.name}` ({op.kind}) needs the whole sum of what it reads, so no hidden channels are divided before it",
        f'let the segment end before `{op.name}`, or divide its output by join = "channels"',
    )


def _projects(graph: OpGraph, op: Op) -> bool:
    """Whether an operator sums over all channels that it reads, and these can be cut."""
    return bool(op.inputs) and kind_of(op.kind).dense(op.attrs) and len(op.shape) in (2, 4) and width(graph.input_shapes(op)[0]) > 1


def _is_read_beside(graph: OpGraph, projection: str, tail: Collection[str]) -> bool:
    """Whether something beside the tail reads a sum and takes part in the output, or one of the tail reads two sums."""
    sums = {projection, *tail}
    if any(sum(arguments in sums for arguments in graph.by_name[name].inputs) != 1 for name in tail):
        return True
    useful = _cone(graph, [graph.output])
    return any(reader in useful and reader not in sums for name in sums - {graph.output} for reader in graph.consumers[name])


def divided_tensor(graph: OpGraph, *, hidden: bool) -> str:
    """The tensor whose channels branches divide: the output, or the hidden one."""
    fixed = next((op for op in graph.ops if kind_of(op.kind).stated), None)
    if fixed is not None:
        raise StretchError(
            f"operator `{fixed.name}` ({fixed.attrs.get('variant', fixed.kind)}) only states the shape of what it computes, not its channels",
            "let the segment stay whole, or let it start or end elsewhere",
        )
    name = find_hidden(graph).tensor if hidden else graph.output
    inside, whole = _inside(graph, name)
    mixer = _mixer(graph, inside, whole)
    if mixer is not None:
        raise StretchError(
            f"operator `{mixer.name}` ({mixer.kind}) mixes the channels of `{name}` that branches would divide",
            "let the segment stay whole, or let it start or end elsewhere",
        )
    return name


def channel_step(graph: OpGraph, tensor: str) -> int:
    """Channels that belong together: those of a group of each grouped convolution, of a head, the pixels of a flattened image."""
    one = Channels(0, 1)
    return lcm(*[len(graph.op_slice(graph.by_name[name], one).computes) for name in _inside(graph, tensor)[0]])


def is_between_groups(graph: OpGraph, tensor: str, channels: Channels) -> bool:
    """Whether a range of a tensor's channels is computed without others: it begins and ends where a group does."""
    inside, _ = _inside(graph, tensor)
    need = needed_channels(graph, {tensor: channels})
    return all(graph.op_slice(graph.by_name[name], need[name]).computes == need[name] for name in inside if name in need)


def needed_channels(graph: OpGraph, start: Mapping[str, Channels]) -> dict[str, Channels]:
    """Channels of every tensor that those of some tensors need, by name; those of no use are left out."""
    need = dict(start)
    for op in reversed(graph.ops):
        wanted = need.get(op.name)
        if wanted is None or not op.inputs:
            continue
        for name, reads in zip(op.inputs, graph.op_slice(op, wanted).reads, strict=True):
            if len(reads):
                need[name] = need[name].union(reads) if name in need else reads
    return need


def _inside(graph: OpGraph, tensor: str) -> tuple[set[str], set[str]]:
    """Operators of which a branch computes some channels, and tensors of which they read all."""
    inside: set[str] = set()
    whole: set[str] = set()
    left = [tensor]
    while left:
        op = graph.by_name[left.pop()]
        if op.name in inside or not op.inputs:
            continue
        inside.add(op.name)
        for name, shape, reads in zip(op.inputs, graph.input_shapes(op), graph.op_slice(op, Channels(0, 1)).reads, strict=True):
            if len(reads) < width(shape):
                left.append(name)
            else:
                whole.add(name)
    return inside, whole


def _mixer(graph: OpGraph, inside: Collection[str], whole: Iterable[str]) -> Op | None:
    """The first operator for which branches that divide others would all have to compute what those compute; None if there is none."""
    depends = set(inside)
    beside = _cone(graph, whole)
    for op in graph.ops:
        if (op.name not in depends and op.name not in beside) or not op.inputs:
            continue
        part = graph.op_slice(op, Channels(0, 1))
        if op.name in inside and width(op.shape) > 1 and part.computes == every(op.shape):
            return op
        reads = zip(op.inputs, graph.input_shapes(op), part.reads, strict=True)
        if any(name in depends and len(read) == width(shape) for name, shape, read in reads):
            return op
        if any(name in depends for name in op.inputs):
            depends.add(op.name)
    return None


def _cone(graph: OpGraph, names: Iterable[str]) -> set[str]:
    """Operators that some tensors are computed by; none for what arrives."""
    members: set[str] = set()
    left = list(names)
    while left:
        op = graph.by_name[left.pop()]
        if op.name not in members and op.inputs:
            members.add(op.name)
            left += op.inputs
    return members
