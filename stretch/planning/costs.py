"""What one branch of one segment costs: multiply-accumulates, time, parameters, memory.

A branch at full depth is built once per width; the costs of the shallower ones
follow by leaving out the kernels of dropped units, which is exact because units
share no kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from predictors.devices import ITEM_BYTES
from predictors.fusion import Kernel, KernelCost
from predictors.predictor import LatencyPredictor
from stretch.planning.design import BranchScale, EntryKind, JoinKind, SegmentDesign
from stretch.planning.scale import drop_units, scale_branch
from stretch.planning.segments import Segment


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
        ms: Time on its processor, without communication.
        peak_bytes: Most activation bytes that one of its kernels reads and writes.
    """

    processor: str
    depth: int
    width: int
    entry: EntryKind
    macs: int
    params: int
    ms: float
    peak_bytes: int


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
        self._left: dict[tuple[int, int], frozenset[str]] = {}
        # Costs are remembered per segment object, which is kept so that its identity stays its own.
        self._known: dict[int, Segment] = {}

    @property
    def host(self) -> str:
        """Processor that waits for branches and joins them: the CPU (paper 003, algorithm 1)."""
        return next((name for name in self.precision if name.partition("[")[0] == "cpu"), "cpu")

    def align(self, processor: str) -> int:
        """Channels that widths on this processor are multiples of."""
        return self.predictor.device.processor(processor).width_slice

    def contention(self, processor: str, branches: int) -> float:
        """Factor on the time of one of several branches that run side by side."""
        return self.predictor.device.processor(processor).profile.contention.value if branches > 1 else 1.0

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
        entry = segment.entries(width)[0] if channels == segment.in_width else "none"
        whole = self._full(segment, processor, width, channels, entry)
        left = self._kept_ops(segment, depth)
        dropped = frozenset(op.name for op in segment.graph.ops) - left
        kernels = [k for k in whole.kernels if k.name not in dropped]
        precision = self.precision.get(processor)
        item = ITEM_BYTES[self.predictor.device.processor(processor).check_precision(precision)]
        return BranchCost(
            processor,
            depth,
            width,
            entry,
            sum(k.macs for k in kernels),
            sum(n for name, n in whole.params.items() if name not in dropped),
            self.predictor.kernels_ms(kernels, processor, precision),
            max(((k.cost.reads + k.cost.writes) * item for k in kernels), default=0),
        )

    def whole(self, segment: Segment, processor: str) -> BranchCost:
        """Cost of the original segment on one processor."""
        return self.branch(segment, processor, segment.depth, segment.width)

    def join_conv(self, segment: Segment, processor: str, width: int, out: int) -> tuple[int, float, int]:
        """Multiply-accumulates, ms and parameters of the 1×1 convolution that ends a branch."""
        shape = segment.graph.by_name[segment.end].shape
        pixels = shape[0] * prod(shape[2:])
        cost = KernelCost("conv1x1", width, out, 1, 1, pixels, pixels * width, pixels * out, width * out + out)
        kernel = Kernel("join_conv", ("join_conv",), cost, pixels * width * out)
        return kernel.macs, self.predictor.kernel_ms(kernel, processor, self.precision.get(processor)), cost.weights

    def join(self, segment: Segment, kind: JoinKind, channels: int, branches: int) -> float:
        """Time of the join on the host, ms.

        Outputs side by side cost nothing where channels are the slowest axis:
        each branch writes its slice of the joined tensor. Elsewhere they are copied.
        """
        if kind == "none" or branches == 1:
            return 0.0
        host = self.host
        in_place = self.predictor.device.processor(host).profile.layout == "NCHW"
        if kind != "sum" and in_place:
            return 0.0
        shape = segment.graph.by_name[segment.end].shape
        pixels = shape[0] * prod(shape[2:])
        written = pixels * channels
        read = written * branches if kind == "sum" else written
        cost = KernelCost("elementwise" if kind == "sum" else "copy", 1, 1, channels, 1, pixels, read, written, 0)
        return self.predictor.kernel_ms(Kernel("join", ("join",), cost, 0), host, self.precision.get(host))

    def transfer(self, source: str, target: str, elements: int) -> float:
        """Time to move a tensor between two processors, ms."""
        device = self.predictor.device
        far = target if device.processor(target).family != "cpu" else source
        precision = device.processor(far).check_precision(self.precision.get(far))
        return self.predictor.links.ms(source, target, elements, precision)

    def _full(self, segment: Segment, processor: str, width: int, in_channels: int, entry: EntryKind) -> _Whole:
        align = self.align(processor)
        backend = self.predictor.device.processor(processor).profile.backend
        key = (self._remember(segment), width, in_channels, align, backend)
        known = self._whole.get(key)
        if known is None and in_channels != segment.in_width and entry == "none":
            known = self._rewired(segment, processor, width, in_channels)
            if known is not None:
                self._whole[key] = known
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

    def _rewired(self, segment: Segment, processor: str, width: int, in_channels: int) -> _Whole | None:
        """The branch for another number of arriving channels, if only dense convolutions read them; else None."""
        readers = segment.graph.consumers[segment.start]
        if segment.passes_input or any(
            segment.graph.by_name[r].kind != "conv" or segment.graph.by_name[r].attrs["groups"] != 1 for r in readers
        ):
            return None
        base = self._full(segment, processor, width, segment.in_width, "none")
        pixels = prod(segment.graph.input.shape) // segment.in_width
        kernels, params = [], dict(base.params)
        for kernel in base.kernels:
            if kernel.name not in readers:
                kernels.append(kernel)
                continue
            cost, more = kernel.cost, in_channels - segment.in_width
            weights = cost.taps * cost.out_channels * more
            changed = cost._replace(in_channels=in_channels, reads=cost.reads + pixels * more, weights=cost.weights + weights)
            kernels.append(Kernel(kernel.name, kernel.ops, changed, kernel.macs + weights * cost.pixels))
            params[kernel.name] += weights
        return _Whole(tuple(kernels), params)

    def _remember(self, segment: Segment) -> int:
        self._known[id(segment)] = segment
        return id(segment)

    def _kept_ops(self, segment: Segment, depth: int) -> frozenset[str]:
        key = (self._remember(segment), depth)
        if key not in self._left:
            self._left[key] = frozenset(op.name for op in drop_units(segment, depth).ops)
        return self._left[key]
