"""Activations that exporters write in several nodes: each comes back as one function, and computes what the nodes did."""

from math import pi, sqrt

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import computed, functions, net
from tests.stretch.models.onnx.oracle import random

pytestmark = pytest.mark.torch

NUMBERS = {
    name: np.float32(value)
    for name, value in {
        "0": 0,
        "1": 1,
        "3": 3,
        "6": 6,
        "half": 0.5,
        "sixth": 1 / 6,
        "root2": sqrt(2),
        "inverse": 1 / sqrt(2),
        "cubic": 0.044715,
        "rootpi": sqrt(2 / pi),
        "8": 8,
    }.items()
}


def nodes(*lines):
    """Nodes written as `result = Operator first second …`."""
    made = []
    for line in lines:
        result, _, call = line.partition(" = ")
        kind, *reads = call.split()
        attrs = {"alpha": 1 / 6, "beta": 0.5} if kind == "HardSigmoid" else {}
        made.append(helper.make_node(kind, reads, [result], **attrs))
    return made


WRITTEN = {
    "silu": [("g = Sigmoid x", "y = Mul x g"), ("g = Sigmoid x", "y = Mul g x")],
    "hardswish": [
        ("g = HardSigmoid x", "y = Mul x g"),
        ("a = Add x 3", "c = Clip a 0 6", "d = Div c 6", "y = Mul x d"),
        ("a = Add 3 x", "c = Clip a 0 6", "m = Mul x c", "y = Div m 6"),
        ("a = Add x 3", "c = Clip a 0 6", "m = Mul c x", "y = Mul sixth m"),
    ],
    "hardsigmoid": [("a = Add x 3", "c = Clip a 0 6", "y = Div c 6"), ("a = Add x 3", "c = Clip a 0 6", "y = Mul c sixth")],
    "mish": [("s = Softplus x", "t = Tanh s", "y = Mul x t")],
    "gelu": [
        ("d = Div x root2", "e = Erf d", "a = Add e 1", "m = Mul x a", "y = Mul m half"),
        ("d = Mul x inverse", "e = Erf d", "a = Add 1 e", "h = Mul half x", "y = Mul h a"),
        ("d = Div x root2", "e = Erf d", "a = Add e 1", "h = Mul a half", "y = Mul x h"),
        ("p = Pow x 3", "c = Mul p cubic", "s = Add x c", "r = Mul s rootpi", "t = Tanh r", "a = Add t 1", "h = Mul x half", "y = Mul h a"),
    ],
}

CASES = [(name, lines) for name, ways in WRITTEN.items() for lines in ways]


@pytest.mark.parametrize(("name", "lines"), CASES, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_activation_is_found_however_it_is_written(tmp_path, name, lines):
    model = net(*nodes(*lines), stored=NUMBERS)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert functions(read_module(tmp_path / "m.onnx")) == [name]
    x = random((1, 4, 5, 3), scale=3)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "lines",
    [
        ("g = Sigmoid x", "r = Relu x", "y = Mul r g"),
        ("a = Add x 3", "c = Clip a 0 6", "m = Mul x c", "y = Div m 3"),
        ("a = Add x 6", "c = Clip a 0 6", "m = Mul x c", "y = Div m 6"),
        ("a = Add x 3", "c = Clip a 0 8", "m = Mul x c", "y = Div m 6"),
        ("d = Mul x 3", "e = Erf d", "a = Add e 1", "m = Mul x a", "y = Mul m half"),
        ("d = Div x root2", "e = Erf d", "a = Add e 3", "m = Mul x a", "y = Mul m half"),
        ("p = Pow x 6", "c = Mul p cubic", "s = Add x c", "r = Mul s rootpi", "t = Tanh r", "a = Add t 1", "h = Mul x half", "y = Mul h a"),
        ("s = Sigmoid x", "t = Tanh s", "y = Mul x t"),
    ],
    ids=" ".join,
)
def test_nodes_that_are_nearly_an_activation_stay_what_they_are(tmp_path, lines):
    model = net(*nodes(*lines), stored=NUMBERS)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert len(functions(read_module(tmp_path / "m.onnx"))) == len(lines)
    x = random((1, 4, 5, 3))
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, rtol=1e-4, atol=1e-4)


def test_node_within_an_activation_may_be_read_by_others(tmp_path):
    model = net(*nodes("g = Sigmoid x", "s = Mul x g", "y = Add s g"), stored=NUMBERS)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert functions(read_module(tmp_path / "m.onnx")) == ["sigmoid", "silu", "add"]
