"""Attempts that a request expands into, as data: each is planned only if no attempt before it has a design."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stretch.planning.config import STRETCH, PlanConfig
from stretch.planning.messages import format_value

#: Loosest rules: a transfer may take any share of a segment, and merged stages form one segment with the fewest transfers.
MERGED_OPTIONS = {"alpha": 100.0, "merge": "always"}


class Attempt(NamedTuple):
    """A request that is planned in place of the user's request."""

    options: Mapping[str, Any]  # Options that differ from the request; empty for the request itself.
    note: str = ""  # End of the warning, after the reason why the request itself has no design.
    must_gain: bool = False  # Whether its design counts only if it is faster than the best single processor.


def attempts(config: PlanConfig, default: PlanConfig) -> tuple[Attempt, ...]:
    """Return the request itself, then its replacements if it has no design: merged stages, exact branches, the undivided network.

    Args:
        config: The checked request.
        default: The checked request for the same processors without any option.
    """
    if config.kinds or config.lossless or config.accuracy or config.widens or config.strategy != default.strategy:
        return (Attempt({}),)
    merged = " and ".join(f"`{name}={format_value(value)}`" for name, value in MERGED_OPTIONS.items())
    # an exact design always agrees with the original, so the bound on agreement is dropped
    exact = {"lossless": True, "min_agreement": None}
    divided = f": the network is divided exactly instead, as with `lossless` and `precision={format_value(config.precision)}`"
    result = Attempt({}), Attempt(MERGED_OPTIONS, f": planned as with {merged} instead", must_gain=True), Attempt(exact, divided)
    whole = Attempt({**exact, "n_meet": 0}, ", not even exactly: the network stays whole")
    return (*result, whole) if config.n_meet == default.n_meet else result


class StageAttempt(NamedTuple):
    """A space of designs that is searched for stretched segments."""

    merged: bool  # Whether neighbouring stages may be one segment.
    max_meetings: bool = False  # Whether designs with the maximum number of meeting points come first.


def stage_attempts(config: PlanConfig, *, loss_known: bool) -> tuple[StageAttempt, ...]:
    """Return the spaces to search, one after the other, until one has a design.

    Merged stages lower the accuracy of a trained network, and more so with fewer meeting points (paper 003, table 3). So with
    ``merge = "auto"`` they are the last resort, unless their loss is known.
    """
    if config.merge != "auto" or config.meet or STRETCH not in config.planned_kinds:
        return (StageAttempt(config.merge == "always"),)
    return (StageAttempt(True),) if loss_known else (StageAttempt(False), StageAttempt(True, max_meetings=True))
