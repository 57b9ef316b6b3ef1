"""Equation 4 of paper 003: the exchange at a meeting point is amortised over its segment."""

from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Bound, register
from stretch.planning.options import Option, Positive

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Floats, Ways


@register
class Communication(Bound):
    """Transfers and the join take no more than a share of the segment."""

    option = Option(
        "alpha",
        Positive,
        0.2,
        "Communication of a stretched segment over its latency, at most.",
        "Communication of a segment over its latency, at most (NN-Stretch paper, eq. 4).",
    )
    exact = False
    words = "an exchange takes {:.2g} of the segment at best, at most {:g} is allowed"

    def part(self, ways: "Ways") -> "Floats":
        """Time that transfers and the join take."""
        return ways.exchange_ms

    def of(self, ways: "Ways", segment_ms: float) -> float:
        """The original segment on the fastest of its processors."""
        return segment_ms
