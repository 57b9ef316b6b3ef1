"""Which layers of an int8 or fp16 subgraph lose most."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from stretch.quantize.compare import Loss, loss
from stretch.quantize.fold import fold_batch_norms
from stretch.quantize.replay import Sample, fed

# One float subgraph to fp16: weights and operators in half precision, float at the edges.

#: Largest finite half-precision number.
LARGEST = 65504.0

#: Inputs that stay as they are: sizes and factors, not values of the network.
KEPT_INPUTS = {"Resize": (1, 2, 3), "Pad": (1,)}


def to_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """A subgraph in half precision.

    Batch norms are folded first, since their variances leave the range of fp16
    sooner than the weights they scale. Input and output stay float32 and are
    converted by the first and the last node, so that joins add real numbers.
    """
    half = fold_batch_norms(model)
    graph = half.graph
    kept = {node.input[i] for node in graph.node for i in KEPT_INPUTS.get(node.op_type, ()) if i < len(node.input)}
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or tensor.name in kept:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size and float(np.abs(values).max()) > LARGEST:
            raise StretchError(f"`{tensor.name}` has values beyond {LARGEST:.0f}, which fp16 does not hold", "keep its subgraph in fp32")
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for name in [value.name for value in graph.input]:
        _convert_input(graph, name)
    for name in [value.name for value in graph.output]:
        _convert_output(graph, name)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT and node.op_type == "Constant":
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float16), attribute.t.name))
    onnx.checker.check_model(half)
    return half


def _convert_input(graph: onnx.GraphProto, name: str) -> None:
    half = f"{name}_fp16"
    for node in graph.node:
        for i, read in enumerate(node.input):
            if read == name:
                node.input[i] = half
    graph.node.insert(0, helper.make_node("Cast", [name], [half], name=f"{half}/cast", to=TensorProto.FLOAT16))


def _convert_output(graph: onnx.GraphProto, name: str) -> None:
    half = f"{name}_fp16"
    for node in graph.node:
        for names in (node.input, node.output):
            for i, used in enumerate(names):
                if used == name:
                    names[i] = half
    graph.node.append(helper.make_node("Cast", [half], [name], name=f"{name}/cast", to=TensorProto.FLOAT))


Array = NDArray[Any]


def layer_losses(model: onnx.ModelProto, lower: onnx.ModelProto, samples: Sequence[Sample]) -> dict[str, Loss]:
    """Loss of each tensor that both forms of a subgraph have, the lower one's errors before it included.

    Args:
        lower: What `stretch.quantize.qdq.quantise` or `stretch.quantize.half.to_half` made of it.
    """
    folded = fold_batch_norms(model)
    rounded = _dequantised(lower) or _same_names(lower)
    names = [out for node in folded.graph.node for out in node.output if out in rounded]
    if not names:
        return {}
    expected = _values(folded, names, samples)
    got = _values(lower, [rounded[name] for name in names], samples)
    # where an activation is part of the operator before it, rows of a band are cut behind both
    alike = [name for name in names if expected[name][0].shape == got[rounded[name]][0].shape]
    return {name: loss(zip(expected[name], got[rounded[name]], strict=True)) for name in alike}


def _dequantised(int8: onnx.ModelProto) -> dict[str, str]:
    """For each float tensor that is quantised, the tensor of the reals that its integers stand for."""
    integers = {node.output[0]: node.input[0] for node in int8.graph.node if node.op_type == "QuantizeLinear"}
    outputs = {value.name for value in int8.graph.output}
    reals = [node for node in int8.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in integers]
    # The quantiser renames what it rounds to an output.
    return {node.output[0] if node.output[0] in outputs else integers[node.input[0]]: node.output[0] for node in reals}


def _same_names(lower: onnx.ModelProto) -> dict[str, str]:
    """Tensors of a subgraph in half precision, which keep their names."""
    return {out: out for node in lower.graph.node for out in node.output}


def _values(model: onnx.ModelProto, names: Sequence[str], samples: Sequence[Sample]) -> dict[str, list[Array]]:
    import onnxruntime

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {value.name for value in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values_by_name: dict[str, list[Array]] = {name: [] for name in names}
    for sample in samples:
        for name, value in zip(names, session.run(list(names), fed(shown, sample)), strict=True):
            values_by_name[name].append(np.asarray(value, np.float32))
    return values_by_name
