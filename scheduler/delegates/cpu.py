"""The `cpu` delegate: ONNX Runtime, one thread by default, writing into the caller's buffers."""

import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from predictors.errors import MissingBackendError, StretchError
from scheduler.delegates.base import Array, Compiled, Delegate, Invocation, NodePlace, delegates
from scheduler.onnx_file import graph_shapes, load_onnx, node_names

INSTALL = "pip install onnxruntime"


class CpuInvocation(Invocation):
    """One session with its buffers bound; releases the GIL while it computes."""

    def __init__(self, session: Any, binding: Any, buffers: Sequence[Array]) -> None:
        self._run = session.run_with_iobinding
        self._binding = binding
        # ONNX Runtime keeps bare pointers: the arrays must live as long as the binding.
        self._buffers = tuple(buffers)

    def run(self) -> None:
        """Run the session from and into the bound buffers."""
        self._run(self._binding)


class CpuCompiled(Compiled):
    """A subgraph as an ONNX Runtime session."""

    def __init__(self, session: Any, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(inputs, outputs)
        self._session = session

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> CpuInvocation:
        """Bind the session to the memory of `inputs` and `outputs`."""
        self.check(inputs, outputs)
        binding = self._session.io_binding()
        for name, array in zip(self.inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in zip(self.outputs, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return CpuInvocation(self._session, binding, (*inputs, *outputs))


@delegates.register("cpu")
class CpuDelegate(Delegate):
    """ONNX Runtime on the CPU.

    With one thread a session runs on the thread that calls it and so on the
    cores that thread is pinned to. With more, its helpers are created by
    `compile` and inherit the affinity of the thread that calls that.

    Args:
        threads: Threads inside one operator.
    """

    summary = "ONNX Runtime on CPU cores"

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """As many threads as there are cores, one if the work is not pinned."""
        return cls(threads=max(1, len(cores)))

    @classmethod
    def unavailable(cls) -> str | None:
        """Whether ONNX Runtime is missing."""
        return None if importlib.util.find_spec("onnxruntime") else f"onnxruntime is not installed ({INSTALL})"

    def compile(self, model: Path) -> CpuCompiled:
        """Load `model` into a session, optimised for this machine."""
        onnxruntime = _onnxruntime()
        session = _session(onnxruntime, model, self._options(onnxruntime))
        inputs, outputs = graph_shapes(load_onnx(model), model)
        return CpuCompiled(session, inputs, outputs)

    def places(self, model: Path) -> list[NodePlace]:
        """Each operator with its measured time, or that the optimiser merged it into another.

        One profiled run on a zero input after one warm-up run.
        """
        times, merged = _profile(_onnxruntime(), model, self)
        found = []
        for name, op in node_names(model):
            if name in times:
                found.append(NodePlace(name, op, "ONNX Runtime has a CPU kernel for it", times[name]))
            else:
                found.append(NodePlace(name, op, merged))
        return found

    def _options(self, onnxruntime: ModuleType) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        if self._threads == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        else:
            # Spinning helps several threads, but must not go on into what runs next.
            options.add_session_config_entry("session.force_spinning_stop", "1")
        return options


def _onnxruntime() -> ModuleType:
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


def _profile(onnxruntime: ModuleType, model: Path, delegate: CpuDelegate) -> tuple[dict[str, float], str]:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        options = delegate._options(onnxruntime)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "ort")
        session = _session(onnxruntime, model, options)
        feed = {i.name: np.zeros(i.shape, np.float32) for i in session.get_inputs()}
        session.run(None, feed)
        session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[str, float] = {}
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            # The second run overwrites the first, which also allocated memory.
            times[name.removesuffix("_kernel_time")] = event["dur"] / 1000
    return times, "merged into a neighbour by ONNX Runtime's optimiser"
