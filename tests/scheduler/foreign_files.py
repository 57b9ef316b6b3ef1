"""Small files of other exporters."""

import numpy as np
import onnx
from onnx import helper

from scheduler.formats.tflite import ANY_TFLITE
from tests.scheduler.bundles import onnx_model

FILTERS, CHANNELS, WIDE = 4, 3, 8


def conv_onnx(path, shape=(1, CHANNELS, WIDE, WIDE), out=(1, FILTERS, WIDE, WIDE), inputs=1):
    """Write a padded 3×3 convolution of one input or of the sum of several; a name in a shape is an open axis."""
    weights = np.random.default_rng(1).standard_normal((FILTERS, CHANNELS, 3, 3)).astype(np.float32)
    names = ["x", "z", "u"][:inputs]
    nodes = [helper.make_node("Sum", names, ["sum"], name="sum")] if inputs > 1 else []
    nodes.append(helper.make_node("Conv", ["sum" if nodes else "x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1]))
    onnx.save(onnx_model(nodes, dict.fromkeys(names, shape), {"y": out}, {"w": weights}), path)
    return path


def linear_tflite(path):
    """Write a linear layer with 5 inputs and 7 outputs."""
    rng = np.random.default_rng(2)
    weights, bias = rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    ends = (("x", [1, 5], 0), ("w", [7, 5], 1), ("b", [7], 2), ("y", [1, 7], 0))
    tensors = [{"name": name, "shape": shape, "type": 0, "buffer": buffer} for name, shape, buffer in ends]
    operator = {"inputs": [0, 1, 2], "outputs": [3], "builtin_options_type": 8, "builtin_options": {}}
    graph = {"tensors": tensors, "inputs": [0], "outputs": [3], "operators": [operator]}
    buffers = [{}, {"data": weights.reshape(-1).view(np.uint8)}, {"data": bias.view(np.uint8)}]
    code = {"deprecated_builtin_code": 9, "builtin_code": 9, "version": 1}
    model = {"version": 3, "operator_codes": [code], "subgraphs": [graph], "buffers": buffers}
    path.write_bytes(bytes(ANY_TFLITE.encode(model)))
    return path
