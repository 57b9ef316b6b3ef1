"""Small files of other exporters."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scheduler.formats.tflite import ANY_TFLITE

FILTERS, CHANNELS, WIDE = 4, 3, 8


def conv_onnx(path, shape=(1, CHANNELS, WIDE, WIDE), out=(1, FILTERS, WIDE, WIDE), weights=None, inputs=1, value=TensorProto.FLOAT):
    """A convolution of 3 by 3 with padding, or of the sum of several inputs; a name in a shape leaves an axis open."""
    rng = np.random.default_rng(1)
    stored = rng.standard_normal((FILTERS, CHANNELS, 3, 3)).astype(np.float32) if weights is None else weights
    names = ["x", "z", "u"][:inputs]
    tensor_value_infos = [helper.make_tensor_value_info(name, value, shape) for name in names]
    nodes, last = [], names[0]
    for name in names[1:]:
        nodes.append(helper.make_node("Add", [last, name], [f"{last}{name}"], name=f"add_{name}"))
        last = f"{last}{name}"
    nodes.append(helper.make_node("Conv", [last, "w"], ["y"], name="conv", pads=[1, 1, 1, 1]))
    built = [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)]
    graph = helper.make_graph(nodes, "net", tensor_value_infos, built, [numpy_helper.from_array(stored, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def linear_tflite(path, opened=False):
    """A linear layer of 5 to 7 numbers, of one row or of an open number of them."""
    rng = np.random.default_rng(2)
    weights, bias = rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    signature = {"shape_signature": [-1, 5]} if opened else {}
    tensors = [
        {"name": "x", "shape": [1, 5], "type": 0, **signature},
        {"name": "w", "shape": [7, 5], "type": 0, "buffer": 1},
        {"name": "b", "shape": [7], "type": 0, "buffer": 2},
        {"name": "y", "shape": [1, 7], "type": 0, **({"shape_signature": [-1, 7]} if opened else {})},
    ]
    operator = {"inputs": [0, 1, 2], "outputs": [3], "builtin_options_type": 8, "builtin_options": {}}
    graph = {"tensors": tensors, "inputs": [0], "outputs": [3], "operators": [operator]}
    buffers = [{}, {"data": weights.reshape(-1).view(np.uint8)}, {"data": bias.view(np.uint8)}]
    code = {"deprecated_builtin_code": 9, "builtin_code": 9, "version": 1}
    model = {"version": 3, "operator_codes": [code], "subgraphs": [graph], "buffers": buffers}
    path.write_bytes(bytes(ANY_TFLITE.encode(model)))
    return path, lambda x: x @ weights.T + bias
