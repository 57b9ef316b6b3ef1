"""Changes that help a file on a runtime: tried one by one, kept where they help, compared with the original before they are written."""

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from predictors.errors import StretchError, UsageError
from scheduler.explain.answer import Mend, RuntimeExplanation
from scheduler.explain.child import in_child
from scheduler.explain.foreign import explain_file
from scheduler.explain.mends import MENDS, tried
from scheduler.explain.model import open_model
from scheduler.formats.onnx.file import external_locations

#: Largest difference, over the largest result, that the order of sums and single precision explain.
ALLOWED = 1e-3

#: Bytes of models that are changed: a change holds several copies.
MAX_BYTES = 1 << 29


def mend_file(found: RuntimeExplanation, runtime: str, device: str | None, out: Path | None = None) -> RuntimeExplanation:
    """The explanation with what a machine can change, and on request the changed model.

    Each change is tried: what the runtime says of the changed model tells whether it helps.

    Args:
        found: What `explain_file` told.
        runtime: As for `explain_file`.
        device: As for `explain_file`.
        out: Where to write the changed model; None to offer it alone.

    Raises:
        UsageError: If `out` is there already, or no change is known for this file.
        StretchError: If a changed model computes something else, or cannot be compared or written.
    """
    if out is not None:
        if out.suffix.lower() != ".onnx":
            raise UsageError(f"{out} does not end in .onnx, the kind of file that is changed", "give another name")
        if out.exists():
            raise UsageError(f"{out} is there already", "give another name, or remove it")
        if not out.parent.is_dir():
            raise UsageError(f"there is no folder {out.parent} to write {out.name} into", "make it")
    model, problem = _changeable(found)
    if problem is not None:
        return _without(found, problem, out)
    with tempfile.TemporaryDirectory() as folder:
        steps, changed, after = _search(model, found, Path(folder) / "changed.onnx", runtime, device)
        if not steps:
            return _without(found, "no change that is known helps it", out)
        fix = Mend(steps=steps, operators=(found.off, after.off))
        if out is not None:
            fix = msgspec.structs.replace(fix, file=out, max_error=_written(found.file, changed, out))
    return msgspec.structs.replace(found, fix=fix)


def _without(found: RuntimeExplanation, why: str, out: Path | None) -> RuntimeExplanation:
    if out is not None:
        raise UsageError(f"{found.file} is not changed: {why}", "see what to change by hand, without asking for a file")
    return found


def _changeable(found: RuntimeExplanation) -> tuple[Any, str | None]:
    """The model with its weights inside, or why it is not changed."""
    import onnx

    if not found.obstacles:
        return None, "nothing stops it"
    opened = open_model(found.file)
    if opened.kind != "ONNX":
        return None, "only ONNX files are changed"
    folder = found.file.parent
    size = found.file.stat().st_size + sum((folder / each).stat().st_size for each in external_locations(opened.proto.graph))
    if size > MAX_BYTES:
        return None, f"it has {size} bytes, at most {MAX_BYTES} are changed"
    try:
        onnx.load_external_data_for_model(opened.proto, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        return None, f"its weights cannot be read: {error}"
    return opened.proto, None


def _search(
    model: Any, found: RuntimeExplanation, draft: Path, runtime: str, device: str | None
) -> tuple[tuple[str, ...], Any, RuntimeExplanation]:
    """Changes one after the other, each kept if it helps; at most one of each kind."""
    steps: list[str] = []
    best, at = model, found
    for _ in MENDS:
        kept = None
        for words, changed in tried(best):
            if words in steps:
                continue
            draft.write_bytes(changed.SerializeToString())
            try:
                after = explain_file(draft, runtime, device)
            except StretchError:
                continue
            if _worth(after) < _worth(at):
                kept = words, changed, after
                break
        if kept is None:
            break
        steps.append(kept[0])
        best, at = kept[1], kept[2]
        if not at.obstacles:
            break
    return tuple(steps), best, at


def _worth(found: RuntimeExplanation) -> tuple[bool, float, int]:
    """Less is better: a file refused as a whole, work off the processor, operators off it."""
    on = any(op.taken for op in found.operators)
    return not on, 1 - (1.0 if found.share is None else found.share), found.off


def _written(original: Path, changed: Any, out: Path) -> float:
    """Write the changed model beside its name, compare it, and give it its name if it computes the same."""
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
        raise UsageError(f"{out} is there already", "give another name, or remove it") from problem
    except OSError as problem:
        raise StretchError(f"cannot write {out}: {problem.strerror or problem}", "make room, or give another folder") from problem
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
    return error


def _compared(original: Path, changed: Path) -> float:
    """How far a changed model is from the original, if that is not too far."""
    error, _ = in_child("compare", str(original), "onnxruntime", str(changed))
    # A difference without bound has no form in JSON and comes back as None.
    if error is None or error > ALLOWED:
        shown = "other places or shapes" if error is None else f"{error:.1e} of the largest result"
        raise StretchError(f"the changed model differs from {original} by {shown}, so it is not written", "change it by hand")
    return float(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
