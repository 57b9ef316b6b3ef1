"""How urgent an inference is: its deadline and its priority, checked."""

from math import inf, isfinite

from predictors.errors import UsageError

#: Priorities are from minus to plus this.
MOST_PRIORITY = 100


def checked_priority(priority: int) -> int:
    """A priority."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise UsageError(f"{priority} is no priority", f"it is from {-MOST_PRIORITY} to {MOST_PRIORITY}, the highest goes first")
    return priority


def deadline_at(now_s: float, deadline_ms: float | None) -> float:
    """When a request has to be done, s; infinite for never.

    Args:
        deadline_ms: How long it may take, ms; None for any time.
    """
    if deadline_ms is None:
        return inf
    if not (isfinite(deadline_ms) and deadline_ms > 0):
        raise UsageError(
            f"a deadline in {deadline_ms:g} ms cannot be kept", "give the milliseconds that the request may take, more than none"
        )
    return now_s + deadline_ms / 1e3
