"""The delegates `openvino` and `openvino:half` (CPU cores), `openvino:GPU` and `openvino:NPU`: OpenVINO on Intel's processors."""

import glob
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np

from predictors.errors import StretchError, install_line
from predictors.files import cache_folder
from scheduler.cores import cpu_flags
from scheduler.delegates.base import (
    Array,
    AsyncInvocation,
    Compiled,
    CoreDelegate,
    Delegate,
    NodePlacement,
    UnableError,
    delegates,
    load_package,
    warm_up,
)
from scheduler.formats.onnx import open_onnx

INSTALL = install_line("openvino")

#: Status of an operator in OpenVINO's profile, in words.
STATUS = {
    "EXECUTED": "a kernel of OpenVINO",
    "OPTIMIZED_OUT": "needs no kernel in OpenVINO: merged into a neighbour or without work",
    "NOT_RUN": "computed by OpenVINO while it compiled",
}


#: Intel's PCI vendor number.
_INTEL = "0x8086"


class OpenVinoInvocation(AsyncInvocation):
    """One inference request whose tensors are the caller's memory; releases the GIL while it computes."""

    def __init__(self, request: Any, tensors: Sequence[Any], copies: Sequence[tuple[Array, Array]]) -> None:
        self._infer = request.infer
        self._copies = tuple(copies)
        self._request = request
        # The tensors share memory with the caller's arrays and keep the arrays alive.
        self._tensors = tuple(tensors)

    def run(self) -> None:
        """Infer from and into the bound buffers."""
        self._call(self._infer, share_inputs=True, share_outputs=True)
        self._copy()

    def enqueue(self) -> None:
        """Start the request on the plug-in's queue."""
        self._call(self._request.start_async, share_inputs=True)

    def wait(self) -> None:
        """Wait until the request is done and its outputs are written."""
        self._call(self._request.wait)
        self._copy()

    def _call(self, step: Callable[..., Any], **options: bool) -> None:
        try:
            step(**options)
        except RuntimeError as error:
            raise UnableError(f"OpenVINO ended with an error, its device may be lost: {_reason(error)}") from error

    def _copy(self) -> None:
        for target, source in self._copies:
            np.copyto(target, source)


class OpenVinoCompiled(Compiled):
    """A subgraph as OpenVINO's compiled model; each binding has its own request."""

    def __init__(self, model: Any, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(inputs, outputs)
        self._model = model

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> OpenVinoInvocation:
        """Return a request that reads `inputs` and writes `outputs` in place."""
        self.check(inputs, outputs)
        tensor = load_package("openvino", INSTALL).Tensor
        request = self._model.create_infer_request()
        tensors = []
        for i, array in enumerate(inputs):
            tensors.append(tensor(array, shared_memory=True))
            request.set_input_tensor(i, tensors[-1])
        for i, array in enumerate(outputs):
            tensors.append(tensor(array, shared_memory=True))
            request.set_output_tensor(i, tensors[-1])
        # OpenVINO does not write an output that is also an input, because it treats both as one tensor.
        results = [result.input_value(0).get_node() for result in self._model.get_runtime_model().get_results()]
        names = [parameter.get_friendly_name() for parameter in self._model.get_runtime_model().get_parameters()]
        copies = [
            (outputs[i], inputs[names.index(source.get_friendly_name())])
            for i, source in enumerate(results)
            if source.get_type_name() == "Parameter"
        ]
        return OpenVinoInvocation(request, tensors, copies)


@delegates.register("openvino")
class OpenVinoDelegate(CoreDelegate):
    """OpenVINO's CPU plug-in, one thread a core, in fp32 unless the file is int8."""

    summary = "OpenVINO on CPU cores"
    fuses, package = "onnxruntime", "openvino"
    install = INSTALL
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "int8")
    reentrant = True
    #: Precision of OpenVINO's floating point.
    arithmetic: ClassVar[str] = "f32"

    def compile(self, model: Path) -> OpenVinoCompiled:
        """Compile an ONNX file for the CPU; its threads inherit the affinity of the calling thread."""
        return _checked(model, self._compiled(model))

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return each kernel with its measured time, and each operator without a kernel with the reason."""
        return _places(model, self._compiled(model, PERF_COUNT=True))

    def _compiled(self, model: Path, **settings: Any) -> Any:
        options = {
            "INFERENCE_NUM_THREADS": max(1, len(self._cores)),
            "NUM_STREAMS": "1",
            # The scheduler pins threads; OpenVINO's pinning would move threads onto the same core.
            "ENABLE_CPU_PINNING": False,
            # by default OpenVINO uses bf16 if the hardware has it, even for files that were verified in fp32
            "INFERENCE_PRECISION_HINT": self.arithmetic,
        }
        return _compile(model, "CPU", options | settings)


@delegates.register("openvino:half")
class OpenVinoHalfDelegate(OpenVinoDelegate):
    """OpenVINO's CPU plug-in for fp16 files, which it computes in bfloat16: the half precision of x86 CPUs."""

    summary = "OpenVINO on CPU cores with bfloat16 instructions, for fp16 files"
    precisions = ("fp16",)
    arithmetic = "bf16"

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if OpenVINO is missing or the CPU lacks the instructions, else None."""
        lacks = not cpu_flags() & {"avx512_bf16", "amx_bf16"}
        return super().unavailable() or ("this CPU has no bfloat16 instructions" if lacks else None)


class DeviceDelegate(Delegate):
    """A device of Intel's other than the CPU, through its OpenVINO plug-in, with asynchronous requests."""

    asynchronous = True
    reentrant = True
    fuses = package = "openvino"
    falls_back_on = "cpu"
    #: OpenVINO's name of the device.
    device: ClassVar[str]
    #: Files in which Linux lists the vendor numbers of devices of this kind.
    makers: ClassVar[str]

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if OpenVINO is missing or finds no such device, else None."""
        if problem := OpenVinoDelegate.unavailable():
            return problem
        # the library is loaded only if there is a device: with other compilers in one process it may crash
        if sys.platform == "linux" and not any(_read(path) == _INTEL for path in glob.glob(cls.makers)):
            return f"this machine has no {cls.device} of Intel's that Linux drives"
        devices: list[str] = load_package("openvino", INSTALL).Core().available_devices
        if any(name.partition(".")[0] == cls.device for name in devices):
            return None
        return f"OpenVINO finds no {cls.device} (it finds {', '.join(devices)}): its driver is missing, or too old for this version"

    @classmethod
    def preferred(cls) -> bool:
        """Return True: the vendor's own runtime is preferred."""
        return True

    def compile(self, model: Path) -> OpenVinoCompiled:
        """Compile an ONNX file for the device; a subgraph that the plug-in refuses may run elsewhere."""
        try:
            return _checked(model, self._compiled(model))
        except StretchError as error:
            raise UnableError(error.message, error.hint) from error

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return each kernel with its measured time, and each operator without a kernel with the reason."""
        return _places(model, self._compiled(model, PERF_COUNT=True))

    def _compiled(self, model: Path, **settings: Any) -> Any:
        halves = any(tensor.data_type == _FLOAT16 for tensor in open_onnx(model).initialisers.values())
        # an fp16 file was verified in half precision; any other file is computed in its own precision, or refused
        hint = "f16" if halves else "f32"
        return _compile(model, self.device, {"INFERENCE_PRECISION_HINT": hint, "CACHE_DIR": str(cache_folder("openvino"))} | settings)


@delegates.register("openvino:GPU")
class OpenVinoGpuDelegate(DeviceDelegate):
    """OpenVINO on an integrated or discrete GPU."""

    summary = "OpenVINO on a GPU of Intel's (never ran on one yet)"
    precisions = ("fp32", "fp16", "int8")
    drives = ("gpu",)
    device = "GPU"
    makers = "/sys/class/drm/renderD*/device/vendor"


@delegates.register("openvino:NPU")
class OpenVinoNpuDelegate(DeviceDelegate):
    """OpenVINO on the NPU of a Core Ultra processor, which computes in halves and in int8."""

    summary = "OpenVINO on an NPU of Intel's (never ran on one yet)"
    precisions = ("fp16", "int8")
    drives = ("npu",)
    device = "NPU"
    makers = "/sys/class/accel/accel*/device/vendor"


#: Number of runs in which kernels are timed.
_RUNS = 7

#: Suffix of OpenVINO's names of operators in int8, and ONNX operators that quantise.
_INT8_SUFFIX, _ROUNDING = "/WithoutBiases", ("QuantizeLinear", "DequantizeLinear")

#: Type of half-precision tensors in ONNX.
_FLOAT16 = 10


def _compile(model: Path, device: str, options: dict[str, Any]) -> Any:
    """Return OpenVINO's compiled model for a device, tuned for the latency of one inference."""
    try:
        return load_package("openvino", INSTALL).Core().compile_model(str(model), device, {"PERFORMANCE_HINT": "LATENCY"} | options)
    except RuntimeError as error:
        raise StretchError(f"OpenVINO cannot compile {model} for the {device}: {_reason(error)}") from error


def _checked(model: Path, compiled: Any) -> OpenVinoCompiled:
    """Return a compiled model after checking that its results are ONNX's."""
    opened = open_onnx(model)
    for node in opened.nodes:
        if _miscomputed(node):
            raise StretchError(
                f"{model}: OpenVINO computes its operator `{node.name or node.op_type}` wrongly (average pooling that counts its padding, over windows that overhang)",
                "choose another delegate with --map",
            )
    inputs, outputs = opened.ends
    for i, (name, shape) in enumerate(outputs.items()):
        if (actual := tuple(compiled.output(i).shape)) != shape:
            raise StretchError(
                f"{model}: OpenVINO gives `{name}` the shape {list(actual)}, ONNX defines {list(shape)}",
                "choose another delegate with --map",
            )
    return OpenVinoCompiled(compiled, inputs, outputs)


def _places(model: Path, compiled: Any) -> list[NodePlacement]:
    """Return each kernel of a model compiled with counters, with its median time over several runs."""
    request = compiled.create_infer_request()
    warm_up(request.infer)
    runs = []
    for _ in range(_RUNS):
        # threads fall asleep while a report is read, so the second run counts
        request.infer()
        request.infer()
        runs.append(request.profiling_info)
    nodes = dict(open_onnx(model).named_nodes)
    # a kernel with folded operators has its own name, and lists the operators in it
    folded = {op.get_friendly_name(): _text(op, "originalLayersNames").split(",") for op in compiled.get_runtime_model().get_ordered_ops()}
    node_places = []
    for entries in zip(*runs, strict=True):
        entry = entries[0]
        status = str(entry.status).rpartition(".")[2]
        executed = status == "EXECUTED"
        reason = f"{STATUS.get(status, status)}{f' ({entry.exec_type})' if executed else ''}"
        parts = [entry.node_name, *folded.get(entry.node_name, ())]
        # prefer an operator of the file to its quantisation
        names = [part for name in parts for part in (name, name.partition(_INT8_SUFFIX)[0]) if part in nodes]
        name = next((part for part in names if nodes[part] not in _ROUNDING), next(iter(names), entry.node_name))
        node_places.append(NodePlacement(name, nodes.pop(name, entry.node_type), reason, median(map(_ms, entries)) if executed else None))
    return [*node_places, *(NodePlacement(name, op, STATUS["OPTIMIZED_OUT"]) for name, op in nodes.items())]


def _text(op: Any, key: str) -> str:
    """Return a runtime note of an operator, or an empty string."""
    info = op.get_rt_info()
    return str(getattr(info[key], "value", info[key])) if key in info else ""


def _reason(error: RuntimeError) -> str:
    """Return the last line of OpenVINO's error, which names the cause."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _miscomputed(node: Any) -> bool:
    """Return whether OpenVINO 2026.4 computes other numbers than ONNX defines, as its conformance test shows."""
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return node.op_type == "AveragePool" and attributes.get("ceil_mode") == 1 and attributes.get("count_include_pad") == 1


def _ms(entry: Any) -> float:
    milliseconds: float = entry.real_time.total_seconds() * 1e3
    return milliseconds
