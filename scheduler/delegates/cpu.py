"""The `cpu` delegate: ONNX Runtime, one thread by default, writing into the caller's buffers."""

import json
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scheduler.delegates.base import CoreDelegate, NodePlacement, delegates, load_package
from scheduler.delegates.ort_session import SessionCompiled, open_session
from scheduler.formats.onnx import open_onnx

#: ONNX Runtime adds one of these marks to a node's name to name the kernel that replaces it.
_MARKS = ("fused ", "_nchwc", "/QuickGeluFusion/")

#: Mark of a normalisation that ONNX Runtime computes as a separate convolution.
_NORMALISES = "_bn_nchwc"


def place_kernels(nodes: Iterable[Any], kernels: Mapping[str, tuple[str, float]]) -> list[NodePlacement]:
    """Return each operator with its kernel's time, or the operator it was merged into; then kernels that ONNX Runtime added."""
    nodes = list(nodes)
    names = [node.name or f"{node.op_type}_{i}" for i, node in enumerate(nodes)]
    by_name = {name: i for i, name in enumerate(names)}
    writer = {output: i for i, node in enumerate(nodes) for output in node.output}

    def upstream(start: int) -> Iterable[int]:
        """Yield `start`, then the nodes it depends on, nearest first."""
        seen, queue = {start}, deque([start])
        while queue:
            i = queue.popleft()
            yield i
            for name in nodes[i].input:
                if name in writer and writer[name] not in seen:
                    seen.add(writer[name])
                    queue.append(writer[name])

    owned: dict[int, float] = {}
    added: list[NodePlacement] = []
    for kernel, (op, ms) in kernels.items():
        name = kernel.removesuffix(_NORMALISES)
        for mark in _MARKS:
            name = name.replace(mark, "")
        # A kernel in blocked layout is named after the last tensor of the operators it replaces.
        last = by_name.get(name, writer.get(name))
        activation = None if kernel.endswith(_NORMALISES) else op.removeprefix("Fused")
        owner = None if last is None else next((i for i in upstream(last) if nodes[i].op_type == activation and i not in owned), last)
        if owner is None:
            added.append(NodePlacement(kernel, op, "added by ONNX Runtime to change the layout", ms))
        else:
            owned[owner] = owned.get(owner, 0.0) + ms
    placements = []
    for i, node in enumerate(nodes):
        if i in owned:
            placements.append(NodePlacement(names[i], node.op_type, "has a CPU kernel in ONNX Runtime", owned[i]))
            continue
        into = next((j for j in upstream(i) if j in owned), None)
        reason = f"merged into `{names[into]}` by ONNX Runtime" if into is not None else "optimised away by ONNX Runtime"
        placements.append(NodePlacement(names[i], node.op_type, reason))
    return placements + added


def profile_kernels(session_of: Any) -> dict[str, tuple[str, float]]:
    """Return operator type and median time in ms of each kernel, from five runs on a zero input."""
    with tempfile.TemporaryDirectory() as folder:
        session = session_of(str(Path(folder) / "ort"))
        feed = {i.name: np.zeros(i.shape, np.float32) for i in session.get_inputs()}
        for _ in range(6):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[str, list[float]] = {}
    ops: dict[str, str] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            name = name.removesuffix("_kernel_time")
            ops[name] = str(event.get("args", {}).get("op_name", ""))
            times.setdefault(name, []).append(event["dur"] / 1000)
    return {name: (ops[name], float(np.median(durations[1:]))) for name, durations in times.items()}


INSTALL = "pip install onnxruntime"
_PROVIDERS = ("CPUExecutionProvider",)


@delegates.register("cpu")
class CpuDelegate(CoreDelegate):
    """ONNX Runtime on the CPU.

    One thread per core: a session runs on the calling thread, which the
    caller pins to the first core, and on helpers pinned to the other cores. A
    helper on the calling thread's core would make the two spin against each other.
    """

    summary = "ONNX Runtime on CPU cores"
    fuses = package = "onnxruntime"
    install = INSTALL
    precisions = ("fp32", "fp16", "int8")
    reentrant = True

    def compile(self, model: Path) -> SessionCompiled:
        """Load `model` into a session, optimised for this machine."""
        session = open_session(model, _PROVIDERS, *self.options())
        return SessionCompiled(session, *open_onnx(model).ends)

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return each operator with its kernel's measured time, or the operator that it was merged into."""

        def session(prefix: str) -> Any:
            settings, options = self.options()
            options.enable_profiling = True
            options.profile_file_prefix = prefix
            return open_session(model, _PROVIDERS, settings, options)

        return place_kernels(open_onnx(model).nodes, profile_kernels(session))

    def options(self) -> tuple[dict[str, str], Any]:
        """Return the configuration entries and the options of a session."""
        onnxruntime = load_runtime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, len(self._cores))
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        if len(self._cores) < 2:
            return {"session.intra_op.allow_spinning": "0"}, options
        # ONNX Runtime counts processors from 1 and expects an affinity for every thread but the caller's.
        affinities = ";".join(str(core + 1) for core in self._cores[1:])
        # Spinning helps several threads, but must stop before the next subgraph runs.
        return {"session.intra_op_thread_affinities": affinities, "session.force_spinning_stop": "1"}, options


def load_runtime() -> ModuleType:
    """Import `onnxruntime` and return it."""
    return load_package("onnxruntime", INSTALL)
