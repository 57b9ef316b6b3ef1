"""Processors to measure, and the files of the measured networks."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from predictors.graph import OpGraph
from predictors.host import HOST
from predictors.shapes import Shape
from scheduler.cores import available_cores
from scheduler.delegates import Delegate, delegates, get_delegate
from scheduler.placement.mapping import drivers, first_driver


@dataclass(frozen=True)
class ProfiledProcessor:
    """A processor with one core set, to be measured."""

    family: str  # Name of the processor, such as ``cpu``.
    core_set: str  # Name of the core set, such as ``1core``.
    delegate: str  # Name of its delegate.
    precision: str  # Precision of the measured networks.
    cores: tuple[int, ...]  # CPU cores that it computes on; empty for other devices.
    share: float  # Relative share of the measuring time.

    @property
    def name(self) -> str:
        """Name such as ``cpu[1core]``."""
        return f"{self.family}[{self.core_set}]"

    @property
    def backend(self) -> str:
        """Name of the backend's fusion rules."""
        return get_delegate(self.delegate).fuses

    @property
    def runtime(self) -> str:
        """Runtime and version."""
        from stretch.profile.environment import version

        package = get_delegate(self.delegate).package
        untuned = ", kernels not tuned" if get_delegate(self.delegate).tunes else ""
        return f"{package} {version(package) or 'of unknown version'}, delegate {self.delegate}{untuned}"

    @property
    def runs_on(self) -> str:
        """Delegate for plans with its times; empty for the CPU's default delegate."""
        return "" if self.delegate == HOST else self.delegate

    def create(self) -> Delegate:
        """Create its delegate with untuned kernels, because gains of tuning depend on the tuned shapes."""
        return get_delegate(self.delegate).create_untuned(self.cores)

    @property
    def serial(self) -> bool:
        """Whether it computes on one core of this machine."""
        return len(self.cores) == 1

    @property
    def caller(self) -> tuple[int, ...]:
        """Cores for the calling thread: the processor's cores, unless the delegate computes on another thread."""
        if not get_delegate(self.delegate).asynchronous:
            return self.cores
        return tuple(core for core in available_cores() if core not in self.cores)


def find_processors(processors: Sequence[str] = ()) -> list[ProfiledProcessor]:
    """Find the processors of this machine, the CPU with all its core sets first.

    Args:
        processors: Names such as ``cpu``, ``gpu``, ``cpu[1core]``, ``cpu=openvino`` or ``cpu=openvino/int8``; empty for all with an available delegate.
    """
    places_by_family: dict[str, list[ProfiledProcessor]] = {}
    for entry in processors or [HOST, *(kind for kind in ("gpu", "npu") if any(_available_delegates(_delegates_of(kind))))]:
        name, _, chosen = entry.partition("=")
        family, bracket, core_set = name.partition("[")
        if family in places_by_family:
            raise UsageError(f"the processor `{family}` is named twice", "name each once, as --processors cpu,gpu")
        places_by_family[family] = _processors_of(family, chosen)
        if bracket:
            by_core_set = {place.core_set: place for place in places_by_family[family]}
            if core_set.removesuffix("]") not in by_core_set:
                raise UnknownNameError.among("core set", name, [place.name for place in places_by_family[family]])
            places_by_family[family] = [replace(by_core_set[core_set.removesuffix("]")], share=_SHARE)]
    if HOST not in places_by_family:
        raise UsageError(
            "a profile needs the processor `cpu`, which joins branches", f"add it: --processors {HOST},{','.join(places_by_family)}"
        )
    return [place for family in sorted(places_by_family, key=lambda name: name != HOST) for place in places_by_family[family]]


def _delegates_of(kind: str) -> dict[str, type[Delegate]]:
    """Return the delegates for a kind of processor that report times of kernels."""
    return {name: delegate for name, delegate in drivers(kind) if delegate.fuses}


def _available_delegates(able: Mapping[str, type[Delegate]]) -> Iterator[str]:
    return (name for name, delegate in able.items() if delegate.unavailable() is None)


#: Share of the measuring time for a processor with one core set.
_SHARE = 4.0


def _processors_of(family: str, chosen: str) -> list[ProfiledProcessor]:
    # if no delegate can measure the processor here, the first states the reason
    eligible = _delegates_of(family)
    asked, slash, precision = chosen.partition("/")
    name = asked or (HOST if family == HOST else first_driver(_available_delegates(eligible)) or next(iter(eligible), ""))
    supported = [name for name in delegates if delegates.get(name).fuses]
    if name not in supported:
        if not asked:
            raise UnknownNameError.among("processor to measure", family, ["cpu", "gpu", "npu"])
        if name in delegates:
            raise UsageError(
                f"the `{name}` delegate reports no times of kernels, of which a profile is made",
                "calibrate a profile by times of whole networks instead: `stretch profile fit NETWORKS.csv --device BASE`",
            )
        raise UnknownNameError.among("delegate to measure", name, supported)
    delegate = get_delegate(name)
    missing = delegate.unavailable()
    if missing is not None:
        raise MissingBackendError(f"`{family}` cannot be measured: {missing}", "leave it out of --processors")
    if slash and precision not in delegate.precisions:
        raise UsageError(f"the `{name}` delegate does not run `{precision}`", f"it runs {', '.join(delegate.precisions)}")
    precision = precision or delegate.precisions[0]
    cores = available_cores()
    if family != HOST:
        return [ProfiledProcessor(family, "all", name, precision, cores[-1:] if delegate.needs_core() else (), _SHARE)]
    # all cores for the CPU alone, and all but one for a second processor whose feeding thread needs a core
    counts = sorted({1, len(cores), *(count for count in (2, 4, len(cores) - 1) if 1 < count < len(cores))})
    return [ProfiledProcessor(family, f"{n}core{'s' if n > 1 else ''}", name, precision, cores[:n], 3.0 if n == 1 else 1.5) for n in counts]


# Requests of a program on a board to the connected machine, for files that only this machine can make.

#: Environment variable with the file descriptors for questions and for answers, set by the agent.
ASK_VARIABLE = "NN_STRETCH_ASKS"


def ask_for_file(path: Path, question: str) -> None:
    """Request a file from the machine that started this program, and wait until it is written."""
    questions, answers = map(int, os.environ[ASK_VARIABLE].split(","))
    line = json.dumps({"file": str(path.absolute()), "question": question}).encode() + b"\n"
    try:
        while line:
            line = line[os.write(questions, line) :]
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = os.read(answers, 1 << 16)
            if not chunk:
                raise StretchError("the machine that started this does not answer any more")
            answer += chunk
    except OSError as error:
        raise StretchError(f"the machine that started this does not answer any more: {error.strerror}") from error
    if problem := json.loads(answer).get("problem"):
        raise StretchError(str(problem))


Array = NDArray[np.float32]

#: Length of the random sequence that weights repeat; it exceeds a core's caches.
_POOL = 1 << 20

#: Maximum size of weights on a board, bytes.
_MAX_BYTES = 1 << 30


def write_network(graph: OpGraph, path: Path, precision: str = "fp32") -> Path:
    """Write a graph with random weights in fp32, fp16 or int8, and return the path.

    On a board, which has no torch, the connected machine creates the file.
    """
    if ASK_VARIABLE in os.environ:
        ask_for_file(path, precision + graph.to_json().decode())
        return path
    from stretch.export.onnx import save_onnx, to_onnx
    from stretch.export.quantize.qdq import quantise, to_half

    model = to_onnx(graph, make_weights(graph))
    if precision == "fp16":
        model = to_half(model)
    elif precision == "int8":
        # times in int8 do not depend on values, so one sample suffices
        model = quantise(model, [np.random.default_rng(0).standard_normal(graph.input.shape, np.float32)])
    save_onnx(model, path)
    return path


def answer_board(question: str) -> bytes:
    """Return the contents of the file that a board requests in `write_network`."""
    precision, brace, rest = question.partition("{")
    graph = OpGraph.from_json(brace + rest)
    if weight_bytes(graph) > _MAX_BYTES:
        raise StretchError(f"the network `{graph.name}` has weights of more than {_MAX_BYTES} bytes")
    with tempfile.TemporaryDirectory() as folder:
        return write_network(graph, Path(folder) / "network.onnx", precision).read_bytes()


def make_weights(graph: OpGraph) -> dict[str, dict[str, Array]]:
    """Return random weights that preserve the scale of activations (He et al. 2015), because denormals and infinities change times."""
    weights: dict[str, dict[str, Array]] = {}
    for op in graph.ops:
        shapes = graph.op_weights(op)
        if shapes:
            weights[op.name] = {key: _weight(key, shape) for key, shape in shapes.items()}
    return weights


def _weight(key: str, shape: Shape) -> Array:
    if key == "running_var" or (key == "weight" and len(shape) == 1):
        return np.ones(shape, np.float32)
    if key in ("bias", "running_mean"):
        return np.full(shape, 0.01, np.float32)
    return np.resize(_pool(), shape) * np.float32(sqrt(2 / prod(shape[1:])))


@cache
def _pool() -> Array:
    return np.random.default_rng(0).standard_normal(_POOL, np.float32)


def weight_bytes(graph: OpGraph) -> int:
    """Return the size of a graph's weights in its file, bytes."""
    shapes: list[Mapping[str, Shape]] = [graph.op_weights(op) for op in graph.ops]
    return sum(4 * prod(shape) for tensors in shapes for shape in tensors.values())
