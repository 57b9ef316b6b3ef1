"""An ONNX Runtime session that reads and writes the caller's memory; shared by the delegates that run on ONNX Runtime."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from predictors.errors import StretchError, first_line
from scheduler.delegates.base import Array, Compiled, Invocation


class SessionInvocation(Invocation):
    """A session with bound buffers; releases the GIL while it computes."""

    def __init__(self, session: Any, binding: Any, buffers: Sequence[Array]) -> None:
        self._run = session.run_with_iobinding
        self._binding = binding
        # ONNX Runtime keeps bare pointers: the arrays must live as long as the binding.
        self._buffers = tuple(buffers)

    def run(self) -> None:
        """Run the session from and into the bound buffers."""
        self._run(self._binding)


class SessionCompiled(Compiled):
    """A subgraph as an ONNX Runtime session."""

    def __init__(self, session: Any, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(inputs, outputs)
        self._session = session

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> SessionInvocation:
        """Bind the session to the memory of `inputs` and `outputs`."""
        self.check(inputs, outputs)
        binding = self._session.io_binding()
        for name, array in zip(self.inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in zip(self.outputs, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return SessionInvocation(self._session, binding, (*inputs, *outputs))


def open_session(
    model: Path, providers: Sequence[Any], settings: Mapping[str, str], options: Any = None, content: bytes | None = None
) -> Any:
    """Return an `onnxruntime.InferenceSession` of a model file.

    Args:
        providers: Execution providers in order; each a name, or a name with options.
        settings: Entries of the session's configuration.
        options: `onnxruntime.SessionOptions` to start from; the defaults if None.
        content: Model bytes to load in place of the file's; external weights are read from the file's folder.

    Raises:
        StretchError: If ONNX Runtime cannot load the file with these options.
    """
    import onnxruntime

    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for key, value in {"session.model_external_initializers_file_folder_path": str(model.parent), **settings}.items():
        options.add_session_config_entry(key, value)
    try:
        return onnxruntime.InferenceSession(content or str(model), options, providers=list(providers))
    # ONNX Runtime's exceptions have no common base class.
    except Exception as error:
        raise StretchError(f"ONNX Runtime cannot load {model}: {first_line(error)}") from error
