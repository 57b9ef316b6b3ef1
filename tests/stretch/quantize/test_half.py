import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from stretch.quantize.half import to_half
from tests import onnx_runtime

X = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)


def network(scale=1.0):
    """Convolution, batch norm with a tiny variance, ReLU6, resize, padding."""
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.normal(0, 0.3 * scale, (4, 3, 3, 3)).astype(np.float32),
        "g": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32),
        "m": rng.normal(size=4).astype(np.float32),
        "v": np.full(4, 1e-9, np.float32),
        "lo": np.float32(0),
        "hi": np.float32(6),
        "s": np.array([1, 1, 2, 2], np.float32),
        "p": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="norm", epsilon=1e-3),
        helper.make_node("Clip", ["n", "lo", "hi"], ["r"], name="relu6"),
        helper.make_node("Resize", ["r", "", "s"], ["u"], name="up", mode="nearest"),
        helper.make_node("Pad", ["u", "p"], ["y"], name="pad"),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 14, 14)),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model):
    return onnx_runtime.output(model.SerializeToString(), X)


def test_half_precision_agrees_with_float_within_its_rounding():
    expected = run(network())
    got = run(to_half(network()))
    assert got.dtype == np.float32
    assert 0 < np.abs(got - expected).max() < 5e-3 * np.abs(expected).max()


def test_weight_beyond_the_range_of_fp16_is_named():
    with pytest.raises(StretchError, match=r"`.*` has values beyond 65504"):
        to_half(network(scale=1e6))
