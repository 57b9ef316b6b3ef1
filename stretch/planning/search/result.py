"""What a search returns."""

from dataclasses import dataclass

from stretch.planning.cost.branch import Costs
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import SegmentDesign


@dataclass(frozen=True)
class SearchResult:
    """A design found by a search."""

    picks: tuple[tuple[Ways, int], ...]  # Per segment, the options and the index of the chosen one.
    ms: float  # Predicted makespan.
    macs: int  # Multiply-accumulates.
    optimal: bool  # Whether no design of the space is better in what was searched for.
    gap: float  # How much better one might be, as a fraction.
    evaluated: int  # Ways whose cost was computed.
    value: float | None = None  # What it was chosen by; None where that is its makespan, or was not worked out.

    @property
    def n_meet(self) -> int:
        """Meeting points where branches join."""
        return sum(len(options.candidates) > 1 for options, _ in self.picks)

    @property
    def arriving(self) -> list[int]:
        """Channels that arrive at each segment."""
        channels = [self.picks[0][0].segment.in_width]
        for options, index in self.picks:
            channels.append(options.out_width(index))
        return channels[:-1]

    @property
    def params(self) -> int:
        """Learned numbers."""
        return sum(int(options.params[index]) for options, index in self.picks)

    def segments(self, costs: Costs) -> tuple[SegmentDesign, ...]:
        """The designs of the segments."""
        return tuple(design for options, index in self.picks for design in options.designs(index, costs))
