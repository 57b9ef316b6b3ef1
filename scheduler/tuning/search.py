"""Which candidate is quickest, measured so that noise does not decide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from predictors.errors import StretchError

T = TypeVar("T")

#: Times that each candidate is measured, interleaved; the least counts.
REPEATS = 3
#: A candidate whose first time is this many times the best is not measured again.
HOPELESS = 1.5


@dataclass(frozen=True)
class Choice(Generic[T]):
    """The quickest candidate.

    Args:
        best: Which; None if the default is not beaten.
        best_ms: Its least time, or the default's.
        default_ms: The default's least time.
        measured: Measurements made.
    """

    best: T | None
    best_ms: float
    default_ms: float
    measured: int


def choose(
    candidates: Sequence[T],
    measure: Callable[[T | None], float | None],
    repeats: int = REPEATS,
    margin: float = 0.03,
    spent: Callable[[], bool] = lambda: False,
) -> Choice[T]:
    """Measure candidates against the default in turns and take the quickest; never one that is slower than the default.

    Paper 002 times each candidate once and takes the first of the quickest. On
    a machine that others share, two single times of one and the same candidate
    differ by half; hence the turns, and the margin.

    Args:
        candidates: What may replace the default.
        measure: Milliseconds of a candidate, of the default if given None; None if the device refuses the candidate.
        repeats: Times that hopeful candidates are measured.
        margin: Part of the default's time that a candidate must gain.
        spent: Asked before each measurement of a candidate: whether to stop and choose among what is known.

    Raises:
        StretchError: If the default cannot be measured.
    """
    default = measure(None)
    if default is None:
        raise StretchError("the kernel does not run with its default work-group")
    times: dict[int, float] = {}
    count = 1
    for turn in range(repeats):
        if turn:
            again = measure(None)
            default = min(default, again if again is not None else default)
            count += 1
        quickest = min([default, *times.values()])
        for i, candidate in enumerate(candidates):
            if spent():
                break
            if turn and times.get(i, float("inf")) > HOPELESS * quickest:
                continue
            ms = measure(candidate)
            count += 1
            if ms is not None:
                times[i] = min(ms, times.get(i, ms))
    best = min(times, key=lambda i: (times[i], i), default=None)
    if best is None or times[best] > (1 - margin) * default:
        return Choice(None, default, default, count)
    return Choice(candidates[best], times[best], default, count)
