"""How far a tensor may be from what it should be, by the precision that it was computed in."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler.bundle.statements import ROUNDING
from scheduler.delegates.base import Array
from scheduler.runtime.sequential import max_error

#: fp32: largest difference over the largest element, with room for delegates that add up in another order. Else root mean
#: square of the difference over that of the tensor: rounding moves every element a little, on random numbers more than on images.
TOLERANCE = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.3}

#: How many times the error that a bundle states in `ROUNDING` another runtime may be off. All orders of a float sum have one bound, (n - 1)·eps·Σ|a·b|
#: (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), so their errors are of one size and scatter around it.
MARGIN = 4


def allowed(checks: Mapping[str, Any], tensor: str, precision: str = "fp32", usual: float | None = None) -> float:
    """Largest `distance` that is no fault.

    Args:
        precision: It was computed in: ``fp32``, ``fp16`` or ``int8``.
        usual: What is allowed in most networks; that of `TOLERANCE` if None.
    """
    usual = TOLERANCE[precision] if usual is None else usual
    return max(usual, MARGIN * checks.get(ROUNDING, {}).get(tensor, 0.0)) if precision == "fp32" else usual


def distance(got: Array, expected: Array, precision: str) -> float:
    """How far a tensor is from the expected one; NaN if it holds one.

    Args:
        precision: ``fp32``, ``fp16`` or ``int8``.
    """
    with np.errstate(all="ignore"):
        if precision == "fp32":
            return max_error(got, expected)
        return float(np.linalg.norm((got - expected).ravel().astype(np.float64))) / (float(np.linalg.norm(expected)) or 1.0)
