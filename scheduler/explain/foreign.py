"""A file of anybody's on a runtime: its verdict counted, and the first obstacle in execution order."""

from collections.abc import Iterator
from pathlib import Path

from scheduler.explain import on_qnn
from scheduler.explain.answer import Obstacle, RuntimeExplanation, RuntimeOperator, Verdict
from scheduler.explain.causes import find_cause, kinds
from scheduler.explain.child import ask_runtime
from scheduler.explain.model import ForeignModel, open_model
from scheduler.explain.runtimes import check_runtime

#: Characters of a log that are told.
TOLD = 20_000

#: Lines of logs by which runtimes say what they leave.
_TELLING = (
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
    """Where each operator of an ONNX or TFLite file runs on a runtime of this machine.

    The runtime is asked in a process of its own, which a damaged file may end.

    Args:
        runtime: A key of `scheduler.explain.runtimes.RUNTIMES`.
        device: One of the runtime's devices; the best one here if None.

    Raises:
        UnknownNameError: If there is no such runtime, or it has no such device here.
        UsageError: If the runtime reads no such files.
        MissingBackendError: If it is not installed.
        StretchError: If the file cannot be read, or the runtime's process ends.
    """
    model = open_model(path)
    check_runtime(runtime, model)
    verdict, log = ask_runtime(path, runtime, device)
    if runtime == "qnn":
        on_qnn.read_log(model, log, verdict)
    return judge(model, verdict, log)


def judge(model: ForeignModel, verdict: Verdict, log: str = "") -> RuntimeExplanation:
    """What a verdict comes to."""
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
        obstacles=list(_obstacles(model, verdict, off)),
        copies=_crossings(model, on, off) + verdict.added,
        share=None if not total else sum(op.macs for i, op in enumerate(operators) if i not in off) / total,
        fix=None,
        log=_told(log),
        warnings=list(verdict.warnings),
    )


def _operator(model: ForeignModel, i: int, verdict: Verdict, on: set[int]) -> RuntimeOperator:
    op, where = model.ops[i], verdict.taken.get(i)
    if verdict.refused is not None:
        taken, reason = False, "this one stops the whole file" if i == verdict.at else "the file is refused as a whole"
    elif i in on:
        taken, reason = True, f"taken by {verdict.target}"
    elif i in verdict.gone:
        taken, reason = None, verdict.gone[i]
    else:
        taken = False
        reason = verdict.said.get(i) or f"{verdict.target} does not take it, and says no reason"
    return RuntimeOperator(name=op.name, op=op.op, target=where, taken=taken, partition=None, macs=op.macs, reason=reason)


def _parts(operators: list[RuntimeOperator], verdict: Verdict) -> dict[int, int]:
    """Partition of each operator that is taken: what the runtime tells, else runs in execution order."""
    if verdict.parts:
        numbers = {part: n for n, part in enumerate(dict.fromkeys(verdict.parts[i] for i in sorted(verdict.parts)))}
        return {i: numbers[part] for i, part in verdict.parts.items()}
    found: dict[int, int] = {}
    part, inside = -1, False
    for i, op in enumerate(operators):
        if op.taken is None:
            continue
        if op.taken and not inside:
            part += 1
        inside = op.taken
        if op.taken:
            found[i] = part
    return found


def _crossings(model: ForeignModel, on: set[int], off: set[int]) -> int:
    """Tensors that are handed on between operators on the processor and others, each once a direction."""
    made_by = {name: i for i, op in enumerate(model.ops) for name in op.outputs}
    crossing = set()
    for i, op in enumerate(model.ops):
        for name in op.inputs:
            j = made_by.get(name)
            if j is not None and ((i in on and j in off) or (i in off and j in on)):
                crossing.add((name, i in on))
    return len(crossing)


def _obstacles(model: ForeignModel, verdict: Verdict, off: set[int]) -> Iterator[Obstacle]:
    """What stops each operator that is not taken; of a file that is refused as a whole, the one that its words are about."""
    there = kinds(verdict.taken, verdict.target, model)
    if verdict.refused is not None:
        yield _obstacle(model, verdict.at or 0, verdict.refused, there, known=verdict.at is not None)
        return
    for i in sorted(off):
        yield _obstacle(model, i, verdict.said.get(i), there)


def _obstacle(model: ForeignModel, i: int, words: str | None, there: set[str], known: bool = True) -> Obstacle:
    op = model.ops[i]
    if not known:
        return Obstacle(
            operator=op.name, op=op.op, cause="the file as a whole", words=words, change="mend what the runtime says of the file"
        )
    cause, change = find_cause(model, i, words, there)
    return Obstacle(operator=op.name, op=op.op, cause=cause, words=words, change=change)


def _told(log: str) -> str:
    """A log, or of a long one the lines by which a runtime says what it leaves."""
    if len(log) <= TOLD:
        return log
    telling = "\n".join(line for line in log.splitlines() if any(word in line for word in _TELLING))
    return telling[-TOLD:]
