"""Branches meet often enough; the search sees to it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from stretch.planning.constraints.base import Constraint, Limit, register
from stretch.planning.options import Option

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Ways


@register
class Meetings(Constraint):
    """Meeting points of a design."""

    option = Option(
        "n_meet",
        Annotated[int, msgspec.Meta(ge=1, le=1000)],
        1,
        "Meeting points, at least.",
        "Meeting points where branches join, at least.",
    )

    def limits(self, value: int, ways: "Sequence[Ways]") -> list[Limit]:
        """Their number, where it is more than one."""
        return [Limit(value, 1, tuple(range(value - 1, 0, -1)), lambda _, number: round(number))] if value > 1 else []
