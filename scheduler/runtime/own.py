"""Runs a network's source file on the file format's runtime, with the inputs of the bundle's networks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError, first_line, need
from scheduler.bundle.manifest import SourceFile, SourceTensor
from scheduler.cores import pinned
from scheduler.delegates.base import Array
from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.litert import open_interpreter
from scheduler.delegates.ort_session import open_session
from scheduler.formats.onnx import open_onnx


class SourceFileRunner:
    """An ONNX or TFLite file from any exporter.

    Args:
        own: Relation of the file's inputs and outputs to those of the bundle's networks.
        cores: Cores for the runtime, one thread each; empty for one unpinned thread.
        inner: Names in the file of the inner tensors that `inner_tensors` returns.

    Raises:
        MissingBackendError: If the file's runtime is not installed.
        StretchError: If the runtime cannot load the file.
    """

    def __init__(self, path: Path, own: SourceFile, cores: tuple[int, ...] = (), *, inner: Sequence[str] = ()) -> None:
        self.own, self.cores = own, cores
        run = _TfliteRunner if path.suffix == ".tflite" else _OnnxRunner
        self._run = run(path, own, cores, inner)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the file; inputs and outputs have the bundle's tensor names, axis order and types."""
        self._run.put([_to_file(end, inputs.get(end.tensor)) for end in self.own.inputs])
        with pinned(self.cores[:1]):
            self._run.compute()
        return {end.tensor: _from_file(end, self._run.get(end.name)) for end in self.own.outputs if end.tensor}

    def as_file_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return inputs with the precision of the file: integers and bytes are rounded."""
        return {end.tensor: _from_file(end, _to_file(end, inputs[end.tensor])) for end in self.own.inputs if end.tensor}

    def inner_tensors(self, names: Sequence[str]) -> dict[str, Array]:
        """Return tensors of the last run in the file's layout and type."""
        return {name: self._run.get(name) for name in names}

    def time(self) -> float:
        """Run on the last input, and return the time in ms."""
        with pinned(self.cores[:1]):
            start = perf_counter_ns()
            self._run.compute()
            return (perf_counter_ns() - start) / 1e6


def _to_file(end: SourceTensor, array: Array | None) -> NDArray[Any]:
    """Return an input in the file's layout and type; zeros if the network does not read it."""
    kind = np.dtype(end.dtype)
    if array is None:
        return np.zeros(end.shape, kind)
    permuted = array.transpose(end.order) if end.order else array
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        permuted = np.clip(np.round(permuted / (end.scale or 1)) + end.zero_point, limits.min, limits.max)
    return np.ascontiguousarray(permuted.reshape(end.shape), kind)


def _from_file(end: SourceTensor, array: NDArray[Any]) -> Array:
    """Return an output in the bundle's layout and type."""
    reals = np.asarray(array, np.float32)
    reals = reals if end.scale is None else (reals - end.zero_point) * np.float32(end.scale)
    return reals.transpose(np.argsort(end.order)) if end.order else reals


def _with_extra_outputs(path: Path, names: Sequence[str]) -> bytes:
    """Return an ONNX file with inner tensors as additional outputs."""
    file = open_onnx(path)
    need(not file.external, f"{path} keeps weights in another file")
    outputs = {value.name for value in file.proto.graph.output}
    file.proto.graph.output.extend(type(file.proto.graph.output[0])(name=name) for name in names if name not in outputs)
    content: bytes = file.proto.SerializeToString()
    return content


class _OnnxRunner:
    """An ONNX file in ONNX Runtime."""

    def __init__(self, path: Path, own: SourceFile, cores: tuple[int, ...], inner: Sequence[str]) -> None:
        settings, options = CpuDelegate(cores).options()
        # a reference computes as ONNX defines; this optimiser treats zeros before max pooling as minus infinity
        settings |= {} if cores else {"optimization.disable_specified_optimizers": "Pad_Fusion"}
        content = _with_extra_outputs(path, inner) if inner else None
        self._session = open_session(path, ["CPUExecutionProvider"], settings, options, content)
        self._names = list(dict.fromkeys(value.name for value in self._session.get_outputs()))
        self._inputs, self._binding = own.inputs, self._session.io_binding()
        self._feed: list[NDArray[Any]] = []

    def put(self, arrays: list[NDArray[Any]]) -> None:
        self._feed = arrays
        for end, array in zip(self._inputs, arrays, strict=True):
            self._binding.bind_cpu_input(end.name, array)
        for name in self._names:
            self._binding.bind_output(name, "cpu")

    def compute(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        # ONNX Runtime's exceptions have no common base class
        except Exception as error:
            raise StretchError(f"ONNX Runtime cannot run the file: {first_line(error)[:160]}") from error

    def get(self, name: str) -> NDArray[Any]:
        result: NDArray[Any] = self._binding.get_outputs()[self._names.index(name)].numpy()
        return result


class _TfliteRunner:
    """A TFLite file in LiteRT."""

    def __init__(self, path: Path, own: SourceFile, cores: tuple[int, ...], inner: Sequence[str]) -> None:
        shapes = {int(end.name): end.shape for end in own.inputs}
        self._run = open_interpreter(path.read_bytes(), len(cores), str(path), shapes, inner=bool(inner))
        self._inputs = [int(end.name) for end in own.inputs]

    def put(self, arrays: list[NDArray[Any]]) -> None:
        for number, array in zip(self._inputs, arrays, strict=True):
            self._run.set_tensor(number, array)

    def compute(self) -> None:
        try:
            self._run.invoke()
        except RuntimeError as error:
            raise StretchError(f"LiteRT cannot run the file: {first_line(error)[:160]}") from error

    def get(self, name: str) -> NDArray[Any]:
        result: NDArray[Any] = self._run.get_tensor(int(name))
        return result
