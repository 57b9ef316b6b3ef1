"""What every tensor that crosses subgraphs should hold: the whole model on ONNX Runtime."""

from pathlib import Path
from typing import Any

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle
from scheduler.delegates.base import Array
from scheduler.delegates.cpu import load_runtime
from scheduler.formats.onnx import open_onnx
from scheduler.runtime.inputs import Values, as_arrays


class Reference:
    """A bundle's whole model, which also tells the tensors between subgraphs.

    Where its weights lie outside of the file it tells the output alone.
    """

    def __init__(self, bundle: Bundle) -> None:
        file = bundle.file(bundle.manifest.whole)
        opened = open_onnx(file)
        proto = opened.proto
        self.names = [value.name for value in proto.graph.output]
        source: str | bytes = str(file)
        if not opened.external:
            written = {name for node in proto.graph.node for name in node.output}
            crossing = [t.name for t in bundle.manifest.tensors if t.name in written and t.name not in self.names]
            for name in crossing:
                proto.graph.output.add().name = name
            self.names += crossing
            source = proto.SerializeToString()
        self._session = _session(source, file)

    def run(self, x: Values) -> dict[str, Array]:
        """Value of each tensor of `names` for an input, or for inputs by name."""
        return dict(zip(self.names, _run(self._session, x), strict=True))


def run_file(file: Path, x: Values) -> dict[str, Array]:
    """What the ONNX file of a subgraph computes on ONNX Runtime, integers as the reals they stand for."""
    session = _session(str(file), file)
    return dict(zip([value.name for value in session.get_outputs()], _run(session, x), strict=True))


def _session(source: str | bytes, file: Path) -> Any:
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot load {file}: {_first_line(error)}") from error


def _run(session: Any, x: Values) -> list[Array]:
    inputs = as_arrays(x, [value.name for value in session.get_inputs()])
    try:
        arrays: list[Array] = session.run(None, inputs)
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot run the model on this input: {_first_line(error)}") from error
    return arrays


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
