"""A branch keeps some of its segment's channels."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Constraint, Limit, register
from stretch.planning.constraints.floors import ROUNDING, floor_limit
from stretch.planning.options import Option, Ratio

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Ways
    from stretch.planning.network.segments import Segment


@register
class WidthFloor(Constraint):
    """Channels of a branch over those of its segment."""

    option = Option(
        "min_width",
        Ratio | None,
        None,
        "Width ratio of a branch, at least; 0.5 for two processors, 0.375 for three.",
        "Width ratio of a branch, at least; None for 0.5 with two processors and 0.375 with more.",
    )
    offers = True

    def offers_width(self, value: float, segment: "Segment", width: float) -> bool:
        """Whether these are enough channels."""
        return width >= value * segment.width - ROUNDING

    def limits(self, value: float, ways: "Sequence[Ways]") -> list[Limit]:
        """The floor."""
        return [floor_limit(value)]
