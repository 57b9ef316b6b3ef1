"""The reference for a bundle's results: the whole model on ONNX Runtime as one graph, with the largest allowed error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.bundle.statements import ROUNDING
from scheduler.cores import pinned
from scheduler.delegates.base import Array, UnableError
from scheduler.delegates.cpu import CpuDelegate
from scheduler.faults.policy import FaultPolicy
from scheduler.runtime.inputs import Values, as_arrays, unwrap_single

#: Rounding error of numbers around 1 in single precision.
ROUNDING_ERROR = 4 * float(np.finfo(np.float32).eps)


class Sequential:
    """A whole model in one ONNX file.

    Args:
        cores: Cores for the model, one thread each; empty for one unpinned thread.
    """

    def __init__(self, model: Path, cores: tuple[int, ...] = ()) -> None:
        self.cores = cores
        compiled = CpuDelegate(cores).compile(model)
        self._inputs = {name: np.zeros(shape, np.float32) for name, shape in compiled.inputs.items()}
        self._outputs = {name: np.zeros(shape, np.float32) for name, shape in compiled.outputs.items()}
        self._call = compiled.bind(list(self._inputs.values()), list(self._outputs.values()))

    def run(self, x: Values) -> Values:
        """Return the file's output for `x`; arrays by name if the file has several outputs."""
        for name, arguments in as_arrays(x, list(self._inputs)).items():
            buffer = self._inputs[name]
            if arguments.shape != buffer.shape:
                raise StretchError(f"the model takes {list(buffer.shape)}, the input has shape {list(arguments.shape)}")
            np.copyto(buffer, arguments)
        with pinned(self.cores[:1]):
            self._call.run()
        return unwrap_single({name: output.copy() for name, output in self._outputs.items()})

    def time(self) -> float:
        """Run on the last input, and return the time in ms."""
        with pinned(self.cores[:1]):
            start = perf_counter_ns()
            self._call.run()
            return (perf_counter_ns() - start) / 1e6


def max_error(actual: Values, expected: Values) -> float:
    """Return the largest difference relative to the largest expected element; for several outputs, the largest of all."""
    if isinstance(expected, Mapping):
        assert isinstance(actual, Mapping)
        return max(max_error(actual[name], value) for name, value in expected.items())
    assert not isinstance(actual, Mapping)
    return relative(actual, expected)


def relative(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference of two tensors, relative to the largest element of `expected`.

    Numbers that are all between 0 and 1 may come from a sigmoid: runtimes compute it from numbers around 1, whose rounding
    error counts as no difference, however small the sigmoid's result is.
    """
    largest = float(np.max(np.abs(expected)))
    difference = float(np.max(np.abs(actual - expected)))
    if float(np.min(expected)) >= 0 and largest <= 1:
        # a difference that is NaN stays NaN
        difference = difference if difference != difference else max(0.0, difference - ROUNDING_ERROR)
    return difference / largest if largest else difference


#: fp32: largest difference over the largest element, with room for delegates that add in another order. Otherwise root mean
#: square of the difference over that of the tensor: rounding moves every element a little, on random numbers more than on images.
TOLERANCES = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.3}

#: Allowed error of another runtime, as a multiple of the error in the bundle's `ROUNDING`. All orders of a float sum have one
#: bound, (n - 1)·eps·Σ|a·b| (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), so their errors have one size and scatter around it.
MARGIN = 4


def allowed_distance(checks: Mapping[str, Any], tensor: str, precision: str = "fp32", default: float | None = None) -> float:
    """Return the largest `distance` that is not a fault.

    Args:
        precision: Precision of the computation: ``fp32``, ``fp16`` or ``int8``.
        default: Tolerance for most networks; that of `TOLERANCES` if None.
    """
    default = TOLERANCES[precision] if default is None else default
    # an invalid statement in a bundle is ignored here; `stretch verify` reports it
    rounding = checks.get(ROUNDING)
    stated = rounding.get(tensor) if isinstance(rounding, dict) else None
    return max(default, MARGIN * stated) if precision == "fp32" and isinstance(stated, float) else default


def distance(actual: Array, expected: Array, precision: str) -> float:
    """Return the distance of a tensor from the expected one; NaN if the tensor has a NaN.

    Args:
        precision: ``fp32``, ``fp16`` or ``int8``.
    """
    with np.errstate(all="ignore"):
        if precision == "fp32":
            return max_error(actual, expected)
        return float(np.linalg.norm((actual - expected).ravel().astype(np.float64))) / (float(np.linalg.norm(expected)) or 1.0)


#: Computes a subgraph's outputs from the same inputs with another delegate, and returns its name, too; None without another delegate.
Recompute = Callable[[], tuple[str, Sequence[Array]] | None]


@dataclass
class Check:
    """Checks a subgraph's outputs after each run."""

    outputs: Sequence[Array]  # Output buffers of the subgraph.
    recompute: Recompute  # Computes the outputs with another delegate.
    precision: str  # Precision of the subgraph.
    allowed: Sequence[float]  # Allowed distance of each output from the other delegate's (`scheduler.runtime.sequential.allowed_distance`).
    policy: FaultPolicy  # Policy that selects the checks.
    runs: int = 0

    def __call__(self) -> None:
        """Check the outputs, and raise UnableError if they are wrong."""
        self.runs += 1
        spot = self.policy.spot_every > 0 and self.runs % self.policy.spot_every == 0
        if not spot and (not self.policy.finite or all(map(_finite, self.outputs))):
            return
        with np.errstate(all="ignore"):  # the numbers may be anything
            recomputed = self.recompute()
        if recomputed is None:
            return
        name, expected = recomputed
        for actual, reference, allowed in zip(self.outputs, expected, self.allowed, strict=True):
            if not _finite(reference):
                continue  # the network itself gives no finite numbers here
            if not _finite(actual):
                raise UnableError(f"it gave NaN or infinity where the delegate `{name}` gives numbers")
            error = distance(actual, reference, self.precision)
            if not error <= allowed:
                raise UnableError(
                    f"its result is off by {error:.2g} from that of the delegate `{name}`, {allowed:g} is allowed in {self.precision}"
                )


def _finite(array: Array) -> bool:
    """Return whether all numbers are finite; a sum in double precision is not finite if one of them is not."""
    return bool(np.isfinite(array.sum(dtype=np.float64)))
