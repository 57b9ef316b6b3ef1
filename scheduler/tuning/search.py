"""Which candidate is quickest, measured so that noise does not decide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from predictors.errors import StretchError

T = TypeVar("T")

#: Times that each candidate is measured, interleaved; the least counts.
REPEATS = 3
#: A candidate whose first time is this many times the best is not measured again.
HOPELESS = 1.5


@dataclass(frozen=True)
class Quickest(Generic[T]):
    """The quickest candidate."""

    best: T | None  # Which; None if the default is not beaten.
    best_ms: float  # Its least time, or the default's.
    default_ms: float  # The default's least time.
    measured: int  # Measurements made.


def quickest(
    candidates: Sequence[T],
    measure: Callable[[T | None], float | None],
    repeats: int = REPEATS,
    margin: float = 0.03,
    spent: Callable[[], bool] = lambda: False,
) -> Quickest[T]:
    """Measure candidates against the default in turns and take the quickest; never one that is slower than the default.

    Paper 002 times each candidate once and takes the first of the quickest. On
    a machine that others share, two single times of one and the same candidate
    differ by half; hence the turns, and the margin.

    Args:
        measure: Milliseconds of a candidate, of the default if given None; None if the device refuses the candidate.
    """
    contenders = [partial(measure, candidate) for candidate in (None, *candidates)]
    times, count = race(contenders, repeats, HOPELESS, spent=spent)
    if 0 not in times:
        raise StretchError("the kernel does not run with its default work-group")
    default = times.pop(0)
    best = min(times, key=lambda i: (times[i], i), default=None)
    if best is None or times[best] > (1 - margin) * default:
        return Quickest(None, default, default, count)
    return Quickest(candidates[best - 1], times[best], default, count)


def race(
    contenders: Sequence[Callable[[], float | None]],
    rounds: int,
    hopeless: float,
    trial: int = 1,
    spent: Callable[[], bool] = lambda: False,
) -> tuple[dict[int, float], int]:
    """The least time of each contender, measured in turns, so that what disturbs the machine for a while disturbs them all.

    Args:
        contenders: Each gives its time in milliseconds, None if the device refuses it. The first is what the
            others would replace: it is measured in every round; if it is refused, nobody else is measured.
    """
    times: dict[int, float] = {}
    count = 0
    for turn in range(rounds):
        best = float("inf")
        for i, measure in enumerate(contenders):
            if i and spent():
                break
            if i and turn >= trial and times.get(i, float("inf")) > hopeless * best:
                continue
            ms = measure()
            count += 1
            if ms is not None:
                times[i] = min(ms, times.get(i, ms))
            if i == 0:
                if 0 not in times:
                    return {}, count
                best = min(times.values())
    return times, count
