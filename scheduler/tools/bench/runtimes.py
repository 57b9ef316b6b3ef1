"""Files made ready on a runtime: each gives the nanoseconds of one inference, and what it computed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from predictors.errors import StretchError, UnknownNameError, first_line
from predictors.files import read_bytes
from scheduler.bundle.load import load_bundle
from scheduler.cores import pinned
from scheduler.delegates import LiteRtDelegate, get_delegate
from scheduler.delegates.base import Array
from scheduler.delegates.litert import open_interpreter
from scheduler.formats.tflite import MAX_BYTES, open_tflite
from scheduler.runtime.inputs import as_arrays, plain
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session
from scheduler.tools.bench.subject import Kind, Subject

#: What runs a bundle: our own scheduler.
SCHEDULER = "scheduler"

#: The delegate that runs files of a kind on a runtime, and the distribution whose version counts.
RUNTIMES: Mapping[str, tuple[Kind, str, str]] = {
    "onnxruntime": ("onnx", "cpu", "onnxruntime"),
    "openvino": ("onnx", "openvino", "openvino"),
    "opencl": ("onnx", "opencl", "pyopencl"),
    "litert": ("tflite", "litert", "ai-edge-litert"),
}

#: Runtimes that are asked for by name alone: compiling their kernels takes long, and on a CPU they serve tests.
_ON_REQUEST = frozenset({"opencl"})


class Ready(ABC):
    """A subject on a runtime."""

    _cores: tuple[int, ...]  # Of the calling thread.
    _run: Callable[[], object]  # Runs once.

    def time(self) -> int:
        """Run once on its input; nanoseconds from the input ready to the output ready."""
        with pinned(self._cores):
            start = perf_counter_ns()
            self._run()
            return perf_counter_ns() - start

    @abstractmethod
    def outputs(self) -> dict[str, Array]:
        """What the last run gave, by name; empty where nothing was computed."""

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what outlives a run."""


def runtimes_for(kind: Kind, names: Sequence[str]) -> list[str]:
    """The runtimes that time a file."""
    for name in names:
        if name not in RUNTIMES:
            raise UnknownNameError.among("runtime", name, RUNTIMES)
        if (why := unavailable(name)) is not None:
            raise StretchError(f"the runtime {name} cannot be used: {why}", "leave it out, or install it")
    if kind == "bundle":
        return [SCHEDULER]
    fitting = [name for name, (takes, _, _) in RUNTIMES.items() if takes == kind]
    if names:
        return [name for name in dict.fromkeys(names) if name in fitting]
    return [name for name in fitting if name not in _ON_REQUEST and unavailable(name) is None]


def unavailable(runtime: str) -> str | None:
    """Why a runtime of `RUNTIMES` cannot be used here; None if it can."""
    return get_delegate(RUNTIMES[runtime][1]).unavailable()


def version_of(runtime: str) -> str:
    """The installed version of a runtime."""
    if runtime == "litert":
        return str(LiteRtDelegate.version())
    try:
        return metadata.version("nn-stretch" if runtime == SCHEDULER else RUNTIMES[runtime][2])
    except metadata.PackageNotFoundError:
        return "unknown"


def used_cores(runtime: str, cores: tuple[int, ...]) -> tuple[int, ...]:
    """The cores that a runtime computes on: the last one with OpenCL, where its device is a CPU, else all of them."""
    return cores[-1:] if runtime == "opencl" else cores


def prepare(subject: Subject, runtime: str, cores: tuple[int, ...]) -> Ready:
    """Make a subject ready, with memory and threads of its own, and run it once."""
    # threads that a runtime starts inherit the cores of the one that starts them
    with pinned(cores):
        if subject.kind == "bundle":
            ready: Ready = _Bundle(subject)
        else:
            ready = _Tflite(subject, cores) if subject.kind == "tflite" else _Onnx(subject, runtime, cores)
    try:
        ready.time()
    # Runtimes find some contradictions only when they compute, and their exceptions share no base class.
    except Exception as error:
        ready.close()
        if isinstance(error, StretchError):
            raise
        reason = first_line(error)[:300]
        raise StretchError(f"{runtime} cannot run {subject.path}: {reason}", "try another runtime, or other sizes with --input") from error
    return ready


class _Onnx(Ready):
    """An ONNX file with one of our delegates, which calls the runtime on the caller's buffers."""

    def __init__(self, subject: Subject, runtime: str, cores: tuple[int, ...]) -> None:
        # ONNX Runtime's helpers are pinned to the other cores; those of others go where the caller may go
        self._cores = cores[:1] if runtime == "onnxruntime" else cores
        types = {name: dtype for name, (dtype, _) in subject.outputs.items()} | {n: x.dtype.name for n, x in subject.inputs.items()}
        if runtime == "opencl" and (odd := sorted(set(types.values()) - {"float32"})):
            raise StretchError(f"the kernels of opencl take and give float32 alone, {subject.path} has {', '.join(odd)}")
        self._delegate = get_delegate(RUNTIMES[runtime][1]).create(used_cores(runtime, cores))
        compiled = self._delegate.compile(subject.model)
        inputs = [np.ascontiguousarray(subject.inputs[name]) for name in compiled.inputs]
        self._outputs = {name: np.zeros(shape, types[name]) for name, shape in compiled.outputs.items()}
        self._run = compiled.bind(inputs, list(self._outputs.values())).run

    def outputs(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._outputs.items()}

    def close(self) -> None:
        self._delegate.close()


class _Tflite(Ready):
    """A TFLite file of any converter in LiteRT's interpreter, tensors as the file has them."""

    def __init__(self, subject: Subject, cores: tuple[int, ...]) -> None:
        self._cores = cores
        network = open_tflite(subject.model)
        shapes = {i: subject.inputs[network.tensors[i].name].shape for i in network.inputs}
        changed = {i: shape for i, shape in shapes.items() if shape != network.tensors[i].shape}
        content = read_bytes(subject.model, "model", MAX_BYTES)
        self._interpreter: Any = open_interpreter(content, len(cores), subject.path, changed)
        self._run = self._interpreter.invoke
        for i in network.inputs:
            self._interpreter.set_tensor(i, subject.inputs[network.tensors[i].name])
        # names may be alike, their places are not
        self._outputs = {f"{place} {network.tensors[i].name}": i for place, i in enumerate(network.outputs)}

    def outputs(self) -> dict[str, Array]:
        return {name: self._interpreter.get_tensor(i) for name, i in self._outputs.items()}


class _Bundle(Ready):
    """A bundle with our scheduler, placed as `stretch run` places it on these cores."""

    def __init__(self, subject: Subject) -> None:
        self._session = Session(Path(subject.path), in_flight=1)
        manifest = self._session.bundle.manifest
        self._names = list(manifest.results or manifest.outputs)
        simulated = [name for name, place in self._session.placements.items() if get_delegate(place.delegate).simulated()]
        if simulated or not self._session.computes:
            self._session.close()
            raise StretchError(
                f"{subject.path} would run on a stand-in that keeps no time ({', '.join(simulated) or 'null'})",
                "`stretch run` with --map places it elsewhere",
            )
        self._given = plain(subject.inputs)
        self._made: Any = None

    def time(self) -> int:
        self._made = self._session.run(self._given)
        trace = self._session.trace
        return trace.end_ns - trace.start_ns

    def outputs(self) -> dict[str, Array]:
        if self._made is None:
            return {}
        return {name: array.copy() for name, array in as_arrays(self._made, self._names).items()}

    def close(self) -> None:
        self._session.close()


def expected_of(subject: Subject, cores: tuple[int, ...]) -> dict[str, Array]:
    """What a bundle's own whole model computes on ONNX Runtime, by the names of its outputs."""
    bundle = load_bundle(Path(subject.path))
    with pinned(cores):
        got = Sequential(bundle.file(bundle.manifest.whole), cores).run(plain(subject.inputs))
    return dict(bundle.manifest.named(as_arrays(got, bundle.manifest.outputs)))
