"""Explanation of a model file on a runtime: partitions, copies and unsupported operators, from the runtime's verdict."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from predictors.structs import filled
from scheduler.tools.explain import on_qnn
from scheduler.tools.explain.answer import RuntimeExplanation, RuntimeOperator, UnsupportedReason, Verdict
from scheduler.tools.explain.child import ask_runtime
from scheduler.tools.explain.model import ForeignModel, ForeignOp, open_model
from scheduler.tools.explain.runtimes import check_runtime

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
    unusual = _type_in(said, op) or next((kind for kind in op.types if kind not in USUAL and not _is_index(op, kind)), None)
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


def _type_in(words: str, op: ForeignOp) -> str | None:
    """An element type of the operator that the words speak of."""
    return next((kind for kind in op.types if re.search(rf"(?<![a-z]){kind}(?![\w])", words, re.IGNORECASE)), None)


def _is_index(op: ForeignOp, kind: str) -> bool:
    """Whether a type is that of sizes and places, which runtimes read as constants."""
    return kind in ("int64", "int32") and any(other in ("float", "float32", "float16") for other in op.types)


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def kinds(taken: Mapping[int, str], target: str, model: ForeignModel) -> set[str]:
    """Types of the operators that a target takes."""
    return {model.ops[i].op for i, where in taken.items() if where == target}


#: Characters of a log that are reported.
LOG_LIMIT = 20_000

#: Words in log lines about unsupported operators.
_LOG_WORDS = (
    "FAILED",
    "REASON",
    "Node name:",
    "not supported",
    "partition",
    "delegate",
    "placed on",
    "fallback",
    "not a registered",
    "custom op",
)


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
    if verdict.refused is not None:
        taken, reason = (
            False,
            "the runtime rejects the file because of this operator" if i == verdict.at else "the runtime rejects the whole file",
        )
    elif i in on:
        taken, reason = True, f"taken by {verdict.target}"
    elif i in verdict.gone:
        taken, reason = None, verdict.gone[i]
    else:
        taken = False
        reason = verdict.said.get(i) or f"{verdict.target} does not take it and gives no reason"
    return filled(RuntimeOperator, op, target=where, taken=taken, partition=None, reason=reason)


def _parts(operators: list[RuntimeOperator], verdict: Verdict) -> dict[int, int]:
    """Partition of each supported operator: as the runtime reports it, else consecutive operators in execution order."""
    if verdict.parts:
        numbers = {part: n for n, part in enumerate(dict.fromkeys(verdict.parts[i] for i in sorted(verdict.parts)))}
        return {i: numbers[part] for i, part in verdict.parts.items()}
    partitions: dict[int, int] = {}
    part, inside = -1, False
    for i, op in enumerate(operators):
        if op.taken is None:
            continue
        if op.taken and not inside:
            part += 1
        inside = op.taken
        if op.taken:
            partitions[i] = part
    return partitions


def _crossings(model: ForeignModel, on: set[int], off: set[int]) -> int:
    """Number of tensors passed between the processor and others, each counted once per direction."""
    producers = {name: i for i, op in enumerate(model.ops) for name in op.outputs}
    crossing = set()
    for i, op in enumerate(model.ops):
        for name in op.inputs:
            j = producers.get(name)
            if j is not None and ((i in on and j in off) or (i in off and j in on)):
                crossing.add((name, i in on))
    return len(crossing)


def _unsupported_reasons(model: ForeignModel, verdict: Verdict, off: set[int]) -> Iterator[UnsupportedReason]:
    """Reasons for all unsupported operators; if the whole file is rejected, for the operator that the error names."""
    there = kinds(verdict.taken, verdict.target, model)
    if verdict.refused is not None:
        yield _unsupported_reason(model, verdict.at or 0, verdict.refused, there, known=verdict.at is not None)
        return
    for i in sorted(off):
        yield _unsupported_reason(model, i, verdict.said.get(i), there)


def _unsupported_reason(model: ForeignModel, i: int, words: str | None, there: set[str], known: bool = True) -> UnsupportedReason:
    op = model.ops[i]
    if not known:
        return UnsupportedReason(
            operator=op.name, op=op.op, cause="the file as a whole", words=words, change="correct the error that the runtime reports"
        )
    cause, change = find_cause(model, i, words, there)
    return UnsupportedReason(operator=op.name, op=op.op, cause=cause, words=words, change=change)


def _shortened(log: str) -> str:
    """The log, or the lines of a long one about unsupported operators."""
    if len(log) <= LOG_LIMIT:
        return log
    lines = "\n".join(line for line in log.splitlines() if any(word in line for word in _LOG_WORDS))
    return lines[-LOG_LIMIT:]
