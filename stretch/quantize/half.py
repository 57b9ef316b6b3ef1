"""One float subgraph to fp16: weights and operators in half precision, float at the edges."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from stretch.quantize.fold import fold_batch_norms

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
