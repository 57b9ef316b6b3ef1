"""Equivalent rewrites of ONNX models: functions from model to model that return None where they do not apply."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.delegates.cpu import load_runtime

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
    import onnx

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
    return onnx.shape_inference.infer_shapes(changed, data_prop=True)


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
