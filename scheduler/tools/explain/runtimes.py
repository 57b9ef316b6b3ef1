"""The runtimes that can be asked, each in a file of its own: `on_<name>.py` with a function `ask`."""

from collections.abc import Callable
from importlib import import_module

from predictors.errors import MissingBackendError, UnknownNameError, UsageError
from scheduler.delegates import delegates
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel

#: The delegate that knows whether a runtime is installed, and the kinds of files that the runtime reads.
RUNTIMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnxruntime": ("cpu", ("ONNX",)),
    "qnn": ("dsp", ("ONNX",)),
    "openvino": ("openvino", ("ONNX", "TFLite")),
    "litert": ("litert", ("TFLite",)),
    "opencl": ("opencl", ("ONNX",)),
}


def check_runtime(runtime: str, model: ForeignModel) -> None:
    """Refuse a runtime that is not known, does not read this kind of file, or is not installed."""
    if runtime not in RUNTIMES:
        raise UnknownNameError.among("runtime", runtime, RUNTIMES)
    delegate, kinds = RUNTIMES[runtime]
    if model.kind not in kinds:
        others = [name for name, (_, known) in RUNTIMES.items() if model.kind in known]
        raise UsageError(f"{runtime} does not read {model.kind} files, which {model.path} is", f"ask {' or '.join(others)}")
    problem = delegates.get(delegate).unavailable()
    if problem:
        raise MissingBackendError(f"{runtime} is not available: {problem}")


def asker(runtime: str) -> Callable[[ForeignModel, str | None], Verdict]:
    """The function that asks a runtime about a file and one of its devices, the best one if None."""
    function: Callable[[ForeignModel, str | None], Verdict] = import_module(f"scheduler.tools.explain.on_{runtime}").ask
    return function
