"""What is measured, a model file or a bundle with its inputs and what it costs, and made ready on a runtime: the nanoseconds of one inference, and what it computed."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np

from predictors.errors import StretchError, UnknownNameError, UsageError, first_line
from predictors.files import open_regular, read_bytes
from predictors.formats.onnx import decode, read_onnx
from predictors.shapes import Shape
from scheduler.bundle.load import MANIFEST, load_bundle
from scheduler.cores import pinned
from scheduler.delegates import LiteRtDelegate, get_delegate
from scheduler.delegates.base import Array
from scheduler.delegates.cpu import load_runtime
from scheduler.delegates.litert import open_interpreter
from scheduler.formats.onnx.file import external_locations
from scheduler.formats.tflite import MAX_BYTES, TfliteNetwork, TfliteOperator, open_tflite
from scheduler.runtime.inputs import as_arrays, plain
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session

Kind = Literal["onnx", "tflite", "bundle"]

#: Elements of one input or output: half a gigabyte of reals.
MAX_ELEMENTS = 1 << 27

#: Contenders would be no two sets of numbers with more.
MAX_ENDS = 64

#: Shapes that were asked for: one for the only input, or by name.
InputShapes = Mapping[str, Sequence[int]]

#: Of an input without a name: it is for the only one that a file leaves open.
UNNAMED = ""


@dataclass(frozen=True)
class FileEnd:
    """An input or output of a file."""

    name: str  # Its name.
    shape: tuple[int | None, ...]  # Its shape; None for an axis that the file leaves open.
    dtype: str  # Its element type by numpy's name.

    @property
    def text(self) -> str:
        """Such as ``x=?x3x224x224``."""
        return f"{self.name}={'x'.join('?' if n is None else str(n) for n in self.shape)}"


@dataclass(frozen=True)
class Subject:
    """One thing to time."""

    path: str  # As it was named.
    kind: Kind  # What it is.
    sha256: str  # Of the file, with the weights that lie beside it; of a bundle its manifest's, which has the hashes of its files.
    bytes: int  # Of all that.
    macs: int | None  # Multiply-accumulates of an inference; None where they cannot be counted.
    model: Path  # What runtimes load: the file, or one made of it whose shapes are fixed.
    inputs: Mapping[str, Array]  # What it is given, by name.
    outputs: Mapping[str, tuple[str, Shape]]  # Type and shape of what it gives, by name; empty where the runtime tells.


def kind_of(path: Path) -> Kind:
    """What a word of the command line is."""
    if path.is_dir():
        return "bundle"
    kinds: dict[str, Kind] = {".onnx": "onnx", ".tflite": "tflite"}
    if path.suffix.lower() in kinds:
        return kinds[path.suffix.lower()]
    raise UsageError(f"{path} is no .onnx file, .tflite file or bundle", "name files with these endings, or folders of bundles")


def digest(kind: Kind, path: Path, beside: Iterable[str] = ()) -> tuple[str, int]:
    """SHA-256 and bytes of what is timed."""
    if kind == "bundle":
        bundle = load_bundle(path, check_hashes=True)
        size = sum(bundle.file(name).stat().st_size for name in bundle.manifest.files)
        manifest_hash, manifest_size = _hash([path / MANIFEST])
        return manifest_hash, size + manifest_size
    return _hash([path, *(path.parent / name for name in sorted(beside))])


def _hash(paths: Sequence[Path]) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    for path in paths:
        try:
            with open_regular(path) as stream:
                while block := stream.read(1 << 20):
                    hasher.update(block)
                    size += len(block)
        except OSError as error:
            raise StretchError(f"cannot read {path}: {error.strerror or error}", "name a file that is there and may be read") from error
    return hasher.hexdigest(), size


def settled(path: Path, ends: Sequence[FileEnd], requested: InputShapes) -> dict[str, Shape]:
    """The shape of each input, every axis a number."""
    if not 0 < len(ends) <= MAX_ENDS:
        raise StretchError(f"{path} has {len(ends)} inputs; between 1 and {MAX_ENDS} can be given numbers", "export the part that has some")
    opened = [end for end in ends if None in end.shape]
    only = opened if len(opened) == 1 else ends if len(ends) == 1 else []
    sizes = {**({only[0].name: requested[UNNAMED]} if only and UNNAMED in requested else {}), **requested}
    shapes = {}
    for end in ends:
        shape = sizes.get(end.name, end.shape)
        if None in shape:
            hint = " ".join(f"--input {name.text}" for name in opened)
            raise UsageError(f"{path} leaves the size of its input `{end.name[:100]}` open", f"give numbers in place of the marks: {hint}")
        whole = tuple(int(n) for n in shape if n is not None)
        fits = len(whole) == len(end.shape) and all(stated in (None, n) for n, stated in zip(whole, end.shape, strict=True))
        if not fits:
            raise UsageError(
                f"the input `{end.name[:100]}` of {path} is {end.text.partition('=')[2]}, {'x'.join(map(str, whole))} is requested",
                "change only axes that the file leaves open",
            )
        shapes[end.name] = checked(path, end.name, whole)
    return shapes


def checked(path: Path, name: str, shape: Shape) -> Shape:
    """A shape of a sensible size."""
    if len(shape) > 8 or min((*shape, 1)) < 1 or math.prod(shape) > MAX_ELEMENTS:
        raise StretchError(f"`{name[:100]}` of {path} has the shape {str(list(shape))[:200]}", f"up to {MAX_ELEMENTS} elements are taken")
    return shape


def random_arrays(shapes: Mapping[str, tuple[str, Shape]], seed: int) -> dict[str, Array]:
    """Inputs of random numbers: normal reals, bytes over their whole range, other whole numbers of 0 and 1.

    Whole numbers of more than a byte are mostly places in a table, of which every one has a first and a second row.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in shapes.items():
        kind = np.dtype(dtype)
        if kind.kind == "f":
            arrays[name] = rng.standard_normal(shape).astype(kind)
        elif kind.kind in "iu" and kind.itemsize == 1:
            bounds = np.iinfo(kind)
            arrays[name] = rng.integers(bounds.min, bounds.max, shape, kind, endpoint=True)
        else:
            arrays[name] = rng.integers(0, 2, shape).astype(kind)
    return arrays


def hash_of(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of arrays by name: names, types, shapes and numbers."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


#: Element types that inputs and outputs may have.
TYPES = frozenset({"float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"})


def open_subject(name: str, requested: InputShapes, seed: int, folder: Path) -> Subject:
    """Read what a word of the command line names."""
    path = Path(name)
    kind = kind_of(path)
    if kind == "bundle":
        return _bundle(name, path, seed)
    return (_onnx if kind == "onnx" else _tflite)(name, path, requested, seed, folder)


def _bundle(name: str, path: Path, seed: int) -> Subject:
    sha256, size = digest("bundle", path)
    bundle = load_bundle(path)
    tensors = {tensor.name: tensor for tensor in bundle.manifest.tensors}
    inputs = random_arrays({tensor: (tensors[tensor].dtype, tuple(tensors[tensor].shape)) for tensor in bundle.manifest.inputs}, seed)
    return Subject(name, "bundle", sha256, size, bundle.manifest.model.macs, path, inputs, {})


def _onnx(name: str, path: Path, requested: InputShapes, seed: int, folder: Path) -> Subject:
    try:
        proto = decode(path)
    except StretchError as error:
        raise StretchError(error.message, "export it again") from error
    beside = external_locations(proto.graph)
    for where in beside:
        inside = PurePosixPath(where)
        if inside.is_absolute() or ".." in inside.parts:
            raise StretchError(
                f"{path} has weights in {where[:200]}, outside of its folder", "export it with its weights inside or beside it"
            )
    sha256, size = digest("onnx", path, beside)
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [_end(path, value) for value in proto.graph.input if value.name not in weights]
    outputs = [_end(path, value) for value in proto.graph.output]
    if len(outputs) > MAX_ENDS:
        raise StretchError(f"{path} has {len(outputs)} outputs, up to {MAX_ENDS} are taken", "export the part that has fewer")
    shapes = settled(path, inputs, requested)
    model, arrays = path, random_arrays({end.name: (end.dtype, shapes[end.name]) for end in inputs}, seed)
    known: dict[str, Shape] = {end.name: tuple(n for n in end.shape if n is not None) for end in outputs}
    unknown = {value.name for value in proto.graph.output if not value.type.tensor_type.HasField("shape")}
    if unknown or any(None in end.shape for end in (*inputs, *outputs)):
        if beside:
            raise StretchError(f"{path} leaves sizes open, and its weights lie in other files", "export it with fixed shapes")
        model = folder / f"{sha256[:16]}_{len(list(folder.iterdir()))}.onnx"
        known = _fixed(path, proto, arrays, model)
    typed = {end.name: (end.dtype, checked(path, end.name, known[end.name])) for end in outputs}
    return Subject(name, "onnx", sha256, size, _onnx_macs(path, shapes), model, arrays, typed)


def _end(path: Path, value: Any) -> FileEnd:
    import onnx.helper

    tensor = value.type.tensor_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name if tensor.elem_type else "none"
    except (KeyError, TypeError):
        dtype = "unknown"
    if dtype not in TYPES:
        raise StretchError(f"`{value.name[:100]}` of {path} is no tensor of plain numbers", "export the part that computes with numbers")
    return FileEnd(value.name, tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim), dtype)


def _fixed(path: Path, proto: Any, arrays: Mapping[str, Any], target: Path) -> dict[str, Shape]:
    """Write the model with the shapes that its inputs and outputs have here; those of outputs come of running it once."""
    for value in proto.graph.input:
        if value.name in arrays:
            _state(value, arrays[value.name].shape)
    # what was worked out for other sizes would contradict these
    del proto.graph.value_info[:]
    runtime = load_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    names = [value.name for value in proto.graph.output]
    try:
        session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs = session.run(names, dict(arrays))
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        reason = first_line(error)[:300]
        raise StretchError(f"ONNX Runtime cannot run {path}: {reason}", "try other sizes with --input") from error
    for value, array in zip(proto.graph.output, outputs, strict=True):
        _state(value, array.shape)
    target.write_bytes(proto.SerializeToString())
    return {name: tuple(array.shape) for name, array in zip(names, outputs, strict=True)}


def _state(value: Any, shape: Shape) -> None:
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    value.type.tensor_type.shape.SetInParent()
    for n in shape:
        dims.add().dim_value = n


def _onnx_macs(path: Path, shapes: Mapping[str, Shape]) -> int | None:
    """Multiply-accumulates as predictions count them; None where the file has what they cannot read."""
    try:
        return read_onnx(path, dict(shapes), as_stored=True).macs
    except StretchError:
        return None


def _tflite(name: str, path: Path, requested: InputShapes, seed: int, folder: Path) -> Subject:
    del folder  # a runtime of TFLite files changes shapes by itself
    sha256, size = digest("tflite", path)
    network = open_tflite(path)
    ends = []
    for i in network.inputs:
        tensor = network.tensors[i]
        if tensor.kind not in TYPES:
            raise StretchError(f"`{tensor.name[:100]}` of {path} has elements {tensor.kind}, which no input can have", "convert it again")
        # converters leave the batch open and state 1: only what they cannot know has to be asked for
        opened = [axis for axis in tensor.opened if axis > 0 or tensor.name in requested]
        ends.append(FileEnd(tensor.name, tuple(None if axis in opened else n for axis, n in enumerate(tensor.shape)), tensor.kind))
    if len({end.name for end in ends}) < len(ends):
        raise StretchError(f"two inputs of {path} have one name", "convert it with a name for each")
    shapes = settled(path, ends, requested)
    same = all(shapes[network.tensors[i].name] == network.tensors[i].shape for i in network.inputs)
    arrays = random_arrays({end.name: (end.dtype, shapes[end.name]) for end in ends}, seed)
    return Subject(name, "tflite", sha256, size, tflite_macs(network) if same else None, path, arrays, {})


def tflite_macs(network: TfliteNetwork) -> int | None:
    """Multiply-accumulates of convolutions, linear layers and products of matrices; None where a shape does not tell."""
    macs = [tflite_operator_macs(network, operator) for operator in network.operators]
    return None if None in macs else sum(n for n in macs if n is not None)


def tflite_operator_macs(network: TfliteNetwork, operator: TfliteOperator) -> int | None:
    """Multiply-accumulates of one operator; 0 of one that does not multiply, None where a shape does not tell."""
    if operator.code not in _FORMULAS:
        return None if operator.code in _UNCOUNTED else 0
    reads = [() if i is None else network.tensors[i].shape for i in operator.inputs]
    try:
        return int(_FORMULAS[operator.code](reads, network.tensors[operator.outputs[0]].shape, operator.settings))
    except IndexError:
        return None


#: Of what an operator reads and writes and its settings; weights are output × height × width × input, linear ones output × input.
_FORMULAS: Mapping[str, Any] = {
    "CONV_2D": lambda reads, writes, settings: math.prod(writes) * math.prod(reads[1][1:]),
    "DEPTHWISE_CONV_2D": lambda reads, writes, settings: math.prod(writes) * reads[1][1] * reads[1][2],
    "TRANSPOSE_CONV": lambda reads, writes, settings: math.prod(reads[2]) * math.prod(reads[1][:3]),
    "FULLY_CONNECTED": lambda reads, writes, settings: math.prod(writes) * reads[1][1],
    "BATCH_MATMUL": lambda reads, writes, settings: math.prod(writes) * reads[0][-2 if settings.get("adj_x") else -1],
}


#: Operators that multiply as well, in ways that their shapes do not tell.
_UNCOUNTED = frozenset(
    {"CUSTOM", "CONV_3D", "CONV_3D_TRANSPOSE", "SVDF", "RNN", "LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
    | {"BIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"}
)


def hash_again(kind: Kind, path: Path) -> str:
    """SHA-256 of a file or bundle as it is now, as `Subject.sha256` has it."""
    beside = external_locations(decode(path).graph) if kind == "onnx" else set()
    return digest(kind, path, (name for name in beside if ".." not in PurePosixPath(name).parts and not PurePosixPath(name).is_absolute()))[
        0
    ]


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
