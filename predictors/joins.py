"""Looks joins up by name: those of `predictors.join_rules`, and those in the files of operators that compute them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import predictors.operators  # noqa: F401 - the joins in files of operators register themselves
from predictors.join_rules import DEFAULT, Join, Meeting, joins, meetings

__all__ = ["DEFAULT", "Join", "JoinKind", "Meeting", "join_of", "joins", "joins_that", "meeting_of", "meetings"]

# Names of joins in designs and recipes: msgspec refuses other names in files.
if TYPE_CHECKING:
    JoinKind = str
else:
    JoinKind = Literal[tuple(joins)]

#: Returns the join with a name in a design; raises UnknownNameError for an unknown name.
join_of = joins.get


def joins_that(holds: Callable[[Join], bool]) -> tuple[str, ...]:
    """Return the names of the joins that join branches and satisfy a condition, sorted."""
    return tuple(name for name in joins if joins.get(name).meets is not None and holds(joins.get(name)))


def meeting_of(join: str) -> Meeting:
    """Return the meeting of a join by the join's name in designs and bundles.

    Raises:
        UnknownNameError: If there is no such join.
        ValueError: If it joins nothing.
    """
    meets = joins.get(join).meets
    if meets is None:
        raise ValueError(f"`{join}` joins nothing")
    return meetings.get(meets)
