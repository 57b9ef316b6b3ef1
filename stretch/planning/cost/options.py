"""Ways to run one segment, as arrays with one entry per combination of its branches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictors.joins import JoinKind, join_of
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.scale import partitions
from stretch.planning.network.segments import Segment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class SegmentOptions:
    """Ways to run one segment on one subset of the processors.

    Arrays have one entry per combination of the branches' candidates, in the
    order of `numpy.ravel_multi_index` over `candidates`; of a segment that is divided exactly,
    one per place where it is divided: the candidates of that number together.
    """

    segment: Segment  # The original segment.
    join: JoinKind  # How branches meet; ``none`` for one branch.
    candidates: tuple[tuple[BranchCost, ...], ...]  # Per branch, its possible scales.
    macs: Ints  # Multiply-accumulates, joins included.
    params: Ints  # Learned numbers.
    ms: Floats  # Time per processor that holds the tensor at the start (rows).
    allowed: Mask  # Whether every rule is met, in the same shape as `ms`.
    depth: Floats  # Sum of the branches' depth ratios.
    exchange_ms: Floats  # Communication per holder, as `ms`.
    slowest_ms: Floats  # Computation of the slowest branch, contention included.
    fastest_ms: Floats  # Computation of the fastest branch, contention included.
    peak_bytes: Ints  # Activation bytes alive at one time.
    span: int = 1  # Segments of the space that it takes the place of; more than 1 where stages are merged.
    alone_ms: float | None = None  # The original segment on the fastest processor, ms, where that is known.
    tail: Segment | None = None  # What follows the join on the host, as a segment of its own, counted in the arrays; None for nothing.
    #: How long each processor computes, contention included, ms by name: arrays that broadcast to `ms`. Worked out when asked for, since
    #: most searches never do.
    busy: Callable[[], Mapping[str, Floats]] = dict
    #: Of scaled copies whose combinations are not all there, the place of each in that order; None where they are.
    numbers: Ints | None = None
    division: str = ""  # Word of the way in which the segment is divided exactly (`stretch.planning.design.division`); empty for none.

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
        """Whether branches together compute exactly what the original segment does."""
        return bool(self.division)

    def working(self, host: str) -> set[str]:
        """Processors that compute something: those of the branches, and the host where it computes the tail."""
        return {*self.processors, *((host,) if self.tail is not None else ())}

    def holder(self, host: str) -> str:
        """Processor that holds the output: the host where branches meet, else that of the last branch."""
        return host if join_of(self.join).meets is not None and self.branched else self.processors[-1]

    def chosen(self, index: int) -> list[BranchCost]:
        """The branches of one combination."""
        if self.exact:
            return [c[index] for c in self.candidates]
        return [c[i] for c, i in zip(self.candidates, self.scales_of(np.array([index]))[:, 0].tolist(), strict=True)]

    def scales_of(self, indices: Ints | None = None) -> Ints:
        """Of some combinations of scaled copies, or all, the number of each branch's candidate (branches × combinations)."""
        every = np.arange(len(self.macs)) if indices is None else indices
        numbers = every if self.numbers is None else self.numbers[every]
        return np.array(np.unravel_index(numbers, [len(c) for c in self.candidates]), np.int64)

    def out_width(self, index: int) -> int:
        """Channels behind the join of one combination."""
        return sum(b.width for b in self.chosen(index)) if join_of(self.join).widens else self.segment.width

    def designs(self, index: int, costs: Costs) -> tuple[SegmentDesign, ...]:
        """The design of one combination, and that of the tail."""
        if self.tail is None:
            return (self.design(index, costs),)
        alone = BranchScale(costs.host, self.tail.depth, self.tail.width, align=costs.align(costs.host))
        return self.design(index, costs), SegmentDesign(self.tail.name, self.tail.start, self.tail.end, (alone,))

    def design(self, index: int, costs: Costs) -> SegmentDesign:
        """The design of one combination, without the tail."""
        chosen = self.chosen(index)
        aligns = [costs.align(b.processor) for b in chosen]
        parts = [0] * len(chosen)
        if join_of(self.join).divides:
            parts = partitions(self.segment.width, [b.width for b in chosen], max(aligns))
        branches = tuple(
            BranchScale(
                b.processor, b.depth, b.width, b.entry, part, align, b.rewrites, **({self.division: b.share} if self.division else {})
            )
            for b, part, align in zip(chosen, parts, aligns, strict=True)
        )
        return SegmentDesign(self.segment.name, self.segment.start, self.segment.end, branches, self.join)
