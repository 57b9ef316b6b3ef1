"""The delegates `coreml`, `coreml:GPU` and `coreml:NPU`: Apple's Core ML, through ONNX Runtime's provider for macOS.

Core ML chooses the processor of each operator. Its choice is read from its compute plan, which the provider logs
(macOS 14.4 and newer): https://onnxruntime.ai/docs/execution-providers/CoreML-ExecutionProvider.html.
"""

import hashlib
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from predictors.errors import StretchError
from predictors.files import cache_folder
from scheduler.delegates.base import Delegate, NodePlacement, UnableError, delegates, redirect_output
from scheduler.delegates.ort_session import SessionCompiled, open_session
from scheduler.formats.onnx import open_onnx

PROVIDER = "CoreMLExecutionProvider"

#: A line of the compute plan after time and process: an operator of Core ML's program, its device and its share of the cost.
_PLANNED = re.compile(r"Operation: (?P<op>[^,]+), Device Usage: <?(?P<device>\w+)[^,]*, Estimated Cost: (?P<cost>[-+.\deE]+)")
_DEVICES = {"MLCPUComputeDevice": "the CPU", "MLGPUComputeDevice": "the GPU", "MLNeuralEngineComputeDevice": "the Neural Engine"}


@delegates.register("coreml")
class CoreMlDelegate(Delegate):
    """Core ML on any processor, in the precision of the file; what its provider does not take runs elsewhere."""

    summary = "Core ML on whichever processors of a Mac it prefers (never ran on one yet)"
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16")
    falls_back_on = "cpu"
    #: Core ML's name for the processors that it may use.
    units: ClassVar[str] = "ALL"

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if this is not a Mac, or its ONNX Runtime lacks the provider, else None."""
        if sys.platform != "darwin":
            return "Core ML is on macOS alone"
        if cls.units == "CPUAndNeuralEngine" and platform.machine() != "arm64":
            return "this Mac has no Neural Engine"
        import onnxruntime

        return None if PROVIDER in onnxruntime.get_available_providers() else f"onnxruntime has no {PROVIDER} here"

    @classmethod
    def preferred(cls) -> bool:
        """Return True: the vendor's own runtime is preferred."""
        return True

    @classmethod
    def options(cls, model: Path) -> dict[str, str]:
        """Return the provider's options; compiled programs are cached by content, because the provider's own cache uses the file's path."""
        options = {
            "ModelFormat": "MLProgram",
            "MLComputeUnits": cls.units,
            "RequireStaticInputShapes": "1",
            # sums in half precision would give another model than the verified one
            "AllowLowPrecisionAccumulationOnGPU": "0",
        }
        external = open_onnx(model).external  # refuses a file that is not a model
        digest = hashlib.sha256(model.read_bytes())
        for name in sorted(external):
            digest.update(model.with_name(name).read_bytes())
        options["ModelCacheDirectory"] = str(cache_folder("coreml") / digest.hexdigest())
        return options

    def compile(self, model: Path) -> SessionCompiled:
        """Compile an ONNX file into a Core ML program."""
        return self._session(model, self.options(model))

    def _session(self, model: Path, options: dict[str, str]) -> SessionCompiled:
        if problem := self.unavailable():
            raise UnableError(f"{model} would run on Core ML: {problem}")
        if folder := options.get("ModelCacheDirectory"):
            Path(folder).mkdir(parents=True, exist_ok=True)
        try:
            session = open_session(model, [(PROVIDER, options)], {"session.disable_cpu_ep_fallback": "1"})
        except StretchError as error:
            raise UnableError(error.message, error.hint) from error
        return SessionCompiled(session, *open_onnx(model).ends)

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return each operator as part of Core ML's program, then the program's operators with their preferred device."""
        options = {key: value for key, value in self.options(model).items() if key != "ModelCacheDirectory"}
        parts = [NodePlacement(name, op, "part of Core ML's program") for name, op in open_onnx(model).named_nodes]
        with tempfile.TemporaryFile("w+") as log:
            with redirect_output(log):
                self._session(model, options | {"ProfileComputePlan": "1"})
            return [*parts, *planned(log.read())]


@delegates.register("coreml:GPU")
class CoreMlGpuDelegate(CoreMlDelegate):
    """Core ML on the GPU of a Mac, and on its CPU where Core ML prefers that."""

    summary = "Core ML on the GPU of a Mac (never ran on one yet)"
    drives = ("gpu",)
    units = "CPUAndGPU"


@delegates.register("coreml:NPU")
class CoreMlNpuDelegate(CoreMlDelegate):
    """Core ML on the Neural Engine, which computes in halves, and on the CPU where Core ML prefers that."""

    summary = "Core ML on the Neural Engine of a Mac (never ran on one yet)"
    precisions = ("fp16",)
    drives = ("npu",)
    units = "CPUAndNeuralEngine"


def planned(log: str) -> list[NodePlacement]:
    """Return the operators of Core ML's program from the provider's log; constants have no device and are left out."""
    lines = list(_PLANNED.finditer(log))
    total = sum(float(line["cost"]) for line in lines) or 1.0
    return [
        NodePlacement(
            f"Core ML {number}",
            line["op"].rpartition(".")[2],
            f"Core ML prefers {_DEVICES.get(line['device'], line['device'])}, {float(line['cost']) / total * 100:.1f} % of the cost it expects",
        )
        for number, line in enumerate(lines)
    ]
