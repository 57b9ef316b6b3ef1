"""Where a runtime puts the operators of a model file, from its verdict: partitions, copies, unsupported operators, and changes that help."""

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from predictors.errors import StretchError, UsageError
from predictors.formats.inference import infer_shapes
from predictors.structs import filled
from scheduler.delegates.cpu import load_runtime
from scheduler.formats.onnx.file import external_locations
from scheduler.tools.explain import on_qnn
from scheduler.tools.explain.answer import Fix, RuntimeExplanation, RuntimeOperator, UnsupportedReason, Verdict
from scheduler.tools.explain.child import ask_runtime, check_runtime, in_child
from scheduler.tools.explain.model import ForeignModel, open_model

#: Element types that accelerators compute with.
USUAL = ("float", "float32", "float16", "int8", "uint8", "int32", "bool")

_VERSION = re.compile(r"opset (\d+)", re.IGNORECASE)


def find_cause(model: ForeignModel, i: int, words: str | None, taken_kinds: Collection[str]) -> tuple[str, str]:
    """What stops an operator and what to change."""
    op, said = model.ops[i], words or ""
    if model.kind == "ONNX" and (match := _VERSION.search(said)) and int(match[1]) == model.opset:
        return f"opset {model.opset}", "export the model with a newer opset"
    if op.domain:
        return f"domain {op.domain}", "write it with operators of ONNX itself, or give the runtime the library that has it"
    named = next((name for name in op.attributes if _mentions(said, name)), None)
    if named is not None:
        return f"{named} = {_short(op.attributes[named])}", f"export it with another `{named}`, or replace it"
    spoken = next((kind for kind in op.types if re.search(rf"(?<![a-z]){kind}(?![\w])", said, re.IGNORECASE)), None)
    # sizes and places are whole numbers, which runtimes read as constants
    indices = {"int64", "int32"} if not {"float", "float32", "float16"}.isdisjoint(op.types) else set()
    unusual = spoken or next((kind for kind in op.types if kind not in USUAL and kind not in indices), None)
    if unusual is not None and "quantize" not in op.op.lower():
        return f"type {unusual}", f"export the model without {unusual} tensors here"
    if op.dynamic:
        shape = next(shape for shape in op.shapes if None in shape)
        return f"shape {_sizes(shape)}", "export the model with fixed shapes"
    if rank := re.search(r"\brank|\bdimension", said, re.IGNORECASE):
        return f"shape {_sizes(op.shapes[0]) if op.shapes else rank[0]}", "reshape its input to fewer axes, or replace it"
    if op.op in taken_kinds:
        shown = ", ".join(f"{name} = {_short(value)}" for name, value in op.attributes.items())
        return f"settings {shown}" if shown else "inputs", f"compare it with the operators of type {op.op} that are taken"
    return f"operator {op.op}", f"replace {op.op} by operators that the runtime takes, or leave it out of the model"


def _mentions(words: str, name: str) -> bool:
    """Whether words speak of an attribute, in its spelling or with spaces or capitals."""
    parts = name.split("_")
    return len(name) > 3 and re.search(rf"(?<![a-z]){'[ _-]?'.join(map(re.escape, parts))}(?![a-z])", words, re.IGNORECASE) is not None


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


#: Characters of a log that are reported.
LOG_LIMIT = 20_000

#: Words in log lines about unsupported operators.
_LOG_WORDS = re.compile("FAILED|REASON|Node name:|not supported|partition|delegate|placed on|fallback|not a registered|custom op")


def explain_file(path: Path, runtime: str, device: str | None = None) -> RuntimeExplanation:
    """Placement of each operator of an ONNX or TFLite file by a runtime of this machine.

    The runtime is loaded in a child process, which a damaged file may crash.

    Args:
        device: One of the runtime's devices; the best available one if None.
    """
    model = open_model(path)
    check_runtime(runtime, model)
    verdict, log = ask_runtime(path, runtime, device)
    if runtime == "qnn":
        on_qnn.read_log(model, log, verdict)
    return judge(model, verdict, log)


def judge(model: ForeignModel, verdict: Verdict, log: str = "") -> RuntimeExplanation:
    """The explanation that follows from a verdict."""
    on = {i for i, where in verdict.taken.items() if where == verdict.target}
    operators = [_operator(model, i, verdict, on) for i in range(len(model.ops))]
    total = sum(op.macs for op in operators)
    off = {i for i, op in enumerate(operators) if op.taken is False}
    parts = _parts(operators, verdict)
    return RuntimeExplanation(
        file=model.path,
        runtime=verdict.runtime,
        device=verdict.device,
        operators=[filled(RuntimeOperator, o, partition=parts.get(i)) for i, o in enumerate(operators)],
        partitions=len(set(parts.values())),
        obstacles=list(_unsupported_reasons(model, verdict, off)),
        copies=_crossings(model, on, off) + verdict.added,
        share=None if not total else sum(op.macs for i, op in enumerate(operators) if i not in off) / total,
        fix=None,
        log=_shortened(log),
        warnings=list(verdict.warnings),
    )


def _operator(model: ForeignModel, i: int, verdict: Verdict, on: set[int]) -> RuntimeOperator:
    op, where = model.ops[i], verdict.taken.get(i)
    taken: bool | None = False
    reason = verdict.said.get(i) or f"{verdict.target} does not take it and gives no reason"
    if verdict.refused is not None:
        reason = f"the runtime rejects the {'file because of this operator' if i == verdict.at else 'whole file'}"
    elif i in on:
        taken, reason = True, f"taken by {verdict.target}"
    elif i in verdict.gone:
        taken, reason = None, verdict.gone[i]
    return filled(RuntimeOperator, op, target=where, taken=taken, partition=None, reason=reason)


def _parts(operators: list[RuntimeOperator], verdict: Verdict) -> dict[int, int]:
    """Partition of each supported operator: as the runtime reports it, else consecutive operators in execution order."""
    if verdict.parts:
        numbers = {part: n for n, part in enumerate(dict.fromkeys(verdict.parts[i] for i in sorted(verdict.parts)))}
        return {i: numbers[part] for i, part in verdict.parts.items()}
    there = [i for i, op in enumerate(operators) if op.taken is not None]
    runs = [list(run) for taken, run in groupby(there, lambda i: operators[i].taken) if taken]
    return {i: part for part, run in enumerate(runs) for i in run}


def _crossings(model: ForeignModel, on: set[int], off: set[int]) -> int:
    """Number of tensors passed between the processor and others, each counted once per direction."""
    producers = {name: i for i, op in enumerate(model.ops) for name in op.outputs}
    read = [(i, name, producers[name]) for i, op in enumerate(model.ops) for name in op.inputs if name in producers]
    return len({(name, i in on) for i, name, j in read if (i in on and j in off) or (i in off and j in on)})


def _unsupported_reasons(model: ForeignModel, verdict: Verdict, off: set[int]) -> Iterator[UnsupportedReason]:
    """Reasons for all unsupported operators; if the whole file is rejected, for the operator that the error names."""
    taken_kinds = {model.ops[i].op for i, where in verdict.taken.items() if where == verdict.target}
    for i in sorted(off) if verdict.refused is None else [verdict.at or 0]:
        op, words = model.ops[i], verdict.said.get(i) if verdict.refused is None else verdict.refused
        cause, change = "the file as a whole", "correct the error that the runtime reports"
        if verdict.refused is None or verdict.at is not None:
            cause, change = find_cause(model, i, words, taken_kinds)
        yield UnsupportedReason(operator=op.name, op=op.op, cause=cause, words=words, change=change)


def _shortened(log: str) -> str:
    """The log, or the lines of a long one about unsupported operators."""
    if len(log) <= LOG_LIMIT:
        return log
    lines = "\n".join(line for line in log.splitlines() if _LOG_WORDS.search(line))
    return lines[-LOG_LIMIT:]


#: Opset to which older models are raised: the first in which axes are inputs of all operators.
NEW_OPSET = 18


def raise_opset(model: Any) -> Any | None:
    """The model in a newer opset, by ONNX's version converter; `Upsample` becomes `Resize`."""
    import onnx

    version = max((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), default=1)
    if version >= NEW_OPSET:
        return None
    return onnx.version_converter.convert_version(model, NEW_OPSET)


def fix_batch(model: Any) -> Any | None:
    """The model with batch 1: dynamic first axes of inputs become 1, and so do all axes of the same symbolic size."""
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
    known = {value.name for value in (*changed.graph.input, *changed.graph.output)}
    changed.graph.value_info.extend(value for value in infer_shapes(changed, "the model") if value.name not in known | weights)
    return changed


def single_precision(model: Any) -> Any | None:
    """The model with float32 instead of float64 tensors."""
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
    """The model after ONNX Runtime's basic optimisations: constants folded, batch norms fused, identities removed."""
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


#: By description, in the order in which they are tried.
FIXES: dict[str, Callable[[Any], Any | None]] = {
    f"raise the opset to {NEW_OPSET}": raise_opset,
    "set the open batch to 1": fix_batch,
    "write doubles in single precision": single_precision,
    "compute constants, fold batch norms and remove identities": fold_constants,
}


def tried(model: Any) -> Iterator[tuple[str, Any]]:
    """Fixes that apply to a model: description and changed model."""
    for description, fix in FIXES.items():
        try:
            changed = fix(model)
        # ONNX or ONNX Runtime rejects the model: the fix does not apply.
        except Exception:
            continue
        if changed is not None:
            yield description, changed


def _copy(model: Any) -> Any:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


#: Largest relative difference of outputs that summation order and single precision explain.
ALLOWED = 1e-3

#: Largest model in bytes: a fix holds several copies in memory.
MAX_BYTES = 1 << 29


def fix_file(explanation: RuntimeExplanation, runtime: str, device: str | None, out: Path | None = None) -> RuntimeExplanation:
    """The explanation with an automatic fix, if one helps; the fixed model is written on request.

    Args:
        out: File for the fixed model; None to write none.
    """
    if out is not None:
        if out.suffix.lower() != ".onnx":
            raise UsageError(f"{out} does not end in .onnx, the only format that can be fixed", "give another name")
        if out.exists():
            raise UsageError(f"{out} exists already", "give another name, or remove it")
        if not out.parent.is_dir():
            raise UsageError(f"the folder {out.parent} does not exist", "create it")
    model, problem = _changeable(explanation)
    with tempfile.TemporaryDirectory() as folder:
        if problem is None:
            steps, changed, after = _search(model, explanation, Path(folder) / "changed.onnx", runtime, device)
            problem = None if steps else "no known fix helps"
        if problem is not None:
            if out is not None:
                raise UsageError(f"{explanation.file} is not fixed: {problem}", "leave out --fix to see what to change by hand")
            return explanation
        error = None if out is None else _written(explanation.file, changed, out)
    return msgspec.structs.replace(explanation, fix=Fix(steps=steps, operators=(explanation.off, after.off), file=out, max_error=error))


def _changeable(explanation: RuntimeExplanation) -> tuple[Any, str | None]:
    """The model with its weights loaded, or the reason why it cannot be fixed."""
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
    """Fixes that help, each applied to the result of the one before and at most once."""
    steps: list[str] = []
    best, current = model, explanation
    for _ in FIXES:
        improvement = None
        for description, changed in tried(best):
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
    """Order of explanations, best first: file accepted, fewer MACs off the processor, fewer operators off it."""
    on = any(op.taken for op in explanation.operators)
    return not on, 1 - (1.0 if explanation.share is None else explanation.share), explanation.off


def _written(original: Path, changed: Any, out: Path) -> float:
    """Write the fixed model to a temporary file, and link it to `out` if it is equivalent to the original; returns the difference."""
    draft = out.with_name(f".{out.stem}-{os.getpid()}.onnx")
    try:
        draft.write_bytes(changed.SerializeToString())
        error, _ = in_child("compare", str(original), "onnxruntime", str(draft))
        # JSON has no infinity: it is None here
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
