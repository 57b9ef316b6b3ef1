"""The whole design computes about as much as the original; the search sees to it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Constraint, Limit, register
from stretch.planning.options import Option, Range

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Ways


@register
class TotalMacs(Constraint):
    """Multiply-accumulates of the branched over those of the original model, without those that bands of rows do twice."""

    option = Option(
        "macs",
        Range,
        (0.97, 1.03),
        "Range of MACs over the original's; those that bands of rows do twice do not count.",
        "Multiply-accumulates of the branched over those of the original model.",
        example="0.97:1.03",
    )

    def limits(self, value: tuple[float, float], ways: "Sequence[Ways]") -> list[Limit]:
        """Both ends of the range."""
        low, high = value
        return [
            Limit(low, min(0.01, low / 2), put=lambda now, number: (number, now[1])),
            Limit(high, max(100.0, high * 2), put=lambda now, number: (now[0], number)),
        ]
