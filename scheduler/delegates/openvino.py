"""The `openvino` delegate: OpenVINO on CPU cores, and whatever else of Intel's its plug-ins drive."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from predictors.errors import MissingBackendError, StretchError
from predictors.install import install_line
from scheduler.delegates.base import Array, Compiled, CoreDelegate, Invocation, NodePlace, delegates
from scheduler.formats.onnx import open_onnx

INSTALL = install_line("openvino")

#: Status of an operator in OpenVINO's profile, in words.
STATUS = {
    "EXECUTED": "a kernel of OpenVINO",
    "OPTIMIZED_OUT": "needs no kernel in OpenVINO: merged into a neighbour or without work",
    "NOT_RUN": "computed by OpenVINO while it compiled",
}


class OpenVinoInvocation(Invocation):
    """One infer request whose tensors are the caller's memory; releases the GIL while it computes."""

    def __init__(self, request: Any, tensors: Sequence[Any], copies: Sequence[tuple[Array, Array]]) -> None:
        self._infer = request.infer
        self._copies = tuple(copies)
        self._request = request
        # They share memory with the caller's arrays and keep them alive.
        self._tensors = tuple(tensors)

    def run(self) -> None:
        """Infer from and into the bound buffers."""
        self._infer(share_inputs=True, share_outputs=True)
        for target, source in self._copies:
            np.copyto(target, source)


class OpenVinoCompiled(Compiled):
    """A subgraph as OpenVINO's compiled model; each binding has a request of its own."""

    def __init__(self, model: Any, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(inputs, outputs)
        self._model = model

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> OpenVinoInvocation:
        """A request that reads `inputs` and writes `outputs` in place."""
        self.check(inputs, outputs)
        tensor = _openvino().Tensor
        request = self._model.create_infer_request()
        tensors = []
        for i, array in enumerate(inputs):
            tensors.append(tensor(array, shared_memory=True))
            request.set_input_tensor(i, tensors[-1])
        for i, array in enumerate(outputs):
            tensors.append(tensor(array, shared_memory=True))
            request.set_output_tensor(i, tensors[-1])
        # An output that is an input is not written: OpenVINO takes the two for one tensor.
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
    precisions = ("fp32", "fp16", "int8")
    reentrant = True

    @classmethod
    def unavailable(cls) -> str | None:
        """Whether OpenVINO is missing."""
        return None if importlib.util.find_spec("openvino") else f"openvino is not installed ({INSTALL})"

    def compile(self, model: Path) -> OpenVinoCompiled:
        """Compile an ONNX file for the CPU; its threads inherit the affinity of the calling one."""
        opened = open_onnx(model)
        for node in opened.nodes:
            if _miscomputed(node):
                raise StretchError(
                    f"{model}: OpenVINO computes its operator `{node.name or node.op_type}` wrongly (average pooling that counts its padding, over windows that overhang)",
                    "choose another delegate with --map",
                )
        inputs, outputs = opened.ends
        compiled = self._compiled(model)
        for i, (name, shape) in enumerate(outputs.items()):
            if (got := tuple(compiled.output(i).shape)) != shape:
                raise StretchError(
                    f"{model}: OpenVINO gives `{name}` the shape {list(got)}, ONNX defines {list(shape)}",
                    "choose another delegate with --map",
                )
        return OpenVinoCompiled(compiled, inputs, outputs)

    def places(self, model: Path) -> list[NodePlace]:
        """Each kernel with its measured time, and what became of the operators that have none."""
        compiled = self._compiled(model, PERF_COUNT=True)
        request = compiled.create_infer_request()
        request.infer()
        known = dict(open_onnx(model).named)
        node_places = []
        for entry in request.profiling_info:
            status = str(entry.status).rpartition(".")[2]
            executed = status == "EXECUTED"
            reason = f"{STATUS.get(status, status)}{f' ({entry.exec_type})' if executed else ''}"
            node_places.append(
                NodePlace(entry.node_name, known.pop(entry.node_name, entry.node_type), reason, _ms(entry) if executed else None)
            )
        return [*node_places, *(NodePlace(name, op, STATUS["OPTIMIZED_OUT"]) for name, op in known.items())]

    def _compiled(self, model: Path, **settings: Any) -> Any:
        openvino = _openvino()
        options = {
            "INFERENCE_NUM_THREADS": max(1, len(self._cores)),
            "NUM_STREAMS": "1",
            "PERFORMANCE_HINT": "LATENCY",
            # The scheduler pins; a second opinion would move threads onto each other.
            "ENABLE_CPU_PINNING": False,
            # bf16 where the hardware has it would be another model than the one that was checked.
            "INFERENCE_PRECISION_HINT": "f32",
            **settings,
        }
        try:
            return openvino.Core().compile_model(str(model), "CPU", options)
        except RuntimeError as error:
            reason = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise StretchError(f"OpenVINO cannot compile {model}: {reason}") from error


def _openvino() -> ModuleType:
    try:
        import openvino
    except ImportError as error:
        raise MissingBackendError("the `openvino` delegate needs OpenVINO, which is not installed", INSTALL) from error
    module: ModuleType = openvino
    return module


def _miscomputed(node: Any) -> bool:
    """Whether OpenVINO 2026.4 gives other numbers than ONNX defines, as its conformance test shows."""
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return node.op_type == "AveragePool" and attributes.get("ceil_mode") == 1 and attributes.get("count_include_pad") == 1


def _ms(entry: Any) -> float:
    milliseconds: float = entry.real_time.total_seconds() * 1e3
    return milliseconds
