"""How far a tensor may be from what it should be, by the precision that it was computed in; and what looks at results while a bundle runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.bundle.statements import ROUNDING
from scheduler.delegates.base import Array, UnableError
from scheduler.faults.policy import FaultPolicy
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


#: Computes a subgraph's outputs from the same inputs by another delegate, whose name comes with them; None if there is no other.
Other = Callable[[], tuple[str, Sequence[Array]] | None]


@dataclass
class Check:
    """Looks at what a subgraph wrote, after each run."""

    outputs: Sequence[Array]  # Its output buffers.
    other: Other  # Computes them by another delegate.
    precision: str  # Of the subgraph.
    allowed: Sequence[float]  # How far each output may be from the other delegate's (`scheduler.runtime.distance.allowed`).
    policy: FaultPolicy  # What is looked at.
    runs: int = 0

    def __call__(self) -> None:
        """Look."""
        self.runs += 1
        spot = self.policy.spot_every > 0 and self.runs % self.policy.spot_every == 0
        if not spot and (not self.policy.finite or all(map(_finite, self.outputs))):
            return
        with np.errstate(all="ignore"):  # numbers may be any
            other = self.other()
        if other is None:
            return
        name, expected = other
        for got, want, allowed in zip(self.outputs, expected, self.allowed, strict=True):
            if not _finite(want):
                continue  # the network itself has no number there
            if not _finite(got):
                raise UnableError(f"it gave NaN or infinity where the delegate `{name}` gives numbers")
            error = distance(got, want, self.precision)
            if not error <= allowed:
                raise UnableError(
                    f"its result is off by {error:.2g} from that of the delegate `{name}`, {allowed:g} is allowed in {self.precision}"
                )


def _finite(array: Array) -> bool:
    """Whether all numbers are finite; a sum in double precision is not, where one of them is not."""
    return bool(np.isfinite(array.sum(dtype=np.float64)))
