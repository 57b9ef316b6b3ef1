"""Automatic fixes of an ONNX file: tried in order, kept if the runtime then takes more, verified before the file is written."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from predictors.errors import StretchError, UsageError
from predictors.formats.inference import infer_shapes
from scheduler.delegates.cpu import load_runtime
from scheduler.formats.onnx.file import external_locations
from scheduler.tools.explain.answer import Fix, RuntimeExplanation
from scheduler.tools.explain.child import in_child
from scheduler.tools.explain.foreign import explain_file
from scheduler.tools.explain.model import open_model

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
