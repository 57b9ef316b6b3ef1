"""Least squares without negative terms, and intervals of what they predict."""

from collections.abc import Mapping, Sequence
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from predictors.fits.fit import Interval

Vector = NDArray[np.float64]

#: Digits of a stored number: more than any table has, and fewer than two machines round alike.
DIGITS = 6


def solve(matrix: Vector, times: Vector, prior: Vector | None = None, spread: float = 1.0, noise: float = 0.05) -> Vector:
    """Sizes c ≥ 0 that minimise Σ(matrix·c ÷ times − 1)² + noise² · Σ((c − prior) ÷ (spread · prior))².

    The most likely sizes if times have a relative error of `noise` and each size
    one of `spread` around its prior: ridge regression towards the prior
    (Hoerl and Kennard 1970), restricted to sizes that physics allows.

    Args:
        prior: Size of each term before anything was measured; None for plain least squares.
    """
    return _weighted(matrix, times, np.ones(len(times)), prior, spread, noise)


def solve_robustly(
    matrix: Vector, times: Vector, prior: Vector, spread: float | Vector, noise: float = 0.05, least: Vector | None = None
) -> Vector:
    """Solve like `solve`, with outliers weighted down: Cauchy weights, three rounds (Holland and Welsch 1977)."""
    weights = np.ones(len(times))
    sizes = prior
    for _ in range(3):
        sizes = _weighted(matrix, times, weights, prior, spread, noise, least)
        error = matrix @ sizes / times - 1
        scale = max(1.4826 * float(np.median(np.abs(error))), 0.02)
        weights = 1 / np.sqrt(1 + (error / (3 * scale)) ** 2)
    return sizes


def _weighted(
    matrix: Vector,
    times: Vector,
    weights: Vector,
    prior: Vector | None,
    spread: float | Vector,
    noise: float,
    least: Vector | None = None,
) -> Vector:
    from scipy.optimize import nnls

    rows = matrix / times[:, None] * weights[:, None]
    targets = weights
    if prior is None:
        unit = np.sqrt((rows**2).mean(axis=0))
        unit = 1 / np.where(unit > 0, unit, 1.0)
    else:
        unit = prior
        rows = np.vstack([rows, np.diag(noise / (spread * np.maximum(prior, np.finfo(float).tiny)))])
        targets = np.append(weights, np.full(len(prior), noise) / spread)
    # Columns of one size: products are counted in 10⁹, launches in ones.
    low = np.zeros(rows.shape[1]) if least is None else least
    sizes, _ = nnls(rows * unit, targets - rows @ low, maxiter=100 * rows.shape[1])
    weighted: Vector = low + sizes * unit
    return weighted


def rounded(value: float) -> float:
    """A number with as many digits as are stored."""
    return float(f"{value:.{DIGITS - 1}e}")


COVERAGE = 0.9

#: Number of nominal levels to try, from the coverage upwards.
_LEVELS = 8

METHOD = (
    "cross-conformal by family: quantiles of measured ÷ predicted over networks that were left out with their families "
    "(CV+ of Barber, Candès, Ramdas and Tibshirani 2021, leaving out groups as Dunn, Wasserman and Ramdas 2023 do)"
)

FAMILY_METHOD = (
    "cross-conformal by family: quantiles of measured ÷ predicted over networks that were left out with their families "
    "(CV+ of Barber, Candès, Ramdas and Tibshirani 2021), at the least level that covers the rest when one family more is left out"
)


def interval_ends(ratios: Sequence[float], coverage: float = COVERAGE) -> tuple[float, float]:
    """Factors on a prediction between which a new time lies with probability `coverage`.

    Both ends are order statistics, each with half of the rest beyond it; with n
    ratios the k-th smallest is k ÷ (n + 1) of the way. With too few for that the outermost are taken.

    Args:
        ratios: Measured ÷ predicted of networks left out, at least one.
        coverage: Between 0 and 1.
    """
    ordered = sorted(ratios)
    n, beyond = len(ordered), (1 - coverage) / 2
    low = ordered[max(floor((n + 1) * beyond), 1) - 1]
    high = ordered[min(ceil((n + 1) * (1 - beyond)), n) - 1]
    return min(low, 1.0), max(high, 1.0)


def _covering_ends(ratios: Mapping[str, float], families: Mapping[str, str], level: float) -> float:
    """Share of networks between the ends that networks of other families give at a level."""
    covered = []
    for family in {families[name] for name in ratios}:
        other_ratios = [ratio for name, ratio in ratios.items() if families[name] != family]
        if other_ratios:
            low, high = interval_ends(other_ratios, level)
            covered += [low <= ratio <= high for name, ratio in ratios.items() if families[name] == family]
    return float(np.mean(covered)) if covered else 0.0


def family_interval_ends(ratios: Mapping[str, float], families: Mapping[str, str], coverage: float = COVERAGE) -> tuple[float, float]:
    """Factors on a prediction between which a network of a new family lies with probability `coverage`.

    Networks of one family err alike, so that quantiles over networks promise too
    much: the level is raised until families that are left out are covered.
    """
    levels = [1 - (1 - coverage) * (1 - step / _LEVELS) for step in range(_LEVELS)]
    level = next((candidate for candidate in levels if _covering_ends(ratios, families, candidate) >= coverage), levels[-1])
    return interval_ends(list(ratios.values()), level)


def interval(ratios: Sequence[float], coverage: float = COVERAGE) -> Interval:
    """The interval of a fit from all ratios, see `ends`."""
    return _interval(*interval_ends(ratios, coverage), coverage, METHOD)


def family_interval(ratios: Mapping[str, float], families: Mapping[str, str], coverage: float = COVERAGE) -> Interval:
    """The interval of a fit from all ratios, see `family_ends`."""
    return _interval(*family_interval_ends(ratios, families, coverage), coverage, FAMILY_METHOD)


def _interval(low: float, high: float, coverage: float, method: str) -> Interval:
    return Interval(coverage, float(f"{low:.4g}"), float(f"{high:.4g}"), method)


def family_coverage(ratios: Mapping[str, float], families: Mapping[str, str], coverage: float = COVERAGE) -> float:
    """Return the coverage of the interval under leave-one-family-out, its level included."""
    covered = []
    for family in sorted({families[name] for name in ratios}):
        other_ratios = {name: ratio for name, ratio in ratios.items() if families[name] != family}
        if other_ratios:
            low, high = family_interval_ends(other_ratios, families, coverage)
            covered += [low <= ratio <= high for name, ratio in ratios.items() if families[name] == family]
    return float(np.mean(covered)) if covered else 0.0
