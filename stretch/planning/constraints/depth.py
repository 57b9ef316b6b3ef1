"""A branch keeps some of its segment's blocks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Constraint, Limit, register
from stretch.planning.constraints.floors import ROUNDING, floor_limit
from stretch.planning.options import Option, Ratio

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Ways
    from stretch.planning.network.segments import Segment


@register
class DepthFloor(Constraint):
    """Blocks of a branch over those of its segment."""

    option = Option("min_depth", Ratio, 0.5, "Depth ratio of a branch, at least.")
    offers = True

    def offers_depth(self, value: float, segment: "Segment", depth: int) -> bool:
        """Whether these are enough blocks."""
        return depth >= value * segment.depth - ROUNDING

    def limits(self, value: float, ways: "Sequence[Ways]") -> list[Limit]:
        """The floor."""
        return [floor_limit(value)]
