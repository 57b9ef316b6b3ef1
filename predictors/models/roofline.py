"""Analytic kernel times: launch + max(arithmetic, memory) on one processor.

Five effects shape the times, all of them numbers of the profile:

* *launch*: every kernel costs a fixed time, so few wide kernels beat many narrow ones;
* *occupancy*: n output elements reach n / (n + half) of the rate (paper 003, figure 7).
  Written out, that is a term proportional to the serial loop Cin·K² of each output,
  the same term that measured GPU kernels need beside their operation count;
* *epilogue*: every output of a convolution costs a few operations beside its products
  (bias, re-quantisation, store), which weigh more where reductions are short: narrow layers;
* *slices*: channels are computed in multiples of the slice;
* *cache*: activations that fit stream at cache bandwidth, the rest at DRAM bandwidth;
  weights are read once an inference and come from DRAM.
"""

from collections.abc import Sequence

from predictors.devices import ITEM_BYTES, Precision, Processor
from predictors.fusion import KernelCost
from predictors.models.base import KernelTime

#: Kinds whose time is that of multiply-accumulates.
MULTIPLIES = ("conv1x1", "conv", "depthwise", "grouped", "linear", "matmul")

#: Products that an implementation saves at most: Winograd with tiles of 4 × 4 computes a 3×3 window with a quarter of them.
_SAVES = {"winograd": 4}


class RooflinePredictor:
    """Kernel times on one processor at one precision.

    Args:
        precision: One that the processor runs; None for its default.
    """

    def __init__(self, processor: Processor, precision: str | None = None) -> None:
        self.processor = processor
        self.precision: Precision = processor.check_precision(precision)
        profile, cores = processor.profile, processor.cores
        self._item = ITEM_BYTES[self.precision]
        # 10⁹ operations a second are 10⁶ a millisecond, and a multiply-accumulate is two.
        self._macs_per_ms = cores.peak_gops[self.precision].value * cores.scaling.value * 1e6 / 2
        self._scaling = cores.scaling.value
        # Products of two activations are as fast as those with weights, where a profile says nothing of them.
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

    @property
    def fixed_ms(self) -> float:
        """Nothing is known of what an inference takes beside its kernels: 0 ms."""
        return 0.0

    def interval(self) -> tuple[float, float]:
        """Ends of the interval around a network's time, as factors on it."""
        spread = 1 + self.processor.profile.uncertainty.value
        return 1 / spread, spread

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Time of each kernel; equal kernels are computed once."""
        return [self.time(cost) for cost in costs]

    def floor_ms(self, cost: KernelCost) -> float:
        """Least time of a kernel: its products at the processor's peak, ms."""
        products = cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps
        if cost.kind not in MULTIPLIES:
            return 0.0
        return products / (self._macs_per_ms / self._scaling * _SAVES.get(cost.variant, 1))

    def time(self, cost: KernelCost) -> KernelTime:
        """Time of a kernel; equal kernels are computed once."""
        known = self._times.get(cost)
        if known is None:
            known = self._times[cost] = self._compute(cost)
        return known

    def _compute(self, cost: KernelCost) -> KernelTime:
        compute = self._compute_ms(cost)
        memory = self._memory_ms(cost)
        return KernelTime(self._launch_ms + max(compute, memory), self._launch_ms, compute, memory)

    def _compute_ms(self, cost: KernelCost) -> float:
        if cost.in_channels == 1 and cost.out_channels == 1:
            # One channel a group: the slice runs over the groups.
            cin, cout, groups = 1, 1, _round_up(cost.groups, self._width_slice)
        else:
            cin, cout, groups = (
                _round_up(cost.in_channels, self._reduce_slice),
                _round_up(cost.out_channels, self._width_slice),
                cost.groups,
            )
        outputs = cost.pixels * cout * groups
        # A reduction runs as a tree: its inputs are what there is to do side by side.
        parallel = outputs * cost.taps if cost.kind == "reduce" else outputs
        occupancy = parallel / (parallel + self._half)
        products = cin * cost.taps + (self._epilogue if cost.kind in MULTIPLIES else 0)
        return outputs * products / (self._efficiency[cost.kind] * occupancy * self._macs_per_ms)

    def _memory_ms(self, cost: KernelCost) -> float:
        activations = (cost.reads + cost.writes) * self._item
        weights = cost.weights * self._item
        near = min(1.0, self._cache_bytes / (activations + weights))
        return activations * (near / self._cache_bytes_per_ms + (1 - near) / self._dram_bytes_per_ms) + weights / self._dram_bytes_per_ms


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
