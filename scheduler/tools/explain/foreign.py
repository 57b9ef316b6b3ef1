"""A runtime's placement of the operators in a model file: partitions, copies, unsupported operators, and changes that help.

Runtimes run in a child process: foreign files may crash it, and its output is the runtime's log.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from predictors.errors import MissingBackendError, StretchError, UnknownNameError, UsageError
from predictors.files import check_folder
from predictors.formats.inference import infer_shapes
from scheduler.delegates.cpu import load_runtime
from scheduler.formats.onnx.file import external_locations
from scheduler.tools.explain.model import Fix, ForeignModel, RuntimeExplanation, RuntimeOperator, UnsupportedReason, Verdict, open_model
from scheduler.tools.explain.runtimes import RUNTIMES, check_runtime, read_qnn_log

# Comparison of a changed model with the original: on ONNX Runtime's CPU provider, or by ONNX's definition.

#: Number of random inputs to compare.
RANDOM_INPUTS = 3

#: Sizes of open axes: of a batch, and of others.
BATCH, OTHER_SIZE = 1, 64

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
    """Return the largest difference between the results of two models on random inputs, over the largest result."""
    first, second = _runner(before), _session(after)
    names = [[value.name for value in values] for values in (first.get_outputs(), second.get_outputs())]
    if names[0] != names[1] or [i.name for i in first.get_inputs()] != [i.name for i in second.get_inputs()]:
        raise StretchError(f"{after} takes or gives other tensors than {before}")
    draw = np.random.default_rng(0)
    worst = 0.0
    fixed = {value.name: value.shape for value in second.get_inputs()}
    for _ in range(RANDOM_INPUTS):
        feed = {value.name: _random_tensor(value, fixed[value.name], draw) for value in first.get_inputs()}
        expected = _run(first, feed, before)
        actual = _run(second, {v.name: feed[v.name].astype(_TYPES[v.type]) for v in second.get_inputs()}, after)
        for a, b in zip(expected, actual, strict=True):
            worst = max(worst, _difference(np.asarray(a), np.asarray(b)))
    return worst


def _difference(a: Any, b: Any) -> float:
    """Return the largest relative difference; infinity if shapes differ, or only one has a non-finite number in a position."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(a)
    if not finite.any():
        return 0.0
    return float(np.abs(a[finite] - b[finite]).max() / max(1e-6, np.abs(a[finite]).max()))


class _Definition:
    """A model computed by ONNX's own definition in Python, with the interface of a session: slow, but for every type."""

    def __init__(self, file: Path) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        proto = onnx.load(str(file))
        weights = {tensor.name for tensor in proto.graph.initializer}
        types = onnx.TensorProto.DataType

        def end(value: Any) -> SimpleNamespace:
            """Return name, type and shape of an input or output, in ONNX Runtime's form."""
            tensor = value.type.tensor_type
            shape = [dim.dim_value if dim.dim_value > 0 else dim.dim_param for dim in tensor.shape.dim]
            return SimpleNamespace(name=value.name, type=f"tensor({types.Name(tensor.elem_type).lower()})", shape=shape)

        self.get_inputs = lambda: [end(value) for value in proto.graph.input if value.name not in weights]
        self.get_outputs = lambda: [end(value) for value in proto.graph.output]
        self._evaluator = ReferenceEvaluator(proto)

    def run(self, _names: None, feed: dict[str, Any]) -> list[Any]:
        return list(self._evaluator.run(None, feed))


def _runner(file: Path) -> Any:
    """Return a session, or ONNX's definition if ONNX Runtime has no kernel for an operator of the file."""
    try:
        return _session(file)
    except StretchError as refused:
        try:
            return _Definition(file)
        # The definition raises errors of many classes for operators that it lacks.
        except Exception:
            raise refused from None


def _session(file: Path) -> Any:
    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions have no common base class.
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


def _random_tensor(value: Any, fixed: list[Any], draw: np.random.Generator) -> Any:
    """Return a random tensor; whole numbers are 0 or 1, which are valid indices of most tables."""
    if value.type not in _TYPES:
        raise StretchError(f"input `{value.name}` is a {value.type}, of which none can be drawn")
    sizes = [size if isinstance(size, int) and size > 0 else None for size in (fixed or value.shape)]
    shape = [size or (BATCH if axis == 0 else OTHER_SIZE) for axis, size in enumerate(sizes)]
    kind = _TYPES[value.type]
    return draw.standard_normal(shape).astype(kind) if np.issubdtype(kind, np.floating) else draw.integers(0, 2, shape).astype(kind)


#: Seconds after which a runtime without an answer is ended.
LIMIT = 600

#: Maximum number of characters of a log to keep.
LOG = 200_000

_START = "import sys; from scheduler.tools.explain.foreign import main; main(*sys.argv[1:])"

_ERRORS = {kind.__name__: kind for kind in (StretchError, UsageError, UnknownNameError, MissingBackendError)}


class Reply(msgspec.Struct, kw_only=True):
    """Answer of the child process."""

    result: Any = None  # Result of the request.
    error: tuple[str, str, str | None] | None = None  # Class, message and hint of an error.


def in_child(*words: str) -> tuple[Any, str]:
    """Run a function of `_WORK` in a child process, and return its result and output."""
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
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise StretchError(f"the process that loads {words[1]} in {words[2]} {ending}: {last[:300]}", "use another runtime")
        reply = msgspec.json.decode(answer.read_bytes(), type=Reply)
    if reply.error is not None:
        kind, message, hint = reply.error
        raise _ERRORS[kind](message, hint)
    return reply.result, output


def _ask(file: str, runtime: str, device: str) -> Verdict:
    return RUNTIMES[runtime][2](open_model(Path(file)), device or None)


_WORK: dict[str, Callable[[str, str, str], Verdict | float]] = {
    "ask": _ask,
    "compare": lambda before, _, after: largest_difference(Path(before), Path(after)),
}


def main(answer: str, work: str, *words: str) -> None:
    """Write the answer to a request, which may be an error."""
    try:
        reply = Reply(result=_WORK[work](*words))
    except StretchError as error:
        kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
        reply = Reply(error=(kind, error.message, error.hint))
    Path(answer).write_bytes(msgspec.json.encode(reply))


#: Element types that accelerators compute with.
USUAL_TYPES = ("float", "float32", "float16", "int8", "uint8", "int32", "bool")

_VERSION = re.compile(r"opset (\d+)", re.IGNORECASE)


def find_cause(model: ForeignModel, i: int, runtime_message: str | None, taken_kinds: Collection[str]) -> tuple[str, str]:
    """Return the cause for an unsupported operator, and the change that helps."""
    op, message = model.ops[i], runtime_message or ""
    if model.kind == "ONNX" and (match := _VERSION.search(message)) and int(match[1]) == model.opset:
        return f"opset {model.opset}", "export the model with a newer opset"
    if op.domain:
        return f"domain {op.domain}", "write it with operators of ONNX itself, or give the runtime the library that has it"
    attribute = next((name for name in op.attributes if _mentions(message, name)), None)
    if attribute is not None:
        return f"{attribute} = {_short(op.attributes[attribute])}", f"export it with another `{attribute}`, or replace it"
    mentioned_type = next((kind for kind in op.types if re.search(rf"(?<![a-z]){kind}(?![\w])", message, re.IGNORECASE)), None)
    # sizes and indices are whole numbers, which runtimes read as constants
    indices = {"int64", "int32"} if not {"float", "float32", "float16"}.isdisjoint(op.types) else set()
    unusual = mentioned_type or next((kind for kind in op.types if kind not in USUAL_TYPES and kind not in indices), None)
    if unusual is not None and "quantize" not in op.op.lower():
        return f"type {unusual}", f"export the model without {unusual} tensors here"
    if op.dynamic:
        shape = next(shape for shape in op.shapes if None in shape)
        return f"shape {_sizes(shape)}", "export the model with fixed shapes"
    if rank := re.search(r"\brank|\bdimension", message, re.IGNORECASE):
        return f"shape {_sizes(op.shapes[0]) if op.shapes else rank[0]}", "reshape its input to fewer axes, or replace it"
    if op.op in taken_kinds:
        shown = ", ".join(f"{name} = {_short(value)}" for name, value in op.attributes.items())
        return f"settings {shown}" if shown else "inputs", f"compare it with the operators of type {op.op} that are taken"
    return f"operator {op.op}", f"replace {op.op} by operators that the runtime takes, or leave it out of the model"


def _mentions(message: str, name: str) -> bool:
    """Return whether a message names an attribute, also with spaces or other capitals."""
    parts = name.split("_")
    return len(name) > 3 and re.search(rf"(?<![a-z]){'[ _-]?'.join(map(re.escape, parts))}(?![a-z])", message, re.IGNORECASE) is not None


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


#: Maximum number of reported characters of a log.
LOG_LIMIT = 20_000

#: Words in log lines about unsupported operators.
_LOG_WORDS = re.compile("FAILED|REASON|Node name:|not supported|partition|delegate|placed on|fallback|not a registered|custom op")


def explain_file(path: Path, runtime: str, device: str | None = None) -> RuntimeExplanation:
    """Return the placement of each operator of an ONNX or TFLite file by a runtime on this machine.

    The runtime runs in a child process, which a damaged file may crash.

    Args:
        device: One of the runtime's devices; the best available one if None.
    """
    model = open_model(path)
    check_runtime(runtime, model)
    result, log = in_child("ask", str(path), runtime, device or "")
    verdict = msgspec.convert(result, Verdict, str_keys=True)
    if runtime == "qnn":
        read_qnn_log(model, log, verdict)
    return judge(model, verdict, log)


def judge(model: ForeignModel, verdict: Verdict, log: str = "") -> RuntimeExplanation:
    """Return the explanation derived from a verdict."""
    on = {i for i, target in verdict.taken.items() if target == verdict.target}
    operators = [_operator(model, i, verdict, on) for i in range(len(model.ops))]
    macs = [op.macs for op in operators]
    total = None if None in macs else sum(filter(None, macs))
    off = {i for i, op in enumerate(operators) if op.taken is False}
    parts = _parts(operators, verdict)
    return RuntimeExplanation(
        file=model.path,
        runtime=verdict.runtime,
        device=verdict.device,
        operators=[msgspec.structs.replace(op, partition=parts.get(i)) for i, op in enumerate(operators) if op.op != "Constant"],
        partitions=len(set(parts.values())),
        obstacles=list(_unsupported_reasons(model, verdict, off)),
        copies=_crossings(model, on, off) + verdict.added,
        share=None if not total else sum(op.macs or 0 for i, op in enumerate(operators) if i not in off) / total,
        fix=None,
        log=_shorten(log),
        warnings=list(verdict.warnings),
    )


def _operator(model: ForeignModel, i: int, verdict: Verdict, on: set[int]) -> RuntimeOperator:
    op, target = model.ops[i], verdict.taken.get(i)
    taken: bool | None = False
    reason = verdict.messages.get(i) or f"{verdict.target} does not take it and gives no reason"
    if verdict.refused is not None:
        reason = f"the runtime rejects the {'file because of this operator' if i == verdict.at else 'whole file'}"
    elif i in on:
        taken, reason = True, f"taken by {verdict.target}"
    elif i in verdict.removed:
        taken, reason = None, verdict.removed[i]
    return RuntimeOperator(name=op.name, op=op.op, target=target, taken=taken, partition=None, macs=op.macs, reason=reason)


def _parts(operators: list[RuntimeOperator], verdict: Verdict) -> dict[int, int]:
    """Return the partition of each supported operator: as the runtime reports it, else consecutive operators in execution order."""
    if verdict.parts:
        numbers = {part: n for n, part in enumerate(dict.fromkeys(verdict.parts[i] for i in sorted(verdict.parts)))}
        return {i: numbers[part] for i, part in verdict.parts.items()}
    indices = [i for i, op in enumerate(operators) if op.taken is not None]
    runs = [list(run) for taken, run in groupby(indices, lambda i: operators[i].taken) if taken]
    return {i: part for part, run in enumerate(runs) for i in run}


def _crossings(model: ForeignModel, on: set[int], off: set[int]) -> int:
    """Return the number of tensors passed between the processor and others, each counted once per direction."""
    producers = {name: i for i, op in enumerate(model.ops) for name in op.outputs}
    read = [(i, name, producers[name]) for i, op in enumerate(model.ops) for name in op.inputs if name in producers]
    return len({(name, i in on) for i, name, j in read if (i in on and j in off) or (i in off and j in on)})


def _unsupported_reasons(model: ForeignModel, verdict: Verdict, off: set[int]) -> Iterator[UnsupportedReason]:
    """Yield the reasons for all unsupported operators; if the whole file is rejected, for the operator that the error names."""
    taken_kinds = {model.ops[i].op for i, target in verdict.taken.items() if target == verdict.target}
    for i in sorted(off) if verdict.refused is None else [verdict.at or 0]:
        op, message = model.ops[i], verdict.messages.get(i) if verdict.refused is None else verdict.refused
        cause, change = "the file as a whole", "correct the error that the runtime reports"
        if verdict.refused is None or verdict.at is not None:
            cause, change = find_cause(model, i, message, taken_kinds)
        yield UnsupportedReason(operator=op.name, op=op.op, cause=cause, words=message, change=change)


def _shorten(log: str) -> str:
    """Return the log; of a long one, only lines about unsupported operators."""
    if len(log) <= LOG_LIMIT:
        return log
    lines = "\n".join(line for line in log.splitlines() if _LOG_WORDS.search(line))
    return lines[-LOG_LIMIT:]


#: Opset to which older models are raised: the first one in which the axes of all operators are inputs.
NEW_OPSET = 18


def raise_opset(model: Any) -> Any | None:
    """Return the model in a newer opset, by ONNX's version converter; `Upsample` becomes `Resize`."""
    import onnx

    version = max((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=1)
    if version >= NEW_OPSET:
        return None
    return onnx.version_converter.convert_version(model, NEW_OPSET)


def fix_batch(model: Any) -> Any | None:
    """Return the model with batch 1: dynamic first axes of inputs become 1, and so do all axes of the same symbolic size."""
    weights = {tensor.name for tensor in model.graph.initializer}
    firsts = [v.type.tensor_type.shape.dim[0] for v in model.graph.input if v.name not in weights and v.type.tensor_type.shape.dim]
    opened = [dim for dim in firsts if dim.dim_value <= 0]
    if not opened:
        return None
    names = {dim.dim_param for dim in opened if dim.dim_param}
    changed = _copy(model)
    for value in (*changed.graph.input, *changed.graph.output):
        if value.name in weights:
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param in names or (axis == 0 and dim.dim_value <= 0):
                dim.dim_value = 1
    del changed.graph.value_info[:]
    ends = {value.name for value in (*changed.graph.input, *changed.graph.output)}
    changed.graph.value_info.extend(value for value in infer_shapes(changed, "the model") if value.name not in ends | weights)
    return changed


def single_precision(model: Any) -> Any | None:
    """Return the model with float32 instead of float64 tensors."""
    from onnx import TensorProto, numpy_helper

    def single(tensor: Any) -> bool:
        if tensor.data_type != TensorProto.DOUBLE:
            return False
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
        return True

    changed = _copy(model)
    changes = [single(tensor) for tensor in changed.graph.initializer]
    for value in (*changed.graph.input, *changed.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            changes.append(True)
    for node in changed.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                changes.append(single(attribute.t))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
                changes.append(True)
    del changed.graph.value_info[:]
    return changed if any(changes) else None


def fold_constants(model: Any) -> Any | None:
    """Return the model after ONNX Runtime's basic optimisations: constants folded, batch norms fused, identities removed."""
    import onnx

    onnxruntime = load_runtime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(out)
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        folded = onnx.load(str(out))
    domains = {node.domain for node in folded.graph.node} - {node.domain for node in model.graph.node} - {"", "ai.onnx"}
    if domains or len(folded.graph.node) == len(model.graph.node):
        return None
    domains = {opset.domain for opset in model.opset_import}
    for opset in [opset for opset in folded.opset_import if opset.domain not in domains]:
        folded.opset_import.remove(opset)
    return folded


#: Fixes by description, in the order in which they are tried.
FIXES: dict[str, Callable[[Any], Any | None]] = {
    f"raise the opset to {NEW_OPSET}": raise_opset,
    "set the open batch to 1": fix_batch,
    "write doubles in single precision": single_precision,
    "compute constants, fold batch norms and remove identities": fold_constants,
}


def try_fixes(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the description and the changed model of each fix that applies."""
    for description, fix in FIXES.items():
        try:
            changed = fix(model)
        # ONNX or ONNX Runtime rejects the model, so the fix does not apply.
        except Exception:
            continue
        if changed is not None:
            yield description, changed


def _copy(model: Any) -> Any:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


#: Largest relative difference of outputs that summation order and single precision can explain.
ALLOWED = 1e-3

#: Maximum size of a model in bytes, because a fix holds several copies in memory.
MAX_BYTES = 1 << 29


def fix_file(explanation: RuntimeExplanation, runtime: str, device: str | None, out: Path | None = None) -> RuntimeExplanation:
    """Return the explanation with an automatic fix, if one helps, and write the fixed model if requested.

    Args:
        out: File for the fixed model; None to write none.
    """
    if out is not None:
        if out.suffix.lower() != ".onnx":
            raise UsageError(f"{out} does not end in .onnx, the only format that can be fixed", "give another name")
        if out.exists():
            raise UsageError(f"{out} exists already", "give another name, or remove it")
        check_folder(out, "--fix")
    model, problem = _changeable(explanation)
    with tempfile.TemporaryDirectory() as folder:
        if problem is None:
            steps, changed, after = _search(model, explanation, Path(folder) / "changed.onnx", runtime, device)
            problem = None if steps else "no known fix helps"
        if problem is not None:
            if out is not None:
                raise UsageError(f"{explanation.file} is not fixed: {problem}", "leave out --fix to see what to change by hand")
            return explanation
        error = None if out is None else _write(explanation.file, changed, out)
    return msgspec.structs.replace(explanation, fix=Fix(steps=steps, operators=(explanation.off, after.off), file=out, max_error=error))


def _changeable(explanation: RuntimeExplanation) -> tuple[Any, str | None]:
    """Return the model with its weights loaded, or the reason why it cannot be fixed."""
    import onnx

    if not explanation.obstacles:
        return None, "all its operators are supported"
    opened = open_model(explanation.file)
    if opened.kind != "ONNX":
        return None, "only ONNX files can be fixed"
    folder = explanation.file.parent
    size = explanation.file.stat().st_size + sum((folder / location).stat().st_size for location in external_locations(opened.proto.graph))
    if size > MAX_BYTES:
        return None, f"it has {size} bytes, more than the limit of {MAX_BYTES}"
    try:
        onnx.load_external_data_for_model(opened.proto, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        return None, f"its weights cannot be read: {error}"
    return opened.proto, None


def _search(
    model: Any, explanation: RuntimeExplanation, draft: Path, runtime: str, device: str | None
) -> tuple[tuple[str, ...], Any, RuntimeExplanation]:
    """Return the fixes that help, each applied once to the result of the previous one."""
    steps: list[str] = []
    best, current = model, explanation
    for _ in FIXES:
        improvement = None
        for description, changed in try_fixes(best):
            if description in steps:
                continue
            draft.write_bytes(changed.SerializeToString())
            try:
                after = explain_file(draft, runtime, device)
            except StretchError:
                continue
            if _cost(after) < _cost(current):
                improvement = description, changed, after
                break
        if improvement is None:
            break
        steps.append(improvement[0])
        best, current = improvement[1:]
        if not current.obstacles:
            break
    return tuple(steps), best, current


def _cost(explanation: RuntimeExplanation) -> tuple[bool, float, int]:
    """Return the sort key of explanations, best first: file accepted, fewer MACs off the processor, fewer operators off it."""
    on = any(op.taken for op in explanation.operators)
    return not on, 1 - (1.0 if explanation.share is None else explanation.share), explanation.off


def _write(original: Path, changed: Any, out: Path) -> float:
    """Write the fixed model to `out` if it is equivalent to the original, and return the difference."""
    draft = out.with_name(f".{out.stem}-{os.getpid()}.onnx")
    try:
        draft.write_bytes(changed.SerializeToString())
        error, _ = in_child("compare", str(original), "onnxruntime", str(draft))
        # JSON has no infinity, which is None here
        if error is None or error > ALLOWED:
            shown = "non-finite values or other shapes" if error is None else f"{error:.1e} of the largest result"
            raise StretchError(f"the changed model differs from {original} by {shown}, so it is not written", "change it by hand")
        os.link(draft, out)
    except FileExistsError as problem:
        raise UsageError(f"{out} exists already", "give another name, or remove it") from problem
    except OSError as problem:
        raise StretchError(f"cannot write {out}: {problem.strerror or problem}", "make room, or give another folder") from problem
    finally:
        draft.unlink(missing_ok=True)
    return float(error)
