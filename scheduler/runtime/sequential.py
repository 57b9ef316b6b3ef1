"""A whole model on ONNX Runtime, as one graph on all the cores it is given: the controls of a bundle."""

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.cores import pinned
from scheduler.delegates.cpu import CpuDelegate
from scheduler.runtime.inputs import Values, as_arrays, plain

#: The last places of numbers around 1 in single precision.
LAST_PLACES = 4 * float(np.finfo(np.float32).eps)


class Sequential:
    """One ONNX file.

    Args:
        cores: Cores it may use, one thread each; empty for one thread anywhere.
    """

    def __init__(self, model: Path, cores: tuple[int, ...] = ()) -> None:
        self.cores = cores
        compiled = CpuDelegate(cores).compile(model)
        self._inputs = {name: np.zeros(shape, np.float32) for name, shape in compiled.inputs.items()}
        self._outputs = {name: np.zeros(shape, np.float32) for name, shape in compiled.outputs.items()}
        self._call = compiled.bind(list(self._inputs.values()), list(self._outputs.values()))

    def run(self, x: Values) -> Values:
        """Its output for `x`: by name each, where it has several inputs or outputs."""
        for name, arguments in as_arrays(x, list(self._inputs)).items():
            buffer = self._inputs[name]
            if arguments.shape != buffer.shape:
                raise StretchError(f"the model takes {list(buffer.shape)}, the input has shape {list(arguments.shape)}")
            np.copyto(buffer, arguments)
        with pinned(self.cores[:1]):
            self._call.run()
        return plain({name: output.copy() for name, output in self._outputs.items()})

    def time(self) -> float:
        """Milliseconds of one run on the last input."""
        with pinned(self.cores[:1]):
            start = perf_counter_ns()
            self._call.run()
            return (perf_counter_ns() - start) / 1e6


def max_error(got: Values, expected: Values) -> float:
    """Largest difference, relative to the largest expected element; of several outputs, the worst."""
    if isinstance(expected, Mapping):
        assert isinstance(got, Mapping)
        return max(max_error(got[name], value) for name, value in expected.items())
    assert not isinstance(got, Mapping)
    return relative(got, expected)


def relative(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest difference of two tensors, relative to the largest element of the second.

    What lies between 0 and 1 everywhere may come of a sigmoid: runtimes compute it from numbers around 1, of which
    the last places are no difference, however little is left.
    """
    largest = float(np.max(np.abs(expected)))
    difference = float(np.max(np.abs(got - expected)))
    if float(np.min(expected)) >= 0 and largest <= 1:
        # a difference that is no number stays none
        difference = difference if difference != difference else max(0.0, difference - LAST_PLACES)
    return difference / largest if largest else difference
