"""Small int8 models with known scales, written by hand, and a runner for code in a new interpreter."""

import os
import subprocess
import sys

import numpy as np
import onnx
from onnx import helper

from tests.scheduler.bundles import onnx_model

X_SCALE, W_SCALE, Y_SCALE = 1 / 32, 1 / 64, 1 / 8


def weights(seed=0, shape=(4, 3, 3, 3)):
    """Integers of the convolution's weights."""
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


def save_conv(path, name="s1.dsp", y_scale=Y_SCALE, op="Conv"):
    """Write a quantised 3×3 convolution with int8 weights and float input and output."""
    w = weights()
    values = {"x_scale": np.float32(X_SCALE), "x_zero": np.uint8(128), "y_scale": np.float32(y_scale), "y_zero": np.uint8(128)}
    values |= {"w_int": w, "w_scale": np.full(len(w), W_SCALE, np.float32), "w_zero": np.zeros(len(w), np.int8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_int"], name="x_q"),
        helper.make_node("DequantizeLinear", ["x_int", "x_scale", "x_zero"], ["x_real"], name="x_dq"),
        helper.make_node("DequantizeLinear", ["w_int", "w_scale", "w_zero"], ["w"], name="w_dq", axis=0),
        helper.make_node("Conv", ["x_real", "w"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["y_int"], name="y_q"),
        helper.make_node("DequantizeLinear", ["y_int", "y_scale", "y_zero"], ["y"], name="y_dq"),
    ]
    shape = [1, 4, 6, 6]
    if op == "Det":  # an operator that the DSP lacks
        nodes = [*nodes[:2], helper.make_node("Det", ["x_real"], ["c"], name="det"), *nodes[4:]]
        shape = [1, 3]
        values = {k: v for k, v in values.items() if not k.startswith("w_")}
    save(path, nodes, values, shape, name)


def save_float(path, name="s1.dsp"):
    """Write the convolution in floating point."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    save(path, [node], {"w": weights().astype(np.float32) * np.float32(W_SCALE)}, [1, 4, 6, 6], name)


def save(path, nodes, values, shape, name):
    """Write a model with input x, output y and these nodes."""
    model = onnx_model(nodes, {"x": (1, 3, 6, 6)}, {"y": shape}, values)
    helper.set_model_props(model, {"stretch.subgraph": name})
    onnx.save(model, str(path))


def python(code, *, path=None, cwd=None):
    """Run code in a fresh interpreter that looks for packages in `path` first."""
    env = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env, cwd=cwd)
