"""Small TFLite files, and a function that changes them."""

import numpy as np

from predictors.graph import Op, OpGraph
from scheduler.formats.tflite import TFLITE
from tests.scheduler.delegates import graphs


def small_source(folder):
    """A convolution, a pool and a linear layer, read from the exporter's ONNX file."""
    from stretch.export.onnx import save_onnx, to_onnx
    from stretch.export.tflite import read_source

    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    ops = [
        Op("x", "input", attrs={"shape": (1, 3, 8, 8)}),
        Op("c", "conv", ("x",), window | {"groups": 1, "out_channels": 4, "bias": True}),
        Op("r", "relu", ("c",)),
        Op("m", "max_pool", ("r",), window | {"ceil_mode": False}),
        Op("g", "global_avg_pool", ("m",), {"keepdims": False}),
        Op("y", "linear", ("g",), {"out_features": 5, "bias": True}),
    ]
    graph = OpGraph.build("small", ops, "y")
    save_onnx(to_onnx(graph, graphs.weights_of(graph, np.random.default_rng(0))), folder / "m.onnx")
    return read_source(folder / "m.onnx")


def changed(content, change):
    model = TFLITE.decode(content)
    change(model)
    return bytes(TFLITE.encode(model))
