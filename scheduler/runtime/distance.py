"""How far a tensor may be from what it should be, by the precision that it was computed in."""

import numpy as np

from scheduler.delegates.base import Array
from scheduler.runtime.sequential import max_error

#: fp32: largest difference over the largest element, with room for delegates that add up in another order. Else root mean
#: square of the difference over that of the tensor: rounding moves every element a little, on random numbers more than on images.
TOLERANCE = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.3}


def distance(got: Array, expected: Array, precision: str) -> float:
    """How far a tensor is from the expected one; NaN if it holds one.

    Args:
        got: The tensor.
        expected: Of the same shape.
        precision: ``fp32``, ``fp16`` or ``int8``.
    """
    with np.errstate(all="ignore"):
        if precision == "fp32":
            return max_error(got, expected)
        return float(np.linalg.norm((got - expected).ravel().astype(np.float64))) / (float(np.linalg.norm(expected)) or 1.0)
