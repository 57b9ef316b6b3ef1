"""Active learning: measure the networks next on which the current fits disagree most.

Query by committee (Seung, Opper and Sompolinsky 1992): fits to different halves of
the measurements agree where there is enough data.
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

#: Size of the committee, and number of candidates per selected network.
COMMITTEE, POOL = 4, 6

#: Share of networks selected at random, as the committee may agree on a wrong prediction.
EXPLORE = 0.5

#: Number of cross-validation groups.
GROUPS = 10

Committee = list[dict[str, KernelGroup]]


def appoint(rows: Sequence[Timed], formula: Formula, grain: Grain, seed: int) -> Committee:
    """Fit each committee member to a random half of the measured networks."""
    names = sorted({row.network for row in rows})
    rng = np.random.default_rng(seed)
    committee = []
    with one_thread():
        for _ in range(COMMITTEE):
            half = set(rng.permutation(names)[: max(1, len(names) // 2)])
            committee.append(fit_kernels([row for row in rows if row.network in half], formula, grain))
    return committee


def one_thread() -> AbstractContextManager[object]:
    """Limit tree fitting to one thread: on small tables, and even more on busy machines, threads only wait for each other."""
    # The library must be loaded before it can be limited.
    import sklearn.ensemble  # noqa: F401
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="openmp")
    return limits


def doubt(committee: Committee, costs: Sequence[KernelCost], grain: Grain) -> float:
    """Disagreement of the committee on a network: standard deviation of the logarithm of its time.

    A kernel that a fit has no group for counts as much as all others together.
    """
    times = np.array([time_kernels(groups, costs, grain) for groups in committee])
    known = np.nansum(times, axis=1)
    missing = np.isnan(times).sum(axis=1)
    totals = np.maximum(known, 1e-6) * (1 + missing)
    return float(np.std(np.log(totals)))


class Chooser:
    """Draws and selects networks, using each seed of a style once."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._seeds = dict.fromkeys(STYLES, 0)
        for name in taken:
            style, _, number = name.rpartition("-")
            if style in self._seeds:
                self._seeds[style] = max(self._seeds[style], int(number) + 1)
        self._drawn = len(taken)

    def draw(self, count: int) -> list[OpGraph]:
        """Draw networks, cycling through the styles."""
        networks = []
        for _ in range(count):
            style = STYLES[self._drawn % len(STYLES)]
            networks.append(draw(style, self._seeds[style]))
            self._seeds[style] += 1
            self._drawn += 1
        return networks

    def choose(self, count: int, doubt_of: Callable[[OpGraph], float] | None) -> list[OpGraph]:
        """Select the networks to measure next."""
        if doubt_of is None:
            return self.draw(count)
        plain = round(count * EXPLORE)
        pool = self.draw((count - plain) * POOL)
        return self.draw(plain) + sorted(pool, key=doubt_of, reverse=True)[: count - plain]


def family_of(name: str) -> str:
    """Cross-validation group of a network; every group has networks of all styles, as users' networks have styles that were measured."""
    style, _, number = name.rpartition("-")
    return f"draws {(STYLES.index(style) + int(number)) % GROUPS}"
