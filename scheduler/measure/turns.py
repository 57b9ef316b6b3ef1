"""Contestants in turns, and how sure what comes of their rounds is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


def play_round(contestants: Mapping[str, Callable[[], T]], number: int) -> dict[str, T]:
    """Run every contestant once, in an order that rotates."""
    order = list(contestants)
    first = number % len(order) if order else 0
    return {name: contestants[name]() for name in order[first:] + order[:first]}


#: Batches that the rounds are cut into, if there are as many rounds.
BATCHES = 8

#: 97.5 % quantiles of Student's t distribution with 1, 2, … degrees of freedom.
T_975 = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624)


@dataclass(frozen=True)
class Ratio:
    """A ratio of times with its interval."""

    value: float  # Median of the one over median of the other, all rounds together.
    low: float  # Lower end of the 95 % interval; 0 if there are too few rounds for one.
    high: float  # Upper end; infinity if there are too few.

    @property
    def side(self) -> int:
        """1 if the ratio is above one, −1 if below, 0 if the interval holds one."""
        return 1 if self.low > 1 else -1 if self.high < 1 else 0

    def __str__(self) -> str:
        """``0.97–1.06``."""
        return f"{self.low:.2f}–{self.high:.2f}" if math.isfinite(self.high) else "unknown"


def ratio_interval(times: Sequence[float], others: Sequence[float]) -> Ratio:
    """The ratio of the medians of two series that were measured in turns, with a 95 % interval.

    Non-overlapping batch means (Law, Simulation Modeling and Analysis, chapter
    9): the rounds are cut into `BATCHES` stretches of time, each gives one
    ratio of medians, and the interval is Student's around the mean of their
    logarithms. Rounds that follow each other resemble each other, and machines
    drift; whole stretches are nearly independent, and where they disagree the
    interval grows with them, which one over single rounds would not. It is
    widened to hold the ratio of all rounds, should that lie outside.
    """
    a, b = np.asarray(times, float), np.asarray(others, float)
    value = float(np.median(a) / np.median(b))
    count = min(BATCHES, len(a))
    if count < 2:
        return Ratio(value, 0.0, math.inf)
    logs = np.array([np.log(np.median(x) / np.median(y)) for x, y in zip(np.array_split(a, count), np.array_split(b, count), strict=True)])
    low, high = _ends(value, logs)
    return Ratio(value, low, high)


def _ends(value: float, logs: NDArray[np.float64], wider: float = 1.0) -> tuple[float, float]:
    """Student's 95 % interval around the mean of logarithms, so many times as wide, widened to hold a value."""
    half = wider * T_975[len(logs) - 2] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    centre = float(logs.mean())
    # beyond what a number holds the interval is as good as endless
    return min(value, math.exp(max(centre - half, -700.0))), max(value, math.exp(min(centre + half, 700.0)))


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
    """
    value = float(np.median(np.concatenate([np.asarray(start, float) for start in starts])))
    batches = [np.asarray(start, float) for start in starts]
    if len(batches) == 1:
        batches = np.array_split(batches[0], min(BATCHES, len(batches[0])))
    if len(batches) < 2:
        return Known(value, None, None, None, None)
    logs = np.array([math.log(float(np.median(batch))) for batch in batches])
    return Known(value, *_ends(value, logs), *_ends(value, logs, math.sqrt(2)))


def paired(times: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> list[list[float]]:
    """The ratio of two contenders in each round, by starts: what slows a round down slows both."""
    return [[a / b for a, b in zip(one, other, strict=True)] for one, other in zip(times, others, strict=True)]
