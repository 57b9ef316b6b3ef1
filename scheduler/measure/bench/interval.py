"""How sure a median is, from rounds of several starts, and where that of another such measurement is expected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.measure.interval import BATCHES, T_975

#: Starts at most: there are as many quantiles.
MOST_STARTS = len(T_975) + 1


@dataclass(frozen=True)
class Known:
    """A positive number with its intervals; None for an end that too few rounds give."""

    value: float  # Median of all rounds.
    low: float | None  # Lower end of its 95 % interval.
    high: float | None  # Upper end.
    repeat_low: float | None  # Where the median of another measurement of as many starts is expected in 95 % of all cases.
    repeat_high: float | None  # Upper end of that.

    @property
    def side(self) -> int:
        """1 if the value is surely above one, −1 if below, 0 if one lies in its interval or there is none."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 1 else -1 if self.high < 1 else 0

    @property
    def width(self) -> float:
        """The farther end of the interval from the value, relative; infinity where there is none."""
        if self.low is None or self.high is None:
            return math.inf
        return max(self.high / self.value - 1, 1 - self.low / self.value)


def known(starts: Sequence[Sequence[float]]) -> Known:
    """The median of rounds that resemble each other, and how sure it is.

    What is sampled are starts, not rounds: where a network's memory lies, which cores' caches it shares and how warm the
    machine is differ from start to start and stay within one, so that rounds of one start know nothing of it (Kalibera and
    Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013). Each start is a batch with one median, and the interval is
    Student's around the mean of their logarithms; a single start is cut into stretches of time (non-overlapping batch means;
    Law, Simulation Modeling and Analysis, chapter 9). Rounds that resemble their neighbours are in one batch, so neither
    takes them for independent. Another measurement's mean varies as much as this one's: its interval is √2 as wide.
    Both are widened to hold the median of all rounds.

    Args:
        starts: Times or ratios, all above 0, of each start, in the order of their rounds; at most `MOST_STARTS`.
    """
    value = float(np.median(np.concatenate([np.asarray(start, float) for start in starts])))
    batches = [np.asarray(start, float) for start in starts]
    if len(batches) == 1:
        batches = np.array_split(batches[0], min(BATCHES, len(batches[0])))
    if len(batches) < 2:
        return Known(value, None, None, None, None)
    logs = np.array([math.log(float(np.median(batch))) for batch in batches])
    half = T_975[len(batches) - 2] * float(logs.std(ddof=1)) / math.sqrt(len(batches))
    centre = float(logs.mean())

    def ends(wide: float) -> tuple[float, float]:
        # beyond what a number holds the interval is as good as endless
        return min(value, math.exp(max(centre - wide, -700.0))), max(value, math.exp(min(centre + wide, 700.0)))

    return Known(value, *ends(half), *ends(math.sqrt(2) * half))


def paired(times: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> list[list[float]]:
    """The ratio of two contenders in each round, by starts: what slows a round down slows both."""
    return [[a / b for a, b in zip(one, other, strict=True)] for one, other in zip(times, others, strict=True)]
