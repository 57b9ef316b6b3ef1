"""Cost of a branch of a segment (multiply-accumulates, time, parameters, memory), and options of a segment as arrays of such costs.

A branch at full depth is built once per width. Shallower branches drop the kernels of dropped units, which share no kernel.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictors.devices import ITEM_BYTES, SlowdownFactors
from predictors.fusion import Kernel, KernelCost
from predictors.graph import Op, OpGraph
from predictors.host import HOST, host_among
from predictors.joins import JoinKind, join_of
from predictors.predictor import Handover, KernelsTime, LatencyPredictor, io_elements
from predictors.rewrites import apply_exact_rewrites, exact
from predictors.shapes import pixels, with_width
from predictors.side_by_side import worst_slowdown
from stretch.planning.design.branch_design import BranchScale, SegmentDesign, Share
from stretch.planning.design.scale import entry_ops, kept_units, missing_blocks, narrowed_op, partitions, scale_branch
from stretch.planning.network.segments import EntryKind, Segment, memoised, rewrite_segment

# Kernels of branches at full depth, assembled from the kernels of their blocks.
#
# Building and fusing a branch of twenty blocks at each of twenty widths takes longer than the remaining search. Blocks of equal
# structure, with equal numbers of kept channels per group, launch the same kernels, so each is built once. If this does not hold for the
# original segment, a branch is built in one piece.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Block number of operators outside of all blocks.
NO_BLOCK = -1


@dataclass(frozen=True, eq=False)
class BuiltBranch:
    """Kernels of a branch, or of a piece of it."""

    kernels: tuple[Kernel, ...]  # Kernels, named after their operators; blocks of equal structure share the names of one of them.
    params: int  # Learned numbers.
    rewrites: tuple[str, ...] = ()  # Applied exact rewrites.


@dataclass(frozen=True, eq=False)
class FullDepth:
    """A branch at full depth, as the kernels of each block."""

    blocks: tuple[tuple[int, BuiltBranch], ...]  # Block numbers with kernels, in order; operators outside of blocks have `NO_BLOCK`.
    rewrites: tuple[str, ...]  # Applied exact rewrites.
    named: int  # Number of leading `blocks` whose kernels are named after their own operators.

    def readers(self, names: Collection[str]) -> list[Kernel]:
        """Return the kernels of these operators, the readers of the segment's input."""
        return [kernel for _, built in self.blocks[: self.named] for kernel in built.kernels if kernel.name in names]


@dataclass(frozen=True)
class _BlockPiece:
    """A block of a segment, or the operators after the last block."""

    block: int  # Number of the block, or `NO_BLOCK`.
    start: str  # Name of the input tensor.
    ops: tuple[Op, ...]  # Operators.
    groups: tuple[int, ...]  # Channel groups of its input and of its operators, in order of first occurrence.
    fingerprint: str  # Equal for pieces of the same structure: kinds, attributes, edges and groups.


def _kernel_keys(kernels: Sequence[Kernel]) -> list[tuple[object, ...]]:
    """Return a key of some kernels that does not depend on their order."""
    return sorted((kernel.name, repr(kernel.cost), kernel.macs, kernel.elsewhere) for kernel in kernels)


def _pieces(segment: Segment) -> list[_BlockPiece]:
    """Return the blocks of a segment and the operators after the last block; empty if an operator reads from another block."""
    names = [op.name for op in segment.graph.ops if op.kind != "input"]
    parts = [(i, block.start, block.ops) for i, block in enumerate(segment.blocks)]
    rest = tuple(names[sum(len(ops) for _, _, ops in parts) :])
    if rest:
        parts.append((NO_BLOCK, segment.blocks[-1].end, rest))
    if [name for _, _, ops in parts for name in ops] != names:
        return []
    pieces, channels = [], segment.channels
    for block, start, ops in parts:
        inside = {start, *ops}
        members = tuple(segment.graph.by_name[name] for name in ops)
        if any(name not in inside for op in members for name in op.inputs):
            return []
        place = {name: i for i, name in enumerate((start, *ops))}
        groups: dict[int, int] = {}
        rows = [[(groups.setdefault(group, len(groups)), size) for group, size in channels.pieces[name]] for name in place]
        frozen = [(channels.units[group], group in channels.frozen) for group in groups]
        read = [(op.kind, tuple(place[name] for name in op.inputs), sorted(op.attrs.items())) for op in members]
        pieces.append(_BlockPiece(block, start, members, tuple(groups), repr((segment.graph.by_name[start].shape, rows, frozen, read))))
    return pieces


class BranchCost(NamedTuple):
    """Cost of a branch without its part of the join."""

    processor: str  # Name of the processor.
    depth: int  # Number of kept blocks; 0 for an exactly divided segment, which keeps all.
    width: int  # Channels of its backbone; 0 for an exactly divided segment.
    entry: EntryKind  # Entry of the branch.
    macs: int  # Multiply-accumulates.
    params: int  # Learned numbers.
    ms: float  # Compute time alone on its processor.
    arithmetic_ms: float  # Arithmetic-bound part of `ms`, which other branches slow by the arithmetic factor.
    memory_ms: float  # Memory-bound part of `ms`, which other branches slow by the memory factor.
    #: Maximum activation bytes that one of its kernels reads and writes (a lower bound if the number of input channels differs from the
    #: original's).
    peak_bytes: int
    share: Share | None = None  # Share of an exactly divided segment; None for other segments.
    reads: int = 0  # Number of elements that a share reads; 0 for other branches.
    writes: int = 0  # Number of elements that a share writes; 0 for other branches.
    #: Additional time of a band that must copy its input out of the whole tensor; zero on processors that need no copy.
    cut: KernelsTime = KernelsTime(0.0, 0.0, 0.0)
    rewrites: tuple[str, ...] = ()  # Applied rewrites.
    dropped: tuple[int, ...] = ()  # Numbers of its missing blocks; empty if its depth determines them.

    @property
    def time(self) -> KernelsTime:
        """Compute time of the branch."""
        return KernelsTime(self.ms, self.arithmetic_ms, self.memory_ms)


#: Sums over the kernels of a block of a branch, or their change for another number of input channels: multiply-accumulates, parameters,
#: time and maximum bytes.
_Sums = tuple[int, int, KernelsTime, int]


class Costs:
    """Costs of branches, whole segments, joins and transfers on one device."""

    def __init__(
        self, predictor: LatencyPredictor, precision: Mapping[str, str], rewrites: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> None:
        self.predictor = predictor
        self.precision = dict(precision)
        #: Processor that waits for branches and joins them; it exists even if no branch uses it.
        self.host = host_among(self.precision) or HOST
        self.rewrites = rewrites
        #: Cache of built branches, which only depend on the backends of a device.
        self._built: dict[Any, Any] = {}
        self._prepared: set[tuple[Segment, str, int, int]] = set()

    def replace_precision(self, processor: str, precision: str | None) -> "Costs":
        """Return costs with one processor at another precision; the caches are shared."""
        if precision is None or self.precision.get(processor) == precision:
            return self
        return self.rebuild(self.predictor, {**self.precision, processor: precision}, self.rewrites)

    def rebuild(self, predictor: LatencyPredictor, precision: Mapping[str, str], rewrites: Mapping[str, tuple[str, ...]]) -> "Costs":
        """Return costs on another device or in other precisions; the caches are shared, because they only depend on backends."""
        costs = Costs(predictor, precision, rewrites)
        costs._built = self._built
        return costs

    def cache_of(self, name: str) -> dict[Any, Any]:
        """Return a named cache that related costs share; its content must only depend on the backends of a device."""
        cache: dict[Any, Any] = self._built.setdefault(name, {})
        return cache

    def rewritten(self, segment: Segment, processor: str) -> Segment:
        """Return a segment with the inexact rewrites of a processor applied."""
        return rewrite_segment(segment, self.rewrites.get(processor, ()))

    def handover(self, processor: str, graph: OpGraph | None = None) -> Handover:
        """Return the constant time per inference on a processor, at the planned precision; on the host it is the same for all networks."""
        return self.predictor.handover(processor, self.precision.get(processor), *(io_elements(graph) if graph else ()))

    def align(self, processor: str) -> int:
        """Return the number of channels that widths on this processor are multiples of."""
        return self.predictor.device.processor(processor).width_slice

    def prepare(self, segment: Segment, processor: str, widths: Sequence[int], channels: Iterable[int]) -> None:
        """Time the kernels of many branches together, which takes little longer than for one branch."""
        in_width = segment.in_width
        kernels: dict[object, Sequence[Kernel]] = {}
        new = {(segment, processor, width, count) for width in widths for count in (in_width, *channels)} - self._prepared
        self._prepared |= new
        for *_, width, count in sorted(new, key=lambda item: item[2:]):
            if count == in_width or not segment.rewires:
                whole = self._full_depth(segment, processor, width, count, segment.entry(width, in_width) if count == in_width else "none")
                kernels.update({built: built.kernels for _, built in whole.blocks})
            else:
                readers = self._full_depth(segment, processor, width, in_width, "none").readers(segment.graph.consumers[segment.start])
                kernels[width, count] = [_rewired(kernel, segment, count) for kernel in readers]
        self.kernels_time([kernel for launched in kernels.values() for kernel in launched], processor)

    @memoised
    def branch(
        self, segment: Segment, processor: str, depth: int, width: int, in_channels: int | None = None, dropped: tuple[int, ...] = ()
    ) -> BranchCost:
        """Return the cost of a branch without its join; `in_channels` are the input channels, the original's if None."""
        channels = segment.in_width if in_channels is None else in_channels
        if channels != segment.in_width and segment.rewires:
            base = self.branch(segment, processor, depth, width, None, dropped)
            macs, params, time, peak = self._change(segment, processor, width, channels)
            times = {name: getattr(base, name) + more for name, more in time._asdict().items()}
            return base._replace(macs=base.macs + macs, params=base.params + params, **times, peak_bytes=max(base.peak_bytes, peak))
        entry = segment.entry(width, channels) if channels == segment.in_width else "none"
        whole = self._full_depth(segment, processor, width, channels, entry)
        removed = missing_blocks(segment, depth, dropped)
        parts = [self._block(built, processor) for block, built in whole.blocks if block not in removed]
        macs, params = sum(part[0] for part in parts), sum(part[1] for part in parts)
        # a branch may launch nothing
        time, peak = KernelsTime.total(part[2] for part in parts), max((part[3] for part in parts), default=0)
        rewrites = (*segment.rewrites, *whole.rewrites)
        return BranchCost(processor, depth, width, entry, macs, params, *time, peak, rewrites=rewrites, dropped=dropped)

    @memoised
    def _block(self, built: BuiltBranch, processor: str) -> _Sums:
        time, macs = self.kernels_time(built.kernels, processor), sum([kernel.macs for kernel in built.kernels])
        return macs, built.params, time, self.peak_bytes(built.kernels, processor)

    def whole(self, segment: Segment, processor: str) -> BranchCost:
        """Return the cost of the original segment on one processor."""
        return self.branch(segment, processor, segment.depth, segment.width)

    def slowing(self, processor: str, others: Iterable[str]) -> SlowdownFactors:
        """Return the slowdown factors of a branch for the search, which assumes that the others compute all the time and speed up nothing."""
        return worst_slowdown(self.predictor.device, processor, others)

    def join_convs(
        self, segment: Segment, processor: str, ends: Sequence[tuple[int, int]], slowing: SlowdownFactors
    ) -> list[tuple[int, float, int]]:
        """Return MACs, ms while other branches compute, and parameters of the 1×1 convolutions that end branches of widths (in, out)."""
        shape = segment.graph.by_name[segment.end].shape
        positions = pixels(shape)
        costs = (KernelCost("conv1x1", w, out, 1, 1, positions, positions * w, positions * out, w * out + out) for w, out in ends)
        kernels = [Kernel("join_conv", ("join_conv",), cost, positions * cost.in_channels * cost.out_channels) for cost in costs]
        times = self.each_kernels_time(kernels, processor)
        return [(kernel.macs, time.slowed(slowing), kernel.cost.weights) for kernel, time in zip(kernels, times, strict=True)]

    def join(self, segment: Segment, kind: JoinKind, channels: int, branches: int) -> float:
        """Return the time of the join of several branches on the host, ms."""
        if join_of(kind).meets is None or branches == 1:
            return 0.0
        shape = segment.graph.by_name[segment.end].shape
        return self.predictor.join_ms(kind, with_width(shape, channels), branches, self.host, self.precision.get(self.host))

    def transfer(self, source: str, target: str, elements: Any) -> Any:
        """Return the transfer time of a tensor between two processors, ms; an array for many tensors, 0 without a transfer."""
        return sum(self.moves(source, target, elements).values())

    def moves(self, source: str, target: str, elements: Any) -> dict[str, Any]:
        """Return the transfer times by link, ms; a link is named after its processor other than the CPU. Values are numbers or arrays."""
        device = self.predictor.device
        far = target if device.processor(target).family != "cpu" else source
        precision = device.processor(far).check_precision(self.precision.get(far))
        return self.predictor.links.parts(source, target, elements, precision)

    def kernels_time(self, kernels: Sequence[Kernel], processor: str) -> KernelsTime:
        """Return the total time of kernels in sequence, at the planned precision."""
        return self.predictor.kernels_time(kernels, processor, self.precision.get(processor))

    def each_kernels_time(self, kernels: Sequence[Kernel], processor: str) -> list[KernelsTime]:
        """Return the time of each kernel, at the planned precision."""
        return self.predictor.kernels_times(kernels, processor, self.precision.get(processor))

    def group_times(self, launched: Mapping[str, Sequence[Kernel]], groups: Iterable[Iterable[str]]) -> Floats:
        """Return the time of each group of operators that no kernel spans, alone and while others compute, ms (2 × groups × processors)."""
        of = {name: number for number, group in enumerate(groups) for name in group}
        times = np.zeros((2, max(of.values(), default=-1) + 1, len(launched)))
        for column, (processor, kernels) in enumerate(launched.items()):
            slowing = self.slowing(processor, launched.keys() - {processor})
            for kernel, time in zip(kernels, self.each_kernels_time(kernels, processor), strict=True):
                times[:, of[kernel.ops[0]], column] += time.ms, time.slowed(slowing)
        return times

    def peak_bytes(self, kernels: Iterable[Kernel], processor: str) -> int:
        """Return the maximum bytes that one of the kernels reads and writes, at the processor's precision."""
        item = ITEM_BYTES[self.predictor.device.processor(processor).check_precision(self.precision.get(processor))]
        return max([kernel.cost.reads + kernel.cost.writes for kernel in kernels], default=0) * item

    @memoised
    def _full_depth(self, segment: Segment, processor: str, width: int, in_channels: int, entry: EntryKind) -> FullDepth:
        profile = self.predictor.device.processor(processor).profile
        names, backend = tuple(name for name in self.rewrites.get(processor, ()) if name in exact), profile.launching
        scale = BranchScale(processor, segment.depth, width, entry, 0, self.align(processor), rewrites=segment.rewrites)
        key_of_depth = segment, width, in_channels, scale.align, backend, names
        if key_of_depth in self._built:
            known: FullDepth = self._built[key_of_depth]
            return known
        pieces = self._divided(segment, scale, backend, names)
        if len(pieces) < 2:
            self._built[key_of_depth] = whole = self._undivided_depth(segment, scale, in_channels, names)
            return whole
        kept = kept_units(segment, segment.graph, segment.channels, scale, in_channels)
        blocks = []
        for number, piece in enumerate(pieces):
            units = tuple([kept[group] for group in piece.groups])
            # the first piece may have another number of input channels and an entry; `readers` finds its kernels by name
            first_key = (scale.entry, in_channels, piece.start) if number == 0 else ()
            key = backend, names, piece.fingerprint, units, first_key
            if key not in self._built:
                self._built[key] = self._build(segment, piece, scale, kept, in_channels if number == 0 else None, names)
            blocks.append((piece.block, self._built[key]))
        applied = tuple(name for name in names if any(name in built.rewrites for _, built in blocks))
        self._built[key_of_depth] = whole = FullDepth(tuple(blocks), applied, 1)
        return whole

    def _undivided_depth(self, segment: Segment, scale: BranchScale, in_channels: int, names: tuple[str, ...]) -> FullDepth:
        """Return a branch at full depth that is built in one piece, with its kernels by block."""
        design = SegmentDesign(segment.name, segment.start, segment.end, (scale,), "concat")
        graph = scale_branch(segment, design, 0, in_channels).graph
        blocks = {name: i for i, block in enumerate(segment.blocks) for name in block.ops}
        kernels: dict[int, list[Kernel]] = {}
        params = Counter[int]()
        for op in graph.ops:
            params[blocks.get(op.name, NO_BLOCK)] += graph.op_facts(op).params
        all_kernels, applied = self._launch(graph, scale.processor, names)
        for kernel in all_kernels:
            kernels.setdefault(blocks.get(kernel.name, NO_BLOCK), []).append(kernel)
        order = sorted({*kernels, *params})
        built = tuple((number, BuiltBranch(tuple(kernels.get(number, ())), params[number])) for number in order)
        return FullDepth(built, applied, len(order))

    def _launch(self, graph: OpGraph, processor: str, names: Sequence[str]) -> tuple[list[Kernel], tuple[str, ...]]:
        """Return the kernels of a graph, and the applied exact rewrites."""
        return self.predictor.kernels(graph, processor, names), apply_exact_rewrites(graph, names)[1]

    def _build(
        self, segment: Segment, piece: _BlockPiece, scale: BranchScale, kept: Mapping[int, int], arriving: int | None, names: Sequence[str]
    ) -> BuiltBranch:
        """Return the kernels of a separate piece of a branch; `arriving` are the input channels of the first piece, else None."""
        channels, source = segment.channels, segment.graph
        widths = {name: channels.channels(name, kept) for name in (piece.start, *(op.name for op in piece.ops))}
        shape = source.by_name[piece.start].shape
        ops = [Op(piece.start, "input", attrs={"shape": with_width(shape, widths[piece.start] if arriving is None else arriving)})]
        if arriving is not None and scale.entry != "none":
            ops += entry_ops(segment, scale, widths[piece.start], 0)
        arguments = ops[-1].name
        for op in piece.ops:
            built = narrowed_op(op, source, channels, kept, widths)
            inputs = tuple(arguments if name == piece.start else name for name in built.inputs)
            ops.append(Op(built.name, built.kind, inputs, built.attrs, tags=built.tags))
        graph = OpGraph.build(segment.name, ops, piece.ops[-1].name)
        kernels, done = self._launch(graph, scale.processor, names)
        return BuiltBranch(tuple(kernels), sum(graph.op_facts(op).params for op in graph.ops), done)

    def _divided(self, segment: Segment, scale: BranchScale, backend: tuple[object, ...], names: tuple[str, ...]) -> list[_BlockPiece]:
        """Return the pieces of a segment; empty if they launch other kernels separately than in the whole segment."""
        key = segment, backend, names
        if key not in self._built:
            pieces = _pieces(segment)
            if len(pieces) > 1:
                units = segment.channels.units
                parts = [self._build(segment, piece, replace(scale, entry="none"), units, None, names).kernels for piece in pieces]
                every, _ = self._launch(segment.graph, scale.processor, names)
                if _kernel_keys(every) != _kernel_keys([kernel for part in parts for kernel in part]):
                    pieces = []
            self._built[key] = pieces
        known: list[_BlockPiece] = self._built[key]
        return known

    @memoised
    def _change(self, segment: Segment, processor: str, width: int, channels: int) -> _Sums:
        """Return the change of a branch's sums for another number of input channels."""
        before = self._full_depth(segment, processor, width, segment.in_width, "none").readers(segment.graph.consumers[segment.start])
        after = [_rewired(kernel, segment, channels) for kernel in before]
        weights = [new.cost.weights - old.cost.weights for old, new in zip(before, after, strict=True)]
        now, then = self.kernels_time(after, processor), self.kernels_time(before, processor)
        macs = sum(more * kernel.cost.pixels for more, kernel in zip(weights, after, strict=True))
        return macs, sum(weights), KernelsTime(*(a - b for a, b in zip(now, then, strict=True))), self.peak_bytes(after, processor)


def _rewired(kernel: Kernel, segment: Segment, channels: int) -> Kernel:
    """Return a kernel that reads a segment's input, changed for another number of input channels."""
    cost, more = kernel.cost, channels - segment.in_width
    pixels = prod(segment.graph.input.shape) // segment.in_width
    weights = cost.weights + cost.taps * cost.out_channels * more
    cost = cost._replace(in_channels=channels, reads=cost.reads + pixels * more, weights=weights)
    return Kernel(kernel.name, kernel.ops, cost, kernel.macs, kernel.elsewhere)


@dataclass(frozen=True, eq=False)
class SegmentOptions:
    """Options to run one segment on one subset of the processors.

    Arrays have one entry per combination of the branches' candidates, in the order of `numpy.ravel_multi_index` over `candidates`. For an
    exactly divided segment they have one entry per split, which combines the candidates with this index.
    """

    segment: Segment  # The original segment.
    join: JoinKind  # Join of the branches; ``none`` for one branch.
    candidates: tuple[tuple[BranchCost, ...], ...]  # Costs of each branch's possible scales.
    macs: Ints  # Multiply-accumulates, joins included.
    params: Ints  # Parameters, joins included.
    ms: Floats  # Time, ms (holders of the input × combinations).
    exchange_ms: Floats  # Communication time, ms (holders of the input × combinations).
    slowest_ms: Floats  # Compute time of the slowest branch, contention included.
    fastest_ms: Floats  # Compute time of the fastest branch, contention included.
    peak_bytes: Ints  # Activation bytes alive at one time.
    #: Whether every rule is met, in the shape of `ms` after `stretch.planning.search.space.DesignSpace.apply_rules`.
    allowed: Mask = field(default_factory=lambda: np.ones((1, 1), bool))
    span: int = 1  # Number of the space's segments that it covers; more than 1 for merged stages.
    alone_ms: float | None = None  # Time of the original segment on the fastest processor, ms; None if not yet computed.
    tail: Segment | None = None  # Segment of operators after the join, on the host, included in the arrays; None without such operators.
    #: Returns the compute time of each processor, contention included, ms by name, as arrays that broadcast to `ms`. A function, because
    #: most searches do not need it.
    busy: Callable[[], Mapping[str, Floats]] = dict
    #: Index of each entry among all combinations of scaled copies, if only some are built; None if all are.
    numbers: Ints | None = None
    division: str = ""  # Name of the exact division (`stretch.planning.design.branch_design`); empty without one.

    @property
    def processors(self) -> tuple[str, ...]:
        """Processors of the branches, in order."""
        return tuple(c[0].processor for c in self.candidates)

    @property
    def branched(self) -> bool:
        """Whether several branches run side by side."""
        return len(self.candidates) > 1

    @property
    def exact(self) -> bool:
        """Whether the branches together compute exactly the original segment's output."""
        return bool(self.division)

    @property
    def same(self) -> bool:
        """Whether it computes the original segment's output: exactly divided, or undivided with all blocks."""
        return self.exact or not (self.branched or self.candidates[0][0].dropped)

    def processors_used(self, host: str) -> set[str]:
        """Return the processors that compute something: the branches' processors, and the host if there is a tail."""
        return {*self.processors, *((host,) if self.tail is not None else ())}

    def holder(self, host: str) -> str:
        """Return the processor that holds the output: the host if branches meet, else the last branch's processor."""
        return host if join_of(self.join).meets is not None and self.branched else self.processors[-1]

    def branches_of(self, index: int) -> list[BranchCost]:
        """Return the branches of one combination."""
        if self.exact:
            return [c[index] for c in self.candidates]
        return [c[i] for c, i in zip(self.candidates, self.scales_of(np.array([index]))[:, 0].tolist(), strict=True)]

    def scales_of(self, indices: Ints | None = None) -> Ints:
        """Return the index of each branch's candidate (branches × combinations) for some combinations of scaled copies, or all."""
        every = np.arange(len(self.macs)) if indices is None else indices
        numbers = every if self.numbers is None else self.numbers[every]
        return np.array(np.unravel_index(numbers, [len(c) for c in self.candidates]), np.int64)

    def designs(self, index: int, costs: Costs) -> tuple[SegmentDesign, ...]:
        """Return the design of one combination, and the design of the tail if there is one."""
        if self.tail is None:
            return (self.design(index, costs),)
        alone = BranchScale(costs.host, self.tail.depth, self.tail.width, align=costs.align(costs.host))
        return self.design(index, costs), SegmentDesign(self.tail.name, self.tail.start, self.tail.end, (alone,))

    def design(self, index: int, costs: Costs) -> SegmentDesign:
        """Return the design of one combination, without the tail."""
        chosen = self.branches_of(index)
        aligns = [costs.align(b.processor) for b in chosen]
        parts = [0] * len(chosen)
        if join_of(self.join).divides:
            parts = partitions(self.segment.width, [b.width for b in chosen], max(aligns))
        branches = []
        for b, part, align in zip(chosen, parts, aligns, strict=True):
            depth, width = (self.segment.depth, self.segment.width) if self.exact else (b.depth, b.width)
            share = {self.division: b.share} if self.exact else {}
            branches.append(BranchScale(b.processor, depth, width, b.entry, part, align, b.rewrites, b.dropped, **share))
        return SegmentDesign(self.segment.name, self.segment.start, self.segment.end, tuple(branches), self.join)
