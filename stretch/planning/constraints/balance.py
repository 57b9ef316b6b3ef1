"""Equation 6 of paper 003: work in proportion to speed, as a bound on how much branches may differ."""

from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Bound, register
from stretch.planning.options import Option, Ratio

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Floats, Ways


@register
class Balance(Bound):
    """Branches take similar time on their own processors."""

    option = Option(
        "balance",
        Ratio,
        0.5,
        "Fastest over slowest branch of a stretched segment, at least.",
        "Fastest over slowest branch of a segment, at least: multiply-accumulates in proportion to processor speed (eq. 6), as a bound.",
    )
    exact = False
    at_most = False
    words = "the fastest branch takes {:.2g} of the slowest at best, the limit is {:g}"

    def part(self, ways: "Ways") -> "Floats":
        """The fastest branch."""
        return ways.fastest_ms

    def of(self, ways: "Ways", segment_ms: float) -> "Floats":
        """The slowest branch."""
        return ways.slowest_ms
