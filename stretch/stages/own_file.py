"""Comparison of a network with the file that it was read from, which its own runtime runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from predictors.errors import StretchError
from scheduler.bundle.manifest import SourceFile, SourceTensor
from scheduler.runtime.own import SourceFileRunner
from scheduler.runtime.sequential import MARGIN, distance
from stretch.export.checks import own_errors
from stretch.network.capture.inputs import Inputs
from stretch.network.capture.results import walk_leaves
from stretch.network.models.builder import OwnNetwork
from stretch.network.models.load import LoadedModel

#: Maximum difference from the file, relative to its largest element; in lower precisions the root mean square, on the best input.
TOLERANCES = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.3}

#: Maximum relative difference of an inner tensor of the file from the network's.
_INNER_TOLERANCE = 1e-3

#: Scales of the normally distributed random inputs; the last input has absolute values.
_SCALES = (1.0, 3.0, 1.0)

Arrays = Mapping[str, Any]


def check_own_file(loaded: LoadedModel) -> tuple[list[str], tuple[Path, SourceFile] | None]:
    """Compare a network with its file on several random inputs.

    Returns:
        Warnings if the file could not be run or rounds differently; and the file with its inputs and outputs, None if it did not run.

    Raises:
        StretchError: If the file's outputs differ; the error names the first operator that differs, if known.
    """
    path, network = Path(loaded.name), getattr(loaded.module, "own_file", None)
    if not isinstance(network, OwnNetwork) or loaded.weights_source != "given":
        return [], None
    unknown = f"it is not known whether the network computes the same as {path}"
    inputs, best = Inputs.of(loaded.input_shape, loaded.module), float("inf")
    try:
        run = network.opener(path, network.own)
        compared = [(x, run(x)) for x in _inputs(network, inputs)]
        again = run(compared[-1][0])
    except StretchError as error:
        return [f"{unknown}: {error.message}" + (f" ({error.hint})" if error.hint else "")], None
    if not all(np.array_equal(value, again[name], equal_nan=True) for name, value in compared[-1][1].items()):
        return [f"{unknown}: the file gives other numbers each time"], None
    for x, want in compared:
        apart, name = _difference(network, loaded, inputs, x, want)
        best = min(best, apart)
        if network.own.precision == "fp32" and not apart <= TOLERANCES["fp32"] and not apart <= MARGIN * _noise(loaded, inputs, x):
            raise _mismatch_error(network, loaded, name, apart, x)
    far = network.own.precision != "fp32" and not best <= TOLERANCES[network.own.precision]
    warning = f"outputs of {path}, which computes in {network.own.precision}, are {best:.2g} of their size away from those of this network in fp32"
    return [warning] * far, (path, network.own)


def _inputs(network: OwnNetwork, inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Yield random inputs by the forward's arguments, in the value ranges of the file's types."""
    rng = np.random.default_rng(0)
    for number, scale in enumerate(_SCALES):
        shapes = dict(zip((end.tensor for end in network.own.inputs), inputs.shapes.values(), strict=True))
        drawn = {end.tensor: _numbers(rng, end, shapes[end.tensor], scale) for end in network.own.inputs}
        yield {name: np.asarray(np.abs(x) if number + 1 == len(_SCALES) else x) for name, x in drawn.items()}


def _numbers(rng: np.random.Generator, end: SourceTensor, shape: tuple[int, ...], scale: float) -> Any:
    """Return random numbers for one input: floats, integers of its type, or floats that its quantised bytes can represent."""
    if not end.dtype.startswith(("int", "uint")):
        return (rng.standard_normal(shape) * scale).astype(np.float32)
    limits = np.iinfo(end.dtype)
    low, high = (limits.min, limits.max) if limits.bits == 8 else (0, 9)
    whole = rng.integers(low, high, shape, endpoint=True)
    return ((whole - end.zero_point) * (end.scale or 1)).astype(np.float32)


@torch.inference_mode()
def _difference(network: OwnNetwork, loaded: LoadedModel, inputs: Inputs, x: Arrays, expected: Arrays) -> tuple[float, str]:
    """Return the largest relative difference of an output, and the output's name in the file."""
    actual = dict(walk_leaves(inputs.call(loaded.module, [torch.from_numpy(np.array(array)) for array in x.values()])))
    return max(
        (_relative_difference(actual[end.tensor].numpy(), expected[end.tensor], network.own.precision), end.name)
        for end in network.own.outputs
    )


def _relative_difference(actual: Any, expected: Any, precision: str) -> float:
    """Return the relative difference of two tensors; infinite if their shapes or finite elements differ."""
    if actual.shape != expected.shape:
        return float("inf")
    actual, expected = np.asarray(actual, np.float32), np.asarray(expected, np.float32)
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return float("inf")
    return distance(actual[finite], expected[finite], precision) if finite.any() else 0.0


@torch.inference_mode()
def _noise(loaded: LoadedModel, inputs: Inputs, x: Arrays) -> float:
    """Return the largest relative rounding error of the network's outputs in fp32."""
    return max(
        own_errors(
            lambda module, reads: list(dict(walk_leaves(inputs.call(module, [read.clone() for read in reads]))).values()),
            loaded.module,
            [torch.from_numpy(np.array(array)) for array in x.values()],
        )
    )


def _mismatch_error(network: OwnNetwork, loaded: LoadedModel, name: str, error: float, x: Arrays) -> StretchError:
    first = _first_difference(network, loaded, x)
    return StretchError(
        f"what was read of {loaded.name} gives other numbers than the file: its output `{name[:80]}` differs by {error:.2g} of its largest number"
        + (f", and the first difference is at {first}" if first else ""),
        "export the network without that operator, or give the module itself as `module:factory`; please report the operator",
    )


class _Recorder(fx.Interpreter):
    """Interpreter that keeps some tensors of a network.

    Attributes:
        kept: Results of the requested nodes, by name.
    """

    def __init__(self, module: fx.GraphModule, names: set[str]) -> None:
        super().__init__(module)
        self.kept: dict[str, Any] = {}
        self._names = names

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and keep its result if requested."""
        result = super().run_node(n)
        if n.name in self._names and isinstance(result, torch.Tensor):
            self.kept[n.name] = result.numpy().copy()
        return result


@torch.inference_mode()
def _first_difference(network: OwnNetwork, loaded: LoadedModel, x: Arrays) -> str:
    """Return the first operator of the file whose result differs from the network's; empty if unknown."""
    if not network.operators:
        return ""
    assert isinstance(loaded.module, fx.GraphModule)
    places = {name: place for _, results in network.operators for name, place in results.items()}
    recorder = _Recorder(loaded.module, {node for node, _ in places.values()})
    recorder.run(*(torch.from_numpy(np.array(array)) for array in x.values()))
    names = [name for name, (node, _) in places.items() if node in recorder.kept]
    try:
        file = SourceFileRunner(Path(loaded.name), network.own, inner=names)
        file.run(x)
        seen = file.inner_tensors(names)
    except StretchError:
        return ""
    for described, results in network.operators:
        for name, (node, order) in results.items():
            if name in seen and node in recorder.kept:
                actual = recorder.kept[node]
                if not _relative_difference(actual.transpose(order) if order else actual, seen[name], "fp32") <= _INNER_TOLERANCE:
                    return described
    return ""
