"""What one branch of one segment costs: multiply-accumulates, time, parameters, memory.

A branch at full depth is built once per width; the costs of the shallower ones
follow by leaving out the kernels of dropped units, which is exact because units
share no kernel.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from predictors.devices import ITEM_BYTES
from predictors.fusion import Kernel, KernelCost
from predictors.host import HOST, host_among
from predictors.joins import JoinKind, join_of
from predictors.predictor import KernelsTime, LatencyPredictor
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.depth import drop_units
from stretch.planning.design.scale import scale_branch
from stretch.planning.network.segments import EntryKind, Segment


@dataclass(frozen=True)
class BranchCost:
    """A branch without its part of the join.

    Args:
        processor: Where it runs.
        depth: Blocks kept.
        width: Channels of its trunk.
        entry: How it begins.
        macs: Multiply-accumulates.
        params: Learned numbers.
        ms: Time alone on its processor, without communication.
        contended_ms: The same while other branches compute.
        peak_bytes: Most activation bytes that one of its kernels reads and writes
            (where other channels arrive than in the original, at least that many).
        rows: Rows of the segment's output that it computes; None for all.
        reads: Of a part of the original segment, elements that it reads.
        writes: Of such a part, elements that it writes.
        cut_ms: What a band takes longer where it has to cut what it reads out of the whole tensor; 0 on a processor that never has to.
        paths: Paths of the segment that it computes; None for all.
        channels: Channels that it computes, of the segment's output or of its hidden tensor; None for all.
        ends: Tensors that a portion of the segment hands on; None for what is none.
    """

    processor: str
    depth: int
    width: int
    entry: EntryKind
    macs: int
    params: int
    ms: float
    contended_ms: float
    peak_bytes: int
    rows: tuple[int, int] | None = None
    reads: int = 0
    writes: int = 0
    cut_ms: float = 0.0
    paths: tuple[int, int] | None = None
    channels: tuple[int, int] | None = None
    ends: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Whole:
    """A branch at full depth: its kernels, and what each operator owns."""

    kernels: tuple[Kernel, ...]
    params: Mapping[str, int]


class Costs:
    """Costs of branches, whole segments, joins and transfers on one device.

    Args:
        predictor: Latency predictor of the device.
        precision: Precision by processor name.
    """

    def __init__(self, predictor: LatencyPredictor, precision: Mapping[str, str]) -> None:
        self.predictor = predictor
        self.precision = dict(precision)
        self._whole: dict[tuple[int, int, int, int, str], _Whole] = {}
        self._dropped: dict[tuple[int, int], frozenset[str]] = {}
        self._branches: dict[tuple[int, str, int, int, int], BranchCost] = {}
        self._changes: dict[tuple[int, str, int, int], tuple[int, int, float, float, int]] = {}
        # Costs are remembered per segment object, which is kept so that its identity stays its own.
        self._known: dict[int, Segment] = {}

    def at(self, processor: str, precision: str | None) -> "Costs":
        """Costs with one processor at another precision; what was built stays known."""
        if precision is None or self.precision.get(processor) == precision:
            return self
        other = Costs(self.predictor, {**self.precision, processor: precision})
        other._whole, other._dropped, other._known = self._whole, self._dropped, self._known
        return other

    @property
    def host(self) -> str:
        """Processor that waits for branches and joins them; it is there even where no branch uses it."""
        return host_among(self.precision) or HOST

    def align(self, processor: str) -> int:
        """Channels that widths on this processor are multiples of."""
        return self.predictor.device.processor(processor).width_slice

    def prepare(self, segment: Segment, processor: str, widths: Iterable[int], channels: Iterable[int]) -> None:
        """Time the kernels of many branches together, which takes little longer than those of one.

        Args:
            segment: The original segment.
            processor: Where they would run.
            widths: Channels of their trunks.
            channels: Channels that may arrive.
        """
        kernels: dict[KernelCost, Kernel] = {}
        rewires = self._rewires(segment)
        for width in widths:
            usual = self._full(segment, processor, width, segment.in_width, segment.entries(width)[0]).kernels
            kernels.update((kernel.cost, kernel) for kernel in usual)
            for count in channels:
                if count == segment.in_width:
                    continue
                if rewires:
                    changed = [_rewired(kernel, segment, count) for kernel in self._readers(segment, processor, width)]
                else:
                    changed = list(self._full(segment, processor, width, count, "none").kernels)
                kernels.update((kernel.cost, kernel) for kernel in changed)
        self.kernels_time(list(kernels.values()), processor)

    def branch(self, segment: Segment, processor: str, depth: int, width: int, in_channels: int | None = None) -> BranchCost:
        """Cost of a branch before its join.

        Args:
            segment: The original segment.
            processor: Where it would run.
            depth: Blocks kept.
            width: Channels of its trunk.
            in_channels: Channels that arrive; the original's if None.

        Raises:
            StretchError: If the segment cannot be scaled so.
        """
        channels = segment.in_width if in_channels is None else in_channels
        key = (self._remember(segment), processor, depth, width, channels)
        known = self._branches.get(key)
        if known is None:
            known = self._branches[key] = self._branch(segment, processor, depth, width, channels)
        return known

    def _branch(self, segment: Segment, processor: str, depth: int, width: int, channels: int) -> BranchCost:
        if channels != segment.in_width and self._rewires(segment):
            base = self.branch(segment, processor, depth, width)
            macs, params, ms, contended, peak = self._change(segment, processor, width, channels)
            return replace(
                base,
                macs=base.macs + macs,
                params=base.params + params,
                ms=base.ms + ms,
                contended_ms=base.contended_ms + contended,
                peak_bytes=max(base.peak_bytes, peak),
            )
        entry = segment.entries(width)[0] if channels == segment.in_width else "none"
        whole = self._full(segment, processor, width, channels, entry)
        dropped = self._dropped_ops(segment, depth)
        kernels = [k for k in whole.kernels if k.name not in dropped]
        item = self.item_bytes(processor)
        return BranchCost(
            processor,
            depth,
            width,
            entry,
            sum(k.macs for k in kernels),
            sum(n for name, n in whole.params.items() if name not in dropped),
            *self.kernels_time(kernels, processor),
            max(((k.cost.reads + k.cost.writes) * item for k in kernels), default=0),
        )

    def whole(self, segment: Segment, processor: str) -> BranchCost:
        """Cost of the original segment on one processor."""
        return self.branch(segment, processor, segment.depth, segment.width)

    def prepare_joins(self, segment: Segment, processor: str, channels: Iterable[tuple[int, int]]) -> None:
        """Time many 1×1 convolutions that end branches together: those from the first number of channels to the second."""
        self.kernels_time([_join_conv(segment, width, out) for width, out in channels], processor)

    def join_conv(self, segment: Segment, processor: str, width: int, out: int) -> tuple[int, float, int]:
        """Multiply-accumulates, ms beside other branches and parameters of the 1×1 convolution that ends a branch."""
        kernel = _join_conv(segment, width, out)
        return kernel.macs, self.kernels_time([kernel], processor).contended_ms, kernel.cost.weights

    def join(self, segment: Segment, kind: JoinKind, channels: int, branches: int) -> float:
        """Time of the join of several branches on the host, ms."""
        if join_of(kind).meets is None or branches == 1:
            return 0.0
        shape = segment.graph.by_name[segment.end].shape
        return self.predictor.join_ms(kind, (shape[0], channels, *shape[2:]), branches, self.host, self.precision.get(self.host))

    def transfer(self, source: str, target: str, elements: int) -> float:
        """Time to move a tensor between two processors, ms."""
        return sum(self.moves(source, target, elements).values())

    def moves(self, source: str, target: str, elements: int) -> dict[str, float]:
        """The same by link, named after its processor that is not the CPU."""
        device = self.predictor.device
        far = target if device.processor(target).family != "cpu" else source
        precision = device.processor(far).check_precision(self.precision.get(far))
        return self.predictor.links.parts(source, target, elements, precision)

    def kernels_time(self, kernels: Sequence[Kernel], processor: str) -> KernelsTime:
        """Time of kernels one after the other, at the planned precision."""
        return self.predictor.kernels_time(kernels, processor, self.precision.get(processor))

    def item_bytes(self, processor: str) -> int:
        """Bytes of an element at the processor's precision."""
        return ITEM_BYTES[self.predictor.device.processor(processor).check_precision(self.precision.get(processor))]

    def _full(self, segment: Segment, processor: str, width: int, in_channels: int, entry: EntryKind) -> _Whole:
        align = self.align(processor)
        backend = self.predictor.device.processor(processor).profile.backend
        key = (self._remember(segment), width, in_channels, align, backend)
        known = self._whole.get(key)
        if known is None:
            scale = BranchScale(processor, segment.depth, width, entry, 0, align)
            design = SegmentDesign(segment.name, segment.start, segment.end, (scale,), "concat")
            graph = scale_branch(segment, design, 0, in_channels).graph
            params = {
                op.name: sum(prod(shape) for name, shape in graph.op_weights(op).items() if not name.startswith("running_"))
                for op in graph.ops
            }
            known = self._whole[key] = _Whole(tuple(self.predictor.kernels(graph, processor)), params)
        return known

    def _rewires(self, segment: Segment) -> bool:
        """Whether only dense convolutions read what arrives, so that other widths change their kernels alone."""
        readers = (segment.graph.by_name[name] for name in segment.graph.consumers[segment.start])
        return not segment.passes_input and all(op.kind == "conv" and op.attrs["groups"] == 1 for op in readers)

    def _change(self, segment: Segment, processor: str, width: int, channels: int) -> tuple[int, int, float, float, int]:
        """What other arriving channels add: multiply-accumulates, parameters, ms alone and beside others; and the new kernels' peak bytes."""
        key = (self._remember(segment), processor, width, channels)
        known = self._changes.get(key)
        if known is not None:
            return known
        before = self._readers(segment, processor, width)
        after = [_rewired(kernel, segment, channels) for kernel in before]
        macs = sum((new.cost.weights - old.cost.weights) * old.cost.pixels for old, new in zip(before, after, strict=True))
        params = sum(new.cost.weights - old.cost.weights for old, new in zip(before, after, strict=True))
        peak = max(((k.cost.reads + k.cost.writes) * self.item_bytes(processor) for k in after), default=0)
        now, then = self.kernels_time(after, processor), self.kernels_time(before, processor)
        self._changes[key] = (macs, params, now.ms - then.ms, now.contended_ms - then.contended_ms, peak)
        return self._changes[key]

    def _readers(self, segment: Segment, processor: str, width: int) -> list[Kernel]:
        """Kernels of a branch that read what arrives."""
        readers = segment.graph.consumers[segment.start]
        return [k for k in self._full(segment, processor, width, segment.in_width, "none").kernels if k.name in readers]

    def _remember(self, segment: Segment) -> int:
        self._known[id(segment)] = segment
        return id(segment)

    def _dropped_ops(self, segment: Segment, depth: int) -> frozenset[str]:
        key = (self._remember(segment), depth)
        if key not in self._dropped:
            kept = {op.name for op in drop_units(segment, depth).ops}
            self._dropped[key] = frozenset(op.name for op in segment.graph.ops if op.name not in kept)
        return self._dropped[key]


def _rewired(kernel: Kernel, segment: Segment, channels: int) -> Kernel:
    """A kernel that reads what arrives at a segment, if that has other channels."""
    cost, more = kernel.cost, channels - segment.in_width
    pixels = prod(segment.graph.input.shape) // segment.in_width
    weights = cost.weights + cost.taps * cost.out_channels * more
    return replace(kernel, cost=cost._replace(in_channels=channels, reads=cost.reads + pixels * more, weights=weights))


def _join_conv(segment: Segment, width: int, out: int) -> Kernel:
    shape = segment.graph.by_name[segment.end].shape
    pixels = shape[0] * prod(shape[2:])
    cost = KernelCost("conv1x1", width, out, 1, 1, pixels, pixels * width, pixels * out, width * out + out)
    return Kernel("join_conv", ("join_conv",), cost, pixels * width * out)
