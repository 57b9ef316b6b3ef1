"""Runtimes are asked in a process of its own: foreign files may end it, and what it prints is the runtime's log."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from scheduler.delegates import delegates
from scheduler.delegates.cpu import load_runtime
from scheduler.tools.explain.answer import Verdict
from scheduler.tools.explain.model import ForeignModel, open_model

#: The delegate that knows whether a runtime is installed, and the kinds of files that the runtime reads; `on_<name>.py` asks it.
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
    if problem := delegates.get(delegate).unavailable():
        raise MissingBackendError(f"{runtime} is not available: {problem}")


# Whether a changed model computes what the original does: on ONNX Runtime's CPU provider, or as ONNX itself defines it.

#: Inputs that are compared.
DRAWS = 3

#: Sizes that are drawn for open axes: of a batch, and of others.
BATCH, OTHER = 1, 64

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


def largest_difference(before: Path, after: Path) -> float:
    """Largest difference between the results of two models on random inputs, over the largest result."""
    first, second = _runner(before), _session(after)
    names = [[value.name for value in values] for values in (first.get_outputs(), second.get_outputs())]
    if names[0] != names[1] or [i.name for i in first.get_inputs()] != [i.name for i in second.get_inputs()]:
        raise StretchError(f"{after} takes or gives other tensors than {before}")
    draw = np.random.default_rng(0)
    worst = 0.0
    fixed = {value.name: value.shape for value in second.get_inputs()}
    for _ in range(DRAWS):
        feed = {value.name: _drawn(value, fixed[value.name], draw) for value in first.get_inputs()}
        wanted = _run(first, feed, before)
        got = _run(second, {v.name: feed[v.name].astype(_TYPES[v.type]) for v in second.get_inputs()}, after)
        for a, b in zip(wanted, got, strict=True):
            worst = max(worst, _difference(np.asarray(a), np.asarray(b)))
    return worst


def _difference(a: Any, b: Any) -> float:
    """Infinite where shapes differ, or one has a number that is none and the other has not."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    there = np.isfinite(a)
    if not there.any():
        return 0.0
    return float(np.abs(a[there] - b[there]).max() / max(1e-6, np.abs(a[there]).max()))


class _Definition:
    """A model computed by ONNX's own definition in Python, with what is asked of a session: slow, and there for every type."""

    def __init__(self, file: Path) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        proto = onnx.load(str(file))
        weights = {tensor.name for tensor in proto.graph.initializer}
        types = onnx.TensorProto.DataType

        def end(value: Any) -> SimpleNamespace:
            """Name, type and shape of an input or output, as ONNX Runtime words them."""
            tensor = value.type.tensor_type
            shape = [dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in tensor.shape.dim]
            return SimpleNamespace(name=value.name, type=f"tensor({types.Name(tensor.elem_type).lower()})", shape=shape)

        self.get_inputs = lambda: [end(value) for value in proto.graph.input if value.name not in weights]
        self.get_outputs = lambda: [end(value) for value in proto.graph.output]
        self._evaluator = ReferenceEvaluator(proto)

    def run(self, _names: None, feed: dict[str, Any]) -> list[Any]:
        return list(self._evaluator.run(None, feed))


def _runner(file: Path) -> Any:
    """A session, or ONNX's definition where ONNX Runtime has no kernel for something in the file."""
    try:
        return _session(file)
    except StretchError as refused:
        try:
            return _Definition(file)
        # What the definition raises for operators that it lacks has many classes.
        except Exception:
            raise refused from None


def _session(file: Path) -> Any:
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions share no base class of their own.
    except Exception as error:
        raise StretchError(
            f"{file} does not run on ONNX Runtime's CPU provider, so no change of it can be compared: {_line(error)}"
        ) from error


def _run(session: Any, feed: dict[str, Any], file: Path) -> list[Any]:
    try:
        outputs: list[Any] = session.run(None, feed)
    except Exception as error:
        raise StretchError(f"{file} does not run on random inputs, so no change of it can be compared: {_line(error)}") from error
    return outputs


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _drawn(value: Any, fixed: list[Any], draw: np.random.Generator) -> Any:
    """A random tensor; whole numbers are 0 or 1, which are places of most tables."""
    if value.type not in _TYPES:
        raise StretchError(f"input `{value.name}` is a {value.type}, of which none can be drawn")
    sizes = [size if isinstance(size, int) and size > 0 else None for size in (fixed or value.shape)]
    shape = [size or (BATCH if axis == 0 else OTHER) for axis, size in enumerate(sizes)]
    kind = _TYPES[value.type]
    return draw.standard_normal(shape).astype(kind) if np.issubdtype(kind, np.floating) else draw.integers(0, 2, shape).astype(kind)


#: Seconds after which a runtime that does not answer is ended.
LIMIT = 600

#: Characters that are kept of a log.
LOG = 200_000

_START = "import sys; from scheduler.tools.explain.child import main; main(*sys.argv[1:])"

_ERRORS = {kind.__name__: kind for kind in (StretchError, UsageError, UnknownNameError, MissingBackendError)}


class Reply(msgspec.Struct, kw_only=True):
    """What the process answers."""

    result: Any = None  # What was asked for.
    error: tuple[str, str, str | None] | None = None  # Class, message and hint of an error.


def ask_runtime(file: Path, runtime: str, device: str | None) -> tuple[Verdict, str]:
    """What a runtime says of a file, and all it wrote meanwhile."""
    result, log = in_child("ask", str(file), runtime, device or "")
    return msgspec.convert(result, Verdict, str_keys=True), log


def in_child(*words: str) -> tuple[Any, str]:
    """Run a function of `_WORK` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        command = [sys.executable, "-c", _START, str(answer), *words]
        with log.open("wb") as stream:
            try:
                code = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, timeout=LIMIT
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise StretchError(f"{words[2]} does not answer within {LIMIT} s", "ask it about a part of the model") from error
        output = log.read_bytes()[-LOG:].decode(errors="replace")
        if not answer.is_file():
            last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it wrote nothing")
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise StretchError(f"the process that loads {words[1]} in {words[2]} {how}: {last[:300]}", "use another runtime")
        reply = msgspec.json.decode(answer.read_bytes(), type=Reply)
    if reply.error is not None:
        kind, message, hint = reply.error
        raise _ERRORS[kind](message, hint)
    return reply.result, output


def _ask(file: str, runtime: str, device: str) -> Verdict:
    verdict: Verdict = import_module(f"scheduler.tools.explain.on_{runtime}").ask(open_model(Path(file)), device or None)
    return verdict


_WORK: dict[str, Callable[[str, str, str], Verdict | float]] = {
    "ask": _ask,
    "compare": lambda before, _, after: largest_difference(Path(before), Path(after)),
}


def main(answer: str, work: str, *words: str) -> None:
    """Do what was asked for and write the answer, an error of ours too."""
    try:
        reply = Reply(result=_WORK[work](*words))
    except StretchError as error:
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
        reply = Reply(error=(kind, error.message, error.hint))
    Path(answer).write_bytes(msgspec.json.encode(reply))
