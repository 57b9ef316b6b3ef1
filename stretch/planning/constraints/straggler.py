"""Equation 5 of paper 003: no branch takes much longer than the original segment."""

from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Bound, register
from stretch.planning.options import Option, Positive

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Floats, Ways


@register
class Straggler(Bound):
    """The slowest branch takes no more than so many times the original segment."""

    option = Option(
        "beta",
        Positive,
        1.1,
        "A stretched branch over the whole segment on the fastest of its processors, at most.",
        "A branch on its processor over the original segment on the fastest of its processors, at most (eq. 5).",
    )
    exact = False
    words = "the slowest branch takes {:.2g} times the segment on the fastest of its processors at best, at most {:g} is allowed"

    def part(self, ways: "Ways") -> "Floats":
        """The slowest branch."""
        return ways.slowest_ms

    def of(self, ways: "Ways", segment_ms: float) -> float:
        """The original segment on the fastest of its processors."""
        return segment_ms
