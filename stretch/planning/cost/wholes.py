"""The kernels of branches at full depth, put together from those of their blocks.

A branch of twenty blocks at each of twenty widths takes longer to build and fuse than all else that a
search does. Blocks that are built alike, with as many channels kept of each group, launch the same
kernels, so each is built once. Where that is not so for the original segment, a
branch is built in one piece.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from predictors.fusion import Kernel
from predictors.graph import Op, OpGraph
from predictors.predictor import LatencyPredictor
from predictors.rewrites import laid_out
from predictors.rewrites.grouped import PART, owner_of
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.narrow import narrowed_op
from stretch.planning.design.scale import entry_ops, kept_units, scale_branch
from stretch.planning.network.segments import Segment

#: In place of the number of a block: what is in none.
NO_BLOCK = -1


@dataclass(frozen=True)
class Built:
    """Operators of a branch as they are launched."""

    kernels: tuple[Kernel, ...]  # Called as the operators that they are parts of; where blocks are alike, as those of one of them.
    params: int  # Learned numbers.
    rewrites: tuple[str, ...] = ()  # Exact rewrites that were done.


@dataclass(frozen=True)
class Whole:
    """A branch at full depth: what each block launches, by its number."""

    blocks: tuple[tuple[int, Built], ...]  # Blocks and what is outside of them, in order.
    rewrites: tuple[str, ...]  # Exact rewrites that were done.
    named: int  # How many of them, from the first on, have kernels that are called as their own operators.

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels, in order."""
        return [kernel for _, built in self.blocks for kernel in built.kernels]

    def readers(self, names: Collection[str]) -> list[Kernel]:
        """Kernels of operators that read what arrives."""
        return [kernel for _, built in self.blocks[: self.named] for kernel in built.kernels if kernel.name in names]


@dataclass(frozen=True)
class _Piece:
    """A block of a segment, or what is behind the last one."""

    block: int  # Its number.
    start: str  # Tensor it reads.
    ops: tuple[Op, ...]  # Its operators.
    groups: tuple[int, ...]  # Channel groups of what it reads and of its operators, in the order in which they come.
    look: str  # What is alike in pieces that are built alike: kinds, attributes, who reads what, and which groups.


class Wholes:
    """Branches at full depth.

    Args:
        predictor: Latency predictor of the device.
    """

    def __init__(self, predictor: LatencyPredictor) -> None:
        self._predictor = predictor
        self._built: dict[tuple[object, ...], Built] = {}
        self._pieces: dict[tuple[int, str, tuple[str, ...]], tuple[Segment, list[_Piece]]] = {}

    def on(self, predictor: LatencyPredictor) -> "Wholes":
        """The same on another device; what was built stays known, by backend."""
        other = Wholes(predictor)
        other._built, other._pieces = self._built, self._pieces
        return other

    def of(self, segment: Segment, scale: BranchScale, in_channels: int, names: tuple[str, ...]) -> Whole:
        """A branch at full depth."""
        profile = self._predictor.device.processor(scale.processor).profile
        backend = f"{profile.backend} {sorted(profile.unsupported)}"
        pieces = self._divided(segment, scale, backend, names)
        if len(pieces) < 2:
            return self._in_one(segment, scale, in_channels, names)
        kept = kept_units(segment, segment.graph, segment.channels, scale, in_channels)
        blocks = []
        for number, piece in enumerate(pieces):
            units = tuple([kept[group] for group in piece.groups])
            # what arrives at the first one may have other channels, and an entry; its kernels are looked for by name
            first = (scale.entry, in_channels, piece.start) if number == 0 else ()
            key = (backend, names, piece.look, units, first)
            if key not in self._built:
                self._built[key] = self._build(segment, piece, scale, kept, in_channels if number == 0 else None, names)
            blocks.append((piece.block, self._built[key]))
        done = tuple(name for name in names if any(name in built.rewrites for _, built in blocks))
        return Whole(tuple(blocks), done, 1)

    def _in_one(self, segment: Segment, scale: BranchScale, in_channels: int, names: tuple[str, ...]) -> Whole:
        """A branch that is built in one piece, its kernels by block."""
        design = SegmentDesign(segment.name, segment.start, segment.end, (scale,), "concat")
        graph = scale_branch(segment, design, 0, in_channels).graph
        blocks = {name: i for i, block in enumerate(segment.blocks) for name in block.ops}
        kernels: dict[int, list[Kernel]] = {}
        params: dict[int, int] = {}
        for op in graph.ops:
            at = blocks.get(op.name, NO_BLOCK)
            params[at] = params.get(at, 0) + graph.op_facts(op).params
        every, done = self._launched(graph, scale.processor, names)
        for kernel in every:
            kernels.setdefault(blocks.get(kernel.name, NO_BLOCK), []).append(kernel)
        order = sorted({*kernels, *params})
        return Whole(tuple((at, Built(tuple(kernels.get(at, ())), params.get(at, 0))) for at in order), done, len(order))

    def _launched(self, graph: OpGraph, processor: str, names: Sequence[str]) -> tuple[list[Kernel], tuple[str, ...]]:
        """Kernels of a graph, called as the operators that they are parts of, and the exact rewrites that were done."""
        made, done = laid_out(graph, names)
        kernels = self._predictor.kernels(made, processor)
        owners = {op.name: owner_of(op) for op in made.ops if PART in op.tags}
        return [replace(kernel, name=owners[kernel.name]) if kernel.name in owners else kernel for kernel in kernels], done

    def _build(
        self, segment: Segment, piece: _Piece, scale: BranchScale, kept: Mapping[int, int], arriving: int | None, names: Sequence[str]
    ) -> Built:
        """A piece of a branch by itself; `arriving` are the channels of what it reads, if it is the first."""
        channels, source = segment.channels, segment.graph
        widths = {name: channels.channels(name, kept) for name in (piece.start, *(op.name for op in piece.ops))}
        shape = source.by_name[piece.start].shape
        ops = [Op(piece.start, "input", attrs={"shape": (shape[0], widths[piece.start] if arriving is None else arriving, *shape[2:])})]
        if arriving is not None and scale.entry != "none":
            ops += entry_ops(segment, scale, widths[piece.start], 0)
        given = ops[-1].name
        for op in piece.ops:
            made = narrowed_op(op, source, channels, kept, widths)
            inputs = tuple(given if name == piece.start else name for name in made.inputs)
            ops.append(Op(made.name, made.kind, inputs, made.attrs, tags=made.tags))
        graph = OpGraph.build(segment.name, ops, piece.ops[-1].name)
        kernels, done = self._launched(graph, scale.processor, names)
        return Built(tuple(kernels), sum(graph.op_facts(op).params for op in graph.ops), done)

    def _divided(self, segment: Segment, scale: BranchScale, backend: str, names: tuple[str, ...]) -> list[_Piece]:
        """The blocks of a segment; none where they launch other kernels by themselves than in the segment."""
        key = (id(segment), backend, names)
        if key not in self._pieces:
            pieces = _pieces(segment)
            if len(pieces) > 1:
                units = segment.channels.units
                parts = [self._build(segment, piece, replace(scale, entry="none"), units, None, names).kernels for piece in pieces]
                every, _ = self._launched(segment.graph, scale.processor, names)
                if _told(every) != _told([kernel for part in parts for kernel in part]):
                    pieces = []
            self._pieces[key] = segment, pieces
        return self._pieces[key][1]


def _told(kernels: Sequence[Kernel]) -> list[tuple[object, ...]]:
    """What tells whether kernels are the same, in whichever order."""
    return sorted((kernel.name, repr(kernel.cost), kernel.macs, kernel.elsewhere) for kernel in kernels)


def _pieces(segment: Segment) -> list[_Piece]:
    """The blocks of a segment and what is behind the last one; none where something reads past their ends."""
    names = [op.name for op in segment.graph.ops if op.kind != "input"]
    parts = [(i, block.start, block.ops) for i, block in enumerate(segment.blocks)]
    rest = tuple(names[sum(len(ops) for _, _, ops in parts) :])
    if rest:
        parts.append((NO_BLOCK, segment.blocks[-1].end, rest))
    if [name for _, _, ops in parts for name in ops] != names:
        return []
    found = []
    for block, start, ops in parts:
        inside = {start, *ops}
        members = tuple(segment.graph.by_name[name] for name in ops)
        if any(name not in inside for op in members for name in op.inputs):
            return []
        found.append(_piece(segment, block, start, members))
    return found


def _piece(segment: Segment, block: int, start: str, ops: tuple[Op, ...]) -> _Piece:
    channels = segment.channels
    place = {name: i for i, name in enumerate((start, *(op.name for op in ops)))}
    groups: dict[int, int] = {}
    rows = [[(groups.setdefault(group, len(groups)), size) for group, size in channels.pieces[name]] for name in place]
    frozen = [(channels.units[group], group in channels.frozen) for group in groups]
    read = [(op.kind, tuple(place[name] for name in op.inputs), sorted(op.attrs.items())) for op in ops]
    shape = segment.graph.by_name[start].shape
    return _Piece(block, start, ops, tuple(groups), repr((shape[0], prod(shape[2:]), shape, rows, frozen, read)))
