"""Non-negative least squares on the relative error, with a prior."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

#: Digits of a stored number: beyond what any table says, and short of what two machines may round differently.
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
    """As `solve`, but a few times that are wrong by far hardly count: Cauchy weights, three rounds (Holland and Welsch 1977)."""
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
    wanted = weights
    if prior is None:
        unit = np.sqrt((rows**2).mean(axis=0))
        unit = 1 / np.where(unit > 0, unit, 1.0)
    else:
        unit = prior
        rows = np.vstack([rows, np.diag(noise / (spread * np.maximum(prior, np.finfo(float).tiny)))])
        wanted = np.append(weights, np.full(len(prior), noise) / spread)
    # Columns of one size: products are counted in 10⁹, launches in ones.
    low = np.zeros(rows.shape[1]) if least is None else least
    sizes, _ = nnls(rows * unit, wanted - rows @ low, maxiter=100 * rows.shape[1])
    weighted: Vector = low + sizes * unit
    return weighted


def rounded(value: float) -> float:
    """A number with as many digits as are stored."""
    return float(f"{value:.{DIGITS - 1}e}")
