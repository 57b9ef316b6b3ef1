"""Error messages for steps and delegates that fail or hang, one sentence each."""

from predictors.errors import StretchError
from scheduler.delegates.base import origin
from scheduler.placement.place import Placement


class HangError(StretchError):
    """A delegate did not return and cannot be stopped: its thread is lost.

    Attributes:
        subgraph: Name of the subgraph.
        placement: Placement of the subgraph.
        limit_s: Exceeded time limit, s.
    """

    subgraph: str
    placement: Placement
    limit_s: float

    @classmethod
    def of(cls, subgraph: str, placement: Placement, limit_s: float) -> "HangError":
        """Return an error for a subgraph that hangs."""
        result = cls(
            f"subgraph `{subgraph}` {_timeout_text(limit_s)} on processor `{placement.processor}` (delegate `{placement.delegate}`)",
            f"run it elsewhere with --map {placement.processor}=cpu, or allow more with --time-limit",
        )
        result.subgraph, result.placement, result.limit_s = subgraph, placement, limit_s
        return result


def hang_reason(limit_s: float) -> str:
    """Return a description of a call that takes too long, as the end of a sentence."""
    return f"it {_timeout_text(limit_s)}"


def _timeout_text(limit_s: float) -> str:
    return f"did not end within {limit_s:g} s"


def step_failure(step: str, place: Placement | None, cause: BaseException | None, text: str = "") -> StretchError:
    """Return an error with the step, its placement and the reason; its hint is that of the cause."""
    message = (str(cause) if cause is not None else text).strip() or text.strip()
    reason = message.splitlines()[0] if message else type(cause).__name__
    if place is None:
        return StretchError(f"join `{step}` failed: {reason}")
    hint = cause.hint if isinstance(cause, StretchError) else None
    return StretchError(
        f"subgraph `{step}` failed on processor `{place.processor}` (delegate `{place.delegate}`): {reason}",
        hint or _authors(place.delegate),
    )


def delegate_failure(name: str, action: str, cause: Exception) -> StretchError:
    """Return an error that names a failed delegate and its package."""
    reason = (str(cause).strip().splitlines() or [""])[0]
    return StretchError(
        f"the delegate `{name}` failed to {action}: {type(cause).__name__}{f': {reason}' if reason else ''}", _authors(name)
    )


def _authors(name: str) -> str | None:
    package = origin(name)
    return f"`{name}` is a plug-in ({package}): report it to its authors" if package else None
