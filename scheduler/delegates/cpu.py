"""The `cpu` delegate: ONNX Runtime, one thread by default, writing into the caller's buffers."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from predictors.errors import MissingBackendError, StretchError
from scheduler.delegates.base import CoreDelegate, NodePlace, delegates
from scheduler.delegates.cpu_profile import place_kernels, profile_kernels
from scheduler.delegates.ort_session import SessionCompiled
from scheduler.formats.onnx import open_onnx

INSTALL = "pip install onnxruntime"


@delegates.register("cpu")
class CpuDelegate(CoreDelegate):
    """ONNX Runtime on the CPU.

    One thread a core: a session runs on the thread that calls it, which the
    caller pins to the first core, and on helpers that it pins to the others. A
    helper on the calling thread's core would have it spin against itself.

    Args:
        cores: Cores to use; empty for one thread, wherever the caller is.
    """

    summary = "ONNX Runtime on CPU cores"
    precisions = ("fp32", "fp16", "int8")
    reentrant = True

    @classmethod
    def unavailable(cls) -> str | None:
        """Whether ONNX Runtime is missing."""
        return None if importlib.util.find_spec("onnxruntime") else f"onnxruntime is not installed ({INSTALL})"

    def compile(self, model: Path) -> SessionCompiled:
        """Load `model` into a session, optimised for this machine."""
        onnxruntime = load_runtime()
        session = _session(onnxruntime, model, self._options(onnxruntime))
        inputs, outputs = open_onnx(model).ends
        return SessionCompiled(session, inputs, outputs)

    def places(self, model: Path) -> list[NodePlace]:
        """Each operator with its kernel's measured time, or what it was merged into."""
        onnxruntime = load_runtime()

        def session(prefix: str) -> Any:
            options = self._options(onnxruntime)
            options.enable_profiling = True
            options.profile_file_prefix = prefix
            return _session(onnxruntime, model, options)

        return place_kernels(open_onnx(model).nodes, profile_kernels(session))

    def _options(self, onnxruntime: ModuleType) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, len(self._cores))
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        if len(self._cores) < 2:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        else:
            # ONNX Runtime counts processors from 1 and asks for all threads but the caller's.
            options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(str(core + 1) for core in self._cores[1:]))
            # Spinning helps several threads, but must not go on into what runs next.
            options.add_session_config_entry("session.force_spinning_stop", "1")
        return options


def load_runtime() -> ModuleType:
    """The package `onnxruntime`."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingBackendError("the `cpu` delegate needs ONNX Runtime, which is not installed", INSTALL) from error
    module: ModuleType = onnxruntime
    return module


def _session(onnxruntime: ModuleType, model: Path, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StretchError(f"ONNX Runtime cannot load {model}: {reason}") from error
