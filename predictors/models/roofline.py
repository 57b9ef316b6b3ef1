"""Analytic kernel times: launch + max(arithmetic, memory) on one processor."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from predictors.devices import ITEM_BYTES, Precision, Processor
from predictors.fusion import KernelCost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Model that gives a time: a fit to measurements on the device or on another one with the same chip, other fits calibrated by whole
#: networks measured on the device or on one with a similar chip, fits of other chips, or specifications.
Origin = Literal["fit", "networks", "sibling", "similar", "relatives", "roofline"]

#: Origins based on measurements of the device itself.
MEASURED: tuple[Origin, ...] = ("fit", "networks")

#: Origins in words.
ORIGINS: dict[Origin, str] = {
    "fit": "a fit to measurements",
    "networks": "a calibration by whole networks measured on it",
    "sibling": "a fit to another device with the same chip",
    "similar": "a calibration by whole networks measured on a similar chip",
    "relatives": "fits of its relatives",
    "roofline": "specifications",
}


class KernelTime(NamedTuple):
    """Time of a kernel, with its parts, ms."""

    ms: float  # Total time.
    launch_ms: float  # Fixed cost of the launch.
    compute_ms: float  # Arithmetic.
    memory_ms: float  # Transfers of activations and weights.
    origin: Origin = "roofline"  # Model that gives the time.

    @property
    def bound(self) -> str:
        """The part that takes the most time: ``launch``, ``compute`` or ``memory``."""
        parts = {"launch": self.launch_ms, "compute": self.compute_ms, "memory": self.memory_ms}
        return max(parts, key=lambda name: parts[name])


class Times(NamedTuple):
    """Times of many kernels: the fields of `KernelTime` as arrays with one entry per kernel, ms."""

    ms: "Floats"
    launch_ms: "Floats"
    compute_ms: "Floats"
    memory_ms: "Floats"

    @classmethod
    def of(cls, times: Sequence[KernelTime]) -> "Times":
        """Return the times of single kernels as arrays."""
        import numpy as np

        return cls(*np.array([(time.ms, time.launch_ms, time.compute_ms, time.memory_ms) for time in times]).reshape(-1, 4).T)

    def kernels(self, origin: Origin) -> list[KernelTime]:
        """Return the time of each kernel, all from the same model."""
        columns = (column.tolist() for column in self)
        return [KernelTime(ms, launch, compute, memory, origin) for ms, launch, compute, memory in zip(*columns, strict=True)]


class KernelModel(Protocol):
    """Times of kernels on one processor with one core set at one precision."""

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Return the time of each kernel; equal kernels are computed once."""
        ...

    def inference_ms(self, elements: int = 0) -> float:
        """Return the time of an inference beyond its kernels, ms; `elements` is the number of elements of its inputs and outputs."""
        ...

    def interval(self) -> tuple[float, float]:
        """Return the interval around a network's time, as factors on it."""
        ...


#: Kinds whose time depends on multiply-accumulates.
MULTIPLIES = ("conv1x1", "conv", "depthwise", "grouped", "linear", "matmul")

#: Maximum factor by which an implementation reduces products: Winograd with 4 × 4 tiles computes a 3×3 window with a quarter of them.
_SAVES = {"winograd": 4}


class RooflinePredictor:
    """Kernel times on one processor at one precision.

    Args:
        precision: Precision that the processor supports; None for its default.
    """

    def __init__(self, processor: Processor, precision: str | None = None) -> None:
        self.processor = processor
        self.precision: Precision = processor.check_precision(precision)
        profile, cores = processor.profile, processor.cores
        self._item = ITEM_BYTES[self.precision]
        # 10⁹ operations per second are 10⁶ per millisecond, and a multiply-accumulate is two operations.
        self._macs_per_ms = cores.peak_gops[self.precision].value * cores.scaling.value * 1e6 / 2
        self._scaling = cores.scaling.value
        # Products of two activations are as fast as those with weights, unless a profile states otherwise.
        self._efficiency = {"matmul": profile.efficiency["linear"].value} | {
            kind: ratio.value for kind, ratio in profile.efficiency.items()
        }
        self._launch_ms = profile.launch_us.value / 1e3
        self._half = profile.half_outputs.value
        self._epilogue = profile.epilogue_macs.value
        self._width_slice = processor.width_slice
        self._reduce_slice = round(profile.reduce_slice.value)
        self._cache_bytes = cores.cache_kib.value * 1024
        self._cache_bytes_per_ms = cores.cache_gbs.value * 1e6
        self._dram_bytes_per_ms = cores.bandwidth_gbs.value * 1e6
        self._times: dict[KernelCost, KernelTime] = {}

    def inference_ms(self, elements: int = 0) -> float:
        """Return 0 ms: the time of an inference beyond its kernels is unknown."""
        return 0.0

    def interval(self) -> tuple[float, float]:
        """Return the interval around a network's time, as factors on it."""
        spread = 1 + self.processor.profile.uncertainty.value
        return 1 / spread, spread

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Return the time of each kernel; equal kernels are computed once."""
        return [self.time(cost) for cost in costs]

    def floor_ms(self, cost: KernelCost) -> float:
        """Return the minimum time of a kernel, its products at the processor's peak, ms."""
        products = cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps
        if cost.kind not in MULTIPLIES:
            return 0.0
        return products / (self._macs_per_ms / self._scaling * _SAVES.get(cost.variant, 1))

    def time(self, cost: KernelCost) -> KernelTime:
        """Return the time of a kernel; equal kernels are computed once."""
        cached = self._times.get(cost)
        if cached is None:
            cached = self._times[cost] = self._compute(cost)
        return cached

    def _compute(self, cost: KernelCost) -> KernelTime:
        compute = self._compute_ms(cost)
        memory = self._memory_ms(cost)
        return KernelTime(self._launch_ms + max(compute, memory), self._launch_ms, compute, memory)

    def _compute_ms(self, cost: KernelCost) -> float:
        if cost.in_channels == 1 and cost.out_channels == 1:
            # With one channel per group, the slice runs over the groups.
            cin, cout, groups = 1, 1, _round_up(cost.groups, self._width_slice)
        else:
            cin, cout, groups = (
                _round_up(cost.in_channels, self._reduce_slice),
                _round_up(cost.out_channels, self._width_slice),
                cost.groups,
            )
        outputs = cost.pixels * cout * groups
        # A reduction runs as a tree: its inputs are processed in parallel.
        parallel = outputs * cost.taps if cost.kind == "reduce" else outputs
        occupancy = parallel / (parallel + self._half)
        products = cin * cost.taps + (self._epilogue if cost.kind in MULTIPLIES else 0)
        return outputs * products / (self._efficiency[cost.kind] * occupancy * self._macs_per_ms)

    def _memory_ms(self, cost: KernelCost) -> float:
        activations = (cost.reads + cost.writes) * self._item
        weights = cost.weights * self._item
        cached_share = min(1.0, self._cache_bytes / (activations + weights))
        return (
            activations * (cached_share / self._cache_bytes_per_ms + (1 - cached_share) / self._dram_bytes_per_ms)
            + weights / self._dram_bytes_per_ms
        )


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
