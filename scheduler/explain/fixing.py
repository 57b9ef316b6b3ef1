"""Automatic fixes of an ONNX file: tried in order, kept if the runtime then takes more, verified before the file is written."""

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import StretchError, UsageError
from scheduler.explain.answer import Fix, RuntimeExplanation
from scheduler.explain.child import in_child
from scheduler.explain.fixes import FIXES, tried
from scheduler.explain.foreign import explain_file
from scheduler.explain.model import open_model
from scheduler.formats.onnx.file import external_locations

#: Largest relative difference of outputs that summation order and single precision explain.
ALLOWED = 1e-3

#: Largest model in bytes: a fix holds several copies in memory.
MAX_BYTES = 1 << 29


def fix_file(explanation: RuntimeExplanation, runtime: str, device: str | None, out: Path | None = None) -> RuntimeExplanation:
    """The explanation with an automatic fix, if one helps; the fixed model is written on request.

    Args:
        explanation: Result of `explain_file`.
        runtime: As for `explain_file`.
        device: As for `explain_file`.
        out: File for the fixed model; None to write none.

    Raises:
        UsageError: If `out` exists, or no fix applies to this file.
        StretchError: If the fixed model is not equivalent, or cannot be compared or written.
    """
    if out is not None:
        if out.suffix.lower() != ".onnx":
            raise UsageError(f"{out} does not end in .onnx, the only format that can be fixed", "give another name")
        if out.exists():
            raise UsageError(f"{out} exists already", "give another name, or remove it")
        if not out.parent.is_dir():
            raise UsageError(f"the folder {out.parent} does not exist", "create it")
    model, problem = _changeable(explanation)
    if problem is not None:
        return _without(explanation, problem, out)
    with tempfile.TemporaryDirectory() as folder:
        steps, changed, after = _search(model, explanation, Path(folder) / "changed.onnx", runtime, device)
        if not steps:
            return _without(explanation, "no known fix helps", out)
        fix = Fix(steps=steps, operators=(explanation.off, after.off))
        if out is not None:
            fix = msgspec.structs.replace(fix, file=out, max_error=_written(explanation.file, changed, out))
    return msgspec.structs.replace(explanation, fix=fix)


def _without(explanation: RuntimeExplanation, why: str, out: Path | None) -> RuntimeExplanation:
    if out is not None:
        raise UsageError(f"{explanation.file} is not fixed: {why}", "leave out --fix to see what to change by hand")
    return explanation


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
    draft: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.stem}-", suffix=".onnx")
        draft = Path(name)
        with os.fdopen(handle, "wb") as stream:
            stream.write(changed.SerializeToString())
        error = _compared(original, draft)
        os.chmod(draft, 0o666 & ~_umask())
        os.link(draft, out)
    except FileExistsError as problem:
        raise UsageError(f"{out} exists already", "give another name, or remove it") from problem
    except OSError as problem:
        raise StretchError(f"cannot write {out}: {problem.strerror or problem}", "make room, or give another folder") from problem
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
    return error


def _compared(original: Path, changed: Path) -> float:
    """Largest relative difference between both models, if it is within `ALLOWED`."""
    error, _ = in_child("compare", str(original), "onnxruntime", str(changed))
    # JSON has no infinity: it is None here.
    if error is None or error > ALLOWED:
        shown = "non-finite values or other shapes" if error is None else f"{error:.1e} of the largest result"
        raise StretchError(f"the changed model differs from {original} by {shown}, so it is not written", "change it by hand")
    return float(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
