import numpy as np
import onnx
import pytest
from onnx import helper

from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import computed, functions, net
from tests.stretch.models.onnx.oracle import random

pytestmark = pytest.mark.torch

X = (1, 4, 5, 3)


def rounded(tmp_path, zero, scale, *before):
    """The module of a file that rounds what `before` makes of `x`, `t`, or `x` itself."""
    nodes = [
        *before,
        helper.make_node("QuantizeLinear", ["t" if before else "x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["r"]),
        helper.make_node("Tanh", ["r"], ["y"]),
    ]
    onnx.save(net(*nodes, stored={"scale": np.float32(scale), "zero": zero}, shape=X), str(tmp_path / "m.onnx"))
    return functions(read_module(tmp_path / "m.onnx"))


SIN = helper.make_node("Sin", ["x"], ["t"])


@pytest.mark.parametrize("zero", [np.uint8(0), np.int8(-128)])
def test_range_from_zero_on_is_a_rectifier(tmp_path, zero):
    assert rounded(tmp_path, zero, 0.01, SIN) == ["sin", "relu", "tanh"]
    assert rounded(tmp_path, zero, 6 / 255, SIN) == ["sin", "relu6", "tanh"]


def test_rounding_changes_numbers_by_less_than_a_step(tmp_path):
    rounded(tmp_path, np.uint8(128), 0.05)
    x = random(X)
    got = computed(tmp_path / "m.onnx", x)
    np.testing.assert_allclose(got, np.tanh(x), rtol=1e-5, atol=1e-6)
