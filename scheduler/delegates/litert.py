"""LiteRT (TensorFlow Lite) on the bundle's TFLite file.

`litert` runs on CPU cores with XNNPACK, one interpreter per subgraph; `litert:GPU` runs on a GPU, through WebGPU on Linux and
Windows and Metal on macOS.
"""

import glob
import importlib
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from predictors.errors import MissingBackendError, StretchError, first_line, install_line
from scheduler.bundle.tflite_file import TfliteFile, bundle_tflite, load_tflite
from scheduler.delegates.base import Array, Compiled, CoreDelegate, Invocation, NodePlacement, UnableError, delegates, filter_stderr
from scheduler.delegates.process import ChildDelegate, ChildProcess, ProcessCompiled

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle

#: Input channels to transpose at a time; few enough that their rows stay in the first-level cache.
_CHANNELS = 32
#: Output elements to transpose at a time.
_ELEMENTS = 8192


def to_nhwc(source: Array, target: Array) -> None:
    """Copy a batch of images from channels first to channels last; copy other arrays unchanged.

    Args:
        source: N×C×H×W, contiguous.
        target: N×H×W×C, contiguous.
    """
    if source.ndim != 4 or source.size in (source.shape[1] * source.shape[0], prod(source.shape[2:]) * source.shape[0]):
        np.copyto(target, source.reshape(target.shape))
        return
    n, channels, height, width = source.shape
    rows, columns = source.reshape(n, channels, height * width), target.reshape(n, height * width, channels)
    for image in range(n):
        for first in range(0, channels, _CHANNELS):
            columns[image, :, first : first + _CHANNELS] = rows[image, first : first + _CHANNELS].T


#: Prefixes of LiteRT's log lines to suppress.
_NOTES = (b"INFO:", b"VERBOSE:")


def to_nchw(source: Array, target: Array) -> None:
    """Copy a batch of images from channels last to channels first; copy other arrays unchanged."""
    if target.ndim != 4 or target.size in (target.shape[1] * target.shape[0], prod(target.shape[2:]) * target.shape[0]):
        np.copyto(target, source.reshape(target.shape))
        return
    n, channels, height, width = target.shape
    rows, columns = target.reshape(n, channels, height * width), source.reshape(n, height * width, channels)
    step = max(8, _ELEMENTS // channels)
    for image in range(n):
        for first in range(0, height * width, step):
            rows[image, :, first : first + step] = columns[image, first : first + step].T


INSTALL = install_line("litert")

#: Package names of the runtime: the present one, and its predecessor, which some boards still have.
PACKAGES = ("ai_edge_litert", "tflite_runtime")


class LiteRtInvocation(Invocation):
    """One interpreter with its buffers; converts at the border and releases the GIL while it computes."""

    def __init__(self, interpreter: Any, inputs: Sequence[tuple[int, Array]], outputs: Sequence[tuple[int, Array]]) -> None:
        self._interpreter = interpreter
        self._inputs = [(interpreter.tensor(index), array) for index, array in inputs]
        self._outputs = [(interpreter.tensor(index), array) for index, array in outputs]

        self._marks = (0, 0, 0, 0)

    def run(self) -> None:
        """Convert the inputs, compute, convert the outputs."""
        start = perf_counter_ns()
        self.enter()
        entered = perf_counter_ns()
        self.compute()
        computed = perf_counter_ns()
        self.leave()
        self._marks = (start, entered, computed, perf_counter_ns())

    def conversions(self) -> tuple[tuple[str, int, int], ...]:
        """Return the conversion of the inputs to channels last and of the outputs to channels first, with start and end."""
        start, entered, computed, end = self._marks
        return ("to NHWC", start, entered), ("to NCHW", computed, end)

    def enter(self) -> None:
        """Copy the inputs into the interpreter, channels last."""
        # The interpreter refuses to run while a view of its memory exists, so no view may outlive this call.
        for view, array in self._inputs:
            to_nhwc(array, view())

    def compute(self) -> None:
        """Run the interpreter on its input tensors."""
        self._interpreter.invoke()

    def leave(self) -> None:
        """Copy the results out of the interpreter, channels first."""
        for view, array in self._outputs:
            to_nchw(view(), array)


class LiteRtCompiled(Compiled):
    """A subgraph in a separate interpreter; inputs and outputs are NCHW, as everywhere outside this module.

    Args:
        inputs: Name and NCHW shape of each input.
        indices: Index of the interpreter's tensor, by name.
    """

    def __init__(
        self,
        interpreter: Any,
        inputs: Mapping[str, tuple[int, ...]],
        outputs: Mapping[str, tuple[int, ...]],
        indices: Mapping[str, int],
    ) -> None:
        super().__init__(inputs, outputs)
        self._interpreter = interpreter
        self._indices = dict(indices)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> LiteRtInvocation:
        """Tie the interpreter to `inputs` and `outputs`; bindings of one subgraph share its memory."""
        self.check(inputs, outputs)
        reads = [(self._indices[name], array) for name, array in zip(self.inputs, inputs, strict=True)]
        writes = [(self._indices[name], array) for name, array in zip(self.outputs, outputs, strict=True)]
        return LiteRtInvocation(self._interpreter, reads, writes)


@delegates.register("litert")
class LiteRtDelegate(CoreDelegate):
    """Runs signatures of the bundle's TFLite file, in any precision, one thread a core."""

    summary = "LiteRT with XNNPACK on CPU cores, from the bundle's TFLite file"
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "int8")
    form = "tflite"

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        super().__init__(cores)
        self._files: dict[Path, TfliteFile] = {}

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if LiteRT is missing, else None."""
        return None if any(map(importlib.util.find_spec, PACKAGES)) else f"ai_edge_litert is not installed ({INSTALL})"

    @staticmethod
    def version() -> str:
        """Return package and version of the runtime."""
        package = _package()
        return f"{package} {getattr(importlib.import_module(package), '__version__', 'of unknown version')}"

    def compile(self, model: Path) -> LiteRtCompiled:
        """Make a TFLite file of one signature ready to run; see `compile_from` for a bundle's."""
        file = load_tflite(model)
        names = [entry.name for entry in file.plan.subgraphs] + [entry.name for entry in file.plan.joins]
        if len(names) != 1:
            raise StretchError(f"{model} has {len(names)} signatures, one was expected", "run it as part of its bundle")
        return self._compiled(file, names[0])

    def compile_from(self, bundle: "Bundle", name: str) -> LiteRtCompiled:
        """Make the signature called `name` ready to run: a subgraph or a join."""
        return self._compiled(self._file(bundle), name)

    def node_placements_from(self, bundle: "Bundle", name: str) -> list[NodePlacement]:
        """Return the conversions and the whole subgraph with measured times, and for each operator the library that computes it."""
        file = self._file(bundle)
        compiled = self._compiled(file, name)
        call = compiled.bind(*([np.zeros(shape, np.float32) for shape in ends.values()] for ends in (compiled.inputs, compiled.outputs)))
        times = {step: _ms(step) for step in (call.enter, call.compute, call.leave)}
        delegated = _by_xnnpack(compiled)
        placements = [NodePlacement(f"{name}/to NHWC", "convert", "channels go last at the border of a LiteRT subgraph", times[call.enter])]
        for writes, code in file.operators(name):
            library = "a kernel of XNNPACK" if writes in delegated else "a kernel of LiteRT: XNNPACK does not take it"
            placements.append(NodePlacement(writes, code, f"{library}; LiteRT reports no times"))
        placements.append(NodePlacement(f"{name}/compute", "all operators", "LiteRT runs them as one call", times[call.compute]))
        placements.append(
            NodePlacement(f"{name}/to NCHW", "convert", "channels go first at the border of a LiteRT subgraph", times[call.leave])
        )
        return placements

    def _file(self, bundle: "Bundle") -> TfliteFile:
        path = bundle.file(bundle.manifest.tflite or "")
        if path not in self._files:
            self._files[path] = bundle_tflite(bundle)[1]
        return self._files[path]

    def _compiled(self, file: TfliteFile, name: str) -> LiteRtCompiled:
        inputs, outputs = file.ends(name)
        interpreter = open_interpreter(file.single_signature_file(name), len(self._cores), f"signature `{name}` of {file.path}")
        details = [*interpreter.get_input_details(), *interpreter.get_output_details()]
        indices = {tensor: int(tensor_detail["index"]) for tensor, tensor_detail in zip((*inputs, *outputs), details, strict=True)}
        shapes = inputs | outputs
        for tensor, detail in zip((*inputs, *outputs), details, strict=True):
            if tuple(detail["shape"].tolist()) != shapes[tensor] or detail["dtype"] is not np.float32:
                raise StretchError(f"LiteRT gives `{tensor}` of signature `{name}` another shape or type than the plan of {file.path}")
        return LiteRtCompiled(
            interpreter, {n: nchw_shape(s) for n, s in inputs.items()}, {n: nchw_shape(s) for n, s in outputs.items()}, indices
        )


def nchw_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape N×H×W×C as N×C×H×W; return other shapes unchanged."""
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) == 4 else shape


def _ms(step: Any, runs: int = 3) -> float:
    """Return the shortest time of `runs` runs in ms, after one run to warm up."""
    times = []
    for _ in range(runs + 1):
        start = perf_counter_ns()
        step()
        times.append((perf_counter_ns() - start) / 1e6)
    return min(times[1:])


def _by_xnnpack(compiled: LiteRtCompiled) -> set[str]:
    """Return the names of the tensors that XNNPACK computes."""
    try:
        steps = compiled._interpreter._get_ops_details()
        names = {detail["index"]: detail["name"] for detail in compiled._interpreter.get_tensor_details()}
    except (AttributeError, RuntimeError, ValueError):  # not part of the public interface
        return set()
    return {names.get(int(out), "") for part in partitions(steps) for i in part for out in steps[i]["outputs"]}


def partitions(steps: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the operators of each partition that a delegate computes, found from the borders of the partitions."""
    producers = {int(out): i for i, step in enumerate(steps) if step["op_name"] != "DELEGATE" for out in step["outputs"]}
    parts = []
    for step in (step for step in steps if step["op_name"] == "DELEGATE"):
        border, pending, members = {int(t) for t in step["inputs"]}, [int(t) for t in step["outputs"]], dict[int, None]()
        while pending:
            tensor = pending.pop()
            maker = producers.get(tensor)
            if tensor in border or maker is None or maker in members:
                continue
            members[maker] = None
            pending += [int(t) for t in steps[maker]["inputs"]]
        parts.append(list(members))
    return parts


def open_interpreter(
    content: bytes, threads: int, subject: str, shapes: Mapping[int, tuple[int, ...]] | None = None, *, inner: bool = False
) -> Any:
    """Return an interpreter of a TFLite file, with allocated tensors.

    Args:
        content: Bytes of a file whose structure was checked, because runtimes do not check it.
        shapes: Shapes of inputs, by tensor number, where they differ from the file's.
        inner: Whether all tensors keep their values after a run, to be read.
    """
    make = _interpreter()
    try:
        with filter_stderr(*_NOTES), warnings.catch_warnings():
            # the warning says that keeping all tensors takes memory
            warnings.simplefilter("ignore")
            interpreter = make(
                model_content=content, num_threads=max(1, threads), **({"experimental_preserve_all_tensors": True} if inner else {})
            )
            for index, shape in (shapes or {}).items():
                interpreter.resize_tensor_input(index, list(shape))
            interpreter.allocate_tensors()
    except (ImportError, SystemError) as error:
        raise MissingBackendError(f"the installed {_package()} does not work with numpy {np.__version__}", INSTALL) from error
    except (RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise StretchError(f"LiteRT cannot load {subject}: {reason}") from error
    return interpreter


def _package() -> str:
    for package in PACKAGES:
        if importlib.util.find_spec(package):
            return package
    raise MissingBackendError("the `litert` delegate needs LiteRT, which is not installed", INSTALL)


def _interpreter() -> Any:
    try:
        return importlib.import_module(f"{_package()}.interpreter").Interpreter
    except ImportError as error:
        raise MissingBackendError(f"the installed {_package()} cannot be loaded: {error}", INSTALL) from error


# On a GPU: compiled models in a child process, because their Python interface holds the interpreter's lock while it computes,
# and two of their WebGPU sessions in one process crash.

#: Name of the delegate below, under which its child process looks it up.
NAME = "litert:GPU"

_Shapes = Mapping[str, tuple[int, ...]]


class AcceleratedInvocation(Invocation):
    """A compiled model with buffers of its accelerator; converts inputs and outputs."""

    def __init__(self, model: Any, ends: tuple[_Shapes, _Shapes], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._model = model
        self._buffers = model.create_input_buffers(0), model.create_output_buffers(0)
        self._reads = list(zip(self._buffers[0], inputs, [np.empty(shape, np.float32) for shape in ends[0].values()], strict=True))
        self._writes = list(zip(self._buffers[1], outputs, ends[1].values(), strict=True))

    def run(self) -> None:
        """Write the inputs, channels last, compute, read the outputs, channels first."""
        try:
            for buffer, array, nhwc in self._reads:
                to_nhwc(array, nhwc)
                buffer.write(nhwc)
            self._model.run_by_index(0, *self._buffers)
            for buffer, array, shape in self._writes:
                to_nchw(buffer.read(prod(shape), np.float32).reshape(shape), array)
        except RuntimeError as error:
            raise UnableError(f"LiteRT's accelerator ended with an error, its device may be lost: {first_line(error)}") from error


class AcceleratedCompiled(Compiled):
    """A TFLite file of one signature on an accelerator; inputs and outputs are NCHW, as everywhere outside this module."""

    def __init__(self, model: Any, ends: tuple[_Shapes, _Shapes]) -> None:
        super().__init__(*({name: nchw_shape(shape) for name, shape in shapes.items()} for shapes in ends))
        self._model, self._ends = model, ends

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> AcceleratedInvocation:
        """Tie the model to `inputs` and `outputs`; each binding gets its own buffers on the accelerator."""
        self.check(inputs, outputs)
        return AcceleratedInvocation(self._model, self._ends, inputs, outputs)


@delegates.register(NAME)
class LiteRtGpuDelegate(ChildDelegate, LiteRtDelegate):
    """Runs signatures of the bundle's TFLite file on a GPU, whole or not at all.

    A bundle's signature is compiled by a child process, which has this delegate too and calls `compile`.
    """

    summary = "LiteRT on a GPU through WebGPU or Metal, in a process of its own (never ran on one yet)"
    precisions = ("fp32", "fp16")
    #: Compiler of the model: a name of LiteRT's `HardwareAccelerator`.
    accelerator: ClassVar[str] = "GPU"
    #: Device files on Linux, at least one of which must exist.
    devices: ClassVar[str] = "/dev/dri/renderD*"

    def __init__(self, cores: tuple[int, ...] = ()) -> None:
        super().__init__(cores)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if LiteRT's compiled models or a GPU are missing, else None."""
        # `find_spec` raises an error for a module whose package is missing
        if not (importlib.util.find_spec("ai_edge_litert") and importlib.util.find_spec("ai_edge_litert.compiled_model")):
            return f"ai_edge_litert with compiled models is not installed ({install_line('litert')})"
        return "this machine has no GPU that Linux drives" if sys.platform == "linux" and not glob.glob(cls.devices) else None

    def compile(self, model: Path) -> AcceleratedCompiled:  # type: ignore[override] # a compiled subgraph of another kind
        """Compile a TFLite file of one signature in this process."""
        from ai_edge_litert.compiled_model import CompiledModel, GpuOptions, HardwareAccelerator, Options

        # LiteRT cannot compute in fp16 only where the file has fp16 tensors: everything is computed in fp32
        options = Options(hardware_accelerators=HardwareAccelerator[self.accelerator], gpu_options=GpuOptions(enforce_f32=True))
        try:
            with filter_stderr(*_NOTES):
                compiled = CompiledModel.from_file(str(model), options=options)
        except RuntimeError as error:
            raise UnableError(f"LiteRT cannot compile {model.name} for the {self.accelerator}: {first_line(error)}") from error
        if not compiled.is_fully_accelerated():
            raise UnableError(f"{model.name} has an operator that LiteRT's {self.accelerator} does not take")
        (signature,) = compiled.get_signature_list()
        details = compiled.get_input_tensor_details(signature), compiled.get_output_tensor_details(signature)
        ends = tuple({name: tuple(tensor["shape"]) for name, tensor in tensors.items()} for tensors in details)
        return AcceleratedCompiled(compiled, (ends[0], ends[1]))

    def compile_from(self, bundle: "Bundle", name: str) -> ProcessCompiled:  # type: ignore[override] # as above
        """Compile the signature called `name`, a subgraph or a join, in the child process."""
        file = self._file(bundle)
        if self._child is None:
            self._child, self._folder = ChildProcess(NAME, self._cores), tempfile.TemporaryDirectory(prefix="nn-stretch-")
        assert self._folder is not None
        path = Path(self._folder.name) / f"{name}.tflite"
        path.write_bytes(file.single_signature_file(name))
        compiled = self._child.compile(path)
        for shapes, ends in zip((compiled.inputs, compiled.outputs), file.ends(name), strict=True):
            if list(shapes.items()) != [(tensor, nchw_shape(shape)) for tensor, shape in ends.items()]:
                raise StretchError(f"LiteRT gives the tensors of signature `{name}` other shapes than the plan of {file.path}")
        return compiled

    def node_placements_from(self, bundle: "Bundle", name: str) -> list[NodePlacement]:
        """Return each operator without a time: the accelerator reports no times."""
        return [NodePlacement(writes, code, f"LiteRT's {self.accelerator}") for writes, code in self._file(bundle).operators(name)]

    def close(self) -> None:
        """End the child process at once."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()
