"""Whether a network computes the results of the file that it was read from: the file itself, run by its own runtime, is the judge."""

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

#: Largest difference from the file, relative to its largest element; in lower precision root mean square, of the inputs that fit best.
TOLERANCES = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.3}

#: How far a tensor within the file may be from the network's where none of it is at fault.
_INNER_TOLERANCE = 1e-3

#: Normal numbers times each are compared, of the last one without their signs.
_SCALES = (1.0, 3.0, 1.0)

Arrays = Mapping[str, Any]


def check_own_file(loaded: LoadedModel) -> tuple[list[str], tuple[Path, SourceFile] | None]:
    """Compare a network with the file that it was read from, on several random inputs.

    Returns:
        Warnings: that the file could not be run, or that it rounds otherwise. And the file with its ends, where it ran.

    Raises:
        StretchError: If the file gives other numbers; names the first operator that differs, where it can be found.
    """
    path, network = Path(loaded.name), getattr(loaded.module, "own_file", None)
    if not isinstance(network, OwnNetwork) or loaded.weights_source != "given":
        return [], None
    unknown = f"it is not known whether the network computes the same as {path}"
    inputs, best = Inputs.of(loaded.input_shape, loaded.module), float("inf")
    try:
        run = network.open(path)
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
    """Yield the inputs by the forward's arguments, of the kinds that the file reads."""
    rng = np.random.default_rng(0)
    for number, scale in enumerate(_SCALES):
        shapes = dict(zip((end.tensor for end in network.own.inputs), inputs.shapes.values(), strict=True))
        drawn = {end.tensor: _numbers(rng, end, shapes[end.tensor], scale) for end in network.own.inputs}
        yield {name: np.asarray(np.abs(x) if number + 1 == len(_SCALES) else x) for name, x in drawn.items()}


def _numbers(rng: np.random.Generator, end: SourceTensor, shape: tuple[int, ...], scale: float) -> Any:
    """Return the numbers of one input: any reals, whole numbers of its type, or reals that its bytes can represent."""
    if not end.dtype.startswith(("int", "uint")):
        return (rng.standard_normal(shape) * scale).astype(np.float32)
    limits = np.iinfo(end.dtype)
    low, high = (limits.min, limits.max) if limits.bits == 8 else (0, 9)
    whole = rng.integers(low, high, shape, endpoint=True)
    return ((whole - end.zero_point) * (end.scale or 1)).astype(np.float32)


@torch.inference_mode()
def _difference(network: OwnNetwork, loaded: LoadedModel, inputs: Inputs, x: Arrays, want: Arrays) -> tuple[float, str]:
    """Return the largest difference of an output, and the name of that output in the file."""
    got = dict(walk_leaves(inputs.call(loaded.module, [torch.from_numpy(np.array(array)) for array in x.values()])))
    return max(
        (_relative_difference(got[end.tensor].numpy(), want[end.tensor], network.own.precision), end.name) for end in network.own.outputs
    )


def _relative_difference(got: Any, want: Any, precision: str) -> float:
    """Return how far one tensor is from another; infinitely where one has numbers and the other has none."""
    if got.shape != want.shape:
        return float("inf")
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    return distance(got[finite], want[finite], precision) if finite.any() else 0.0


@torch.inference_mode()
def _noise(loaded: LoadedModel, inputs: Inputs, x: Arrays) -> float:
    """Return how much of an output of the network is rounding in fp32."""
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
    """Runs a network and keeps tensors of it.

    Attributes:
        kept: Results of nodes with these names.
    """

    def __init__(self, module: fx.GraphModule, names: set[str]) -> None:
        super().__init__(module)
        self.kept: dict[str, Any] = {}
        self._names = names

    def run_node(self, n: fx.Node) -> Any:
        """Compute a node."""
        result = super().run_node(n)
        if n.name in self._names and isinstance(result, torch.Tensor):
            self.kept[n.name] = result.numpy().copy()
        return result


@torch.inference_mode()
def _first_difference(network: OwnNetwork, loaded: LoadedModel, x: Arrays) -> str:
    """Return the first operator of the file whose result is another than the network's; empty where that is unknown."""
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
                got = recorder.kept[node]
                if not _relative_difference(got.transpose(order) if order else got, seen[name], "fp32") <= _INNER_TOLERANCE:
                    return described
    return ""
