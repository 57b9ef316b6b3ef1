"""A whole model on ONNX Runtime, as one graph on all the cores it is given: the controls of a bundle."""

from pathlib import Path
from time import perf_counter_ns

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array
from scheduler.delegates.cpu import CpuDelegate
from scheduler.placement.cores import pinned


class Sequential:
    """One ONNX file with one input and one output.

    Args:
        model: The file.
        cores: Cores it may use, one thread each; empty for one thread anywhere.

    Raises:
        StretchError: If the file cannot be loaded or has several inputs or outputs.
        MissingBackendError: If ONNX Runtime is missing.
    """

    def __init__(self, model: Path, cores: tuple[int, ...] = ()) -> None:
        self.cores = cores
        compiled = CpuDelegate(cores).compile(model)
        if len(compiled.inputs) != 1 or len(compiled.outputs) != 1:
            raise StretchError(f"{model} has {len(compiled.inputs)} inputs and {len(compiled.outputs)} outputs, it needs one of each")
        self._input = np.zeros(next(iter(compiled.inputs.values())), np.float32)
        self._output = np.zeros(next(iter(compiled.outputs.values())), np.float32)
        self._call = compiled.bind([self._input], [self._output])

    def run(self, x: Array) -> Array:
        """Its output for `x`."""
        if x.shape != self._input.shape:
            raise StretchError(f"the model takes {list(self._input.shape)}, the input has shape {list(x.shape)}")
        np.copyto(self._input, x)
        with pinned(self.cores[:1]):
            self._call.run()
        return self._output.copy()

    def time(self) -> float:
        """Milliseconds of one run on the last input."""
        with pinned(self.cores[:1]):
            start = perf_counter_ns()
            self._call.run()
            return (perf_counter_ns() - start) / 1e6


def max_error(got: Array, expected: Array) -> float:
    """Largest difference, relative to the largest expected element."""
    largest = float(np.max(np.abs(expected)))
    difference = float(np.max(np.abs(got - expected)))
    return difference / largest if largest else difference
