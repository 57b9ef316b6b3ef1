"""How sure a ratio of two measured times is, from rounds in which both were measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    half = T_975[count - 2] * float(logs.std(ddof=1)) / math.sqrt(count)
    centre = float(logs.mean())
    return Ratio(value, min(value, math.exp(centre - half)), max(value, math.exp(centre + half)))
