"""Explanation of a model file on a runtime: partitions, copies and unsupported operators, from the runtime's verdict."""

from collections.abc import Iterator
from pathlib import Path

from scheduler.explain import on_qnn
from scheduler.explain.answer import RuntimeExplanation, RuntimeOperator, UnsupportedReason, Verdict
from scheduler.explain.causes import find_cause, kinds
from scheduler.explain.child import ask_runtime
from scheduler.explain.model import ForeignModel, open_model
from scheduler.explain.runtimes import check_runtime

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
        runtime: A key of `scheduler.explain.runtimes.RUNTIMES`.
        device: One of the runtime's devices; the best available one if None.

    Raises:
        UnknownNameError: If the runtime or the device is unknown.
        UsageError: If the runtime does not read this file format.
        MissingBackendError: If the runtime is not installed.
        StretchError: If the file cannot be read, or the child process crashes.
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
        operators=[
            RuntimeOperator(name=o.name, op=o.op, target=o.target, taken=o.taken, partition=parts.get(i), macs=o.macs, reason=o.reason)
            for i, o in enumerate(operators)
        ],
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
    return RuntimeOperator(name=op.name, op=op.op, target=where, taken=taken, partition=None, macs=op.macs, reason=reason)


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
