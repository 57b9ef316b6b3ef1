"""Changes of ONNX models that compute the same, each a function from model to model; None where there is nothing to change."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.delegates.cpu import load_runtime

#: What version an older model is brought to: the first in which axes are inputs everywhere.
NEW_OPSET = 18


def raise_opset(model: Any) -> Any | None:
    """The model in a newer opset, by the rules of ONNX itself; `Upsample` becomes `Resize` on the way."""
    import onnx

    version = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=1)
    if version >= NEW_OPSET:
        return None
    return onnx.version_converter.convert_version(model, NEW_OPSET)


def fix_batch(model: Any) -> Any | None:
    """The model for one picture: open first axes of its inputs are 1, and all sizes of the same name."""
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
    """The model in single precision: every tensor of doubles becomes one of floats."""
    from onnx import TensorProto, numpy_helper

    def single(tensor: Any) -> bool:
        if tensor.data_type != TensorProto.DOUBLE:
            return False
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
        return True

    changed = _copy(model)
    found = [single(tensor) for tensor in changed.graph.initializer]
    for value in (*changed.graph.input, *changed.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            found.append(True)
    for node in changed.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.append(single(attribute.t))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
                found.append(True)
    del changed.graph.value_info[:]
    return changed if any(found) else None


def fold_constants(model: Any) -> Any | None:
    """The model after ONNX Runtime's basic rewrites, which stay within ONNX: constants are computed, batch norms and identities are gone."""
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
    own = {each.domain for each in model.opset_import}
    for each in [each for each in folded.opset_import if each.domain not in own]:
        folded.opset_import.remove(each)
    return folded


#: What is tried, in this order, with what it does in words.
MENDS: dict[str, Callable[[Any], Any | None]] = {
    f"raise the opset to {NEW_OPSET}": raise_opset,
    "set the open batch to 1": fix_batch,
    "write doubles in single precision": single_precision,
    "compute constants, fold batch norms and remove identities": fold_constants,
}


def tried(model: Any) -> Iterator[tuple[str, Any]]:
    """Each change that can be made of a model: what it does, and the model after it."""
    for words, mend in MENDS.items():
        try:
            changed = mend(model)
        # A rule of ONNX or of ONNX Runtime that does not hold for a foreign model: then this change is none for it.
        except Exception:
            continue
        if changed is not None:
            yield words, changed


def _copy(model: Any) -> Any:
    found = type(model)()
    found.CopyFrom(model)
    return found
