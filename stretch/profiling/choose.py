"""Which networks to measure next: those whose kernels the fits so far disagree about.

Query by committee (Seung, Opper and Sompolinsky 1992): fits to different halves of
what was measured agree where there is enough of it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from predictors.fits.fit import KernelGroup
from predictors.fitting.formula import Formula
from predictors.fitting.single import Timed, fit_kernels, time_kernels
from predictors.fusion import KernelCost
from predictors.graph import OpGraph
from predictors.models.terms import Grain
from stretch.profiling.styles import STYLES, draw

#: Fits that vote, and networks that are drawn for each that is taken.
COMMITTEE, POOL = 4, 6

#: Share of networks taken as they are drawn: what no fit doubts yet may still be wrong.
EXPLORE = 0.5

#: Groups of networks that are left out together when fits are judged.
GROUPS = 10

Committee = list[dict[str, KernelGroup]]


def appoint(rows: Sequence[Timed], formula: Formula, grain: Grain, seed: int) -> Committee:
    """Fits to random halves of the networks that were measured."""
    names = sorted({row.network for row in rows})
    rng = np.random.default_rng(seed)
    found = []
    with one_thread():
        for _ in range(COMMITTEE):
            half = set(rng.permutation(names)[: max(1, len(names) // 2)])
            found.append(fit_kernels([row for row in rows if row.network in half], formula, grain))
    return found


def one_thread() -> AbstractContextManager[object]:
    """Grow trees on one thread: on small tables threads wait for each other, on busy machines for a hundred times as long."""
    # What it limits must be there already.
    import sklearn.ensemble  # noqa: F401
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="openmp")
    return limits


def doubt(committee: Committee, costs: Sequence[KernelCost], grain: Grain) -> float:
    """How much the fits disagree about a network: standard deviation of the logarithm of its time.

    A kernel that a fit has no group for counts as much as all the others together.
    """
    times = np.array([time_kernels(groups, costs, grain) for groups in committee])
    known = np.nansum(times, axis=1)
    missing = np.isnan(times).sum(axis=1)
    totals = np.maximum(known, 1e-6) * (1 + missing)
    return float(np.std(np.log(totals)))


class Chooser:
    """Draws networks, each seed of a style once.

    Args:
        taken: Names of networks that were measured already.
    """

    def __init__(self, taken: Sequence[str]) -> None:
        self._seeds = dict.fromkeys(STYLES, 0)
        for name in taken:
            style, _, number = name.rpartition("-")
            if style in self._seeds:
                self._seeds[style] = max(self._seeds[style], int(number) + 1)
        self._drawn = len(taken)

    def draw(self, count: int) -> list[OpGraph]:
        """Networks of the styles in turn."""
        found = []
        for _ in range(count):
            style = STYLES[self._drawn % len(STYLES)]
            found.append(draw(style, self._seeds[style]))
            self._seeds[style] += 1
            self._drawn += 1
        return found

    def choose(self, count: int, doubt_of: Callable[[OpGraph], float] | None) -> list[OpGraph]:
        """Networks to measure next."""
        if doubt_of is None:
            return self.draw(count)
        plain = round(count * EXPLORE)
        pool = self.draw((count - plain) * POOL)
        return self.draw(plain) + sorted(pool, key=doubt_of, reverse=True)[: count - plain]


def family_of(name: str) -> str:
    """What a network is left out with when fits are judged: some of every style, as users' networks are of styles that were measured."""
    style, _, number = name.rpartition("-")
    return f"draws {(STYLES.index(style) + int(number)) % GROUPS}"
