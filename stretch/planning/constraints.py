"""The rules a branched segment must meet (paper 003, equations 4 to 6 and section 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from stretch.planning.config import PlanConfig
from stretch.planning.network.segments import Segment

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Width ratios are offered in steps of 1/32; legal widths nearest to them are tried.
WIDTH_STEPS = 32


@dataclass(frozen=True)
class ConstraintFilter:
    """The rules of one planning run.

    Args:
        alpha: Communication over segment latency, at most (eq. 4).
        beta: Branch over original segment on the fastest processor, at most (eq. 5).
        balance: Fastest over slowest branch, at least (eq. 6 as a bound).
        min_depth: Depth ratio, at least.
        min_width: Width ratio, at least.
        segment_macs: Multiply-accumulates over the original segment's, at least.
        peak_memory: Activation bytes alive at one time, at most; None for no bound.
    """

    alpha: float
    beta: float
    balance: float
    min_depth: float
    min_width: float
    segment_macs: float
    peak_memory: int | None = None

    @classmethod
    def of(cls, config: PlanConfig) -> "ConstraintFilter":
        """The rules of a checked configuration."""
        min_width = 0.5 if config.min_width is None else config.min_width
        return cls(config.alpha, config.beta, config.balance, config.min_depth, min_width, config.segment_macs, config.peak_memory)

    def depths(self, segment: Segment) -> list[int]:
        """Depths a branch may have, ascending."""
        return list(range(max(1, segment.min_depth, ceil(self.min_depth * segment.depth - 1e-9)), segment.depth + 1))

    def widths(self, segment: Segment, legal: Sequence[int]) -> list[int]:
        """Widths a branch may have, ascending: of the legal ones, those nearest to an even grid of ratios.

        Args:
            segment: The segment.
            legal: Widths that the processor's slice and the segment's groups allow.
        """
        allowed = [w for w in legal if w >= self.min_width * segment.width - 1e-9]
        if len(allowed) <= WIDTH_STEPS // 2 + 1:
            return allowed
        targets = [segment.width * i / WIDTH_STEPS for i in range(1, WIDTH_STEPS + 1)]
        near = {min(allowed, key=lambda w: abs(w - t)) for t in targets if t >= self.min_width * segment.width}
        return sorted(near | {allowed[0]})

    def communication(self, exchange_ms: Floats, segment_ms: float) -> Mask:
        """Equation 4: the exchange is amortised over the segment.

        Args:
            exchange_ms: Time that transfers and the join take.
            segment_ms: The original segment on the fastest allowed processor.
        """
        return exchange_ms <= self.alpha * segment_ms + 1e-12

    def straggler(self, slowest_ms: Floats, segment_ms: float) -> Mask:
        """Equation 5: no branch takes longer than β times the original segment."""
        return slowest_ms <= self.beta * segment_ms + 1e-12

    def balanced(self, fastest_ms: Floats, slowest_ms: Floats) -> Mask:
        """Equation 6: branches take similar time on their own processors."""
        return fastest_ms >= self.balance * slowest_ms - 1e-12

    def capacity(self, macs: NDArray[np.int64], segment_macs: int) -> Mask:
        """The segment keeps its share of the computation."""
        return macs >= self.segment_macs * segment_macs

    def memory(self, peak_bytes: NDArray[np.int64]) -> Mask:
        """Branches that run at the same time fit into memory together."""
        if self.peak_memory is None:
            return np.ones(len(peak_bytes), bool)
        return peak_bytes <= self.peak_memory
