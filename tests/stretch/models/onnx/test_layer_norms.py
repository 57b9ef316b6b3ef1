import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import computed, functions, net
from tests.stretch.models.onnx.oracle import random

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

X = (2, 5, 8)
STORED = {"w": random((8,), 1), "b": random((8,), 2), "eps": np.float32(1e-3), "two": np.float32(2), "three": np.float32(3)}


def mean(read, written, **attrs):
    return helper.make_node("ReduceMean", [read], [written], **({"axes": [-1]} | attrs))


def node(kind, *names):
    return helper.make_node(kind, list(names[:-1]), [names[-1]])


def written(**changes):
    """The nodes of a layer norm, by what they write; `changes` replace some of them."""
    nodes = {
        "m": mean("x", "m"),
        "d": node("Sub", "x", "m", "d"),
        "p": node("Pow", "d", "two", "p"),
        "v": mean("p", "v"),
        "e": node("Add", "v", "eps", "e"),
        "s": node("Sqrt", "e", "s"),
        "n": node("Div", "d", "s", "n"),
        "t": node("Mul", "n", "w", "t"),
        "y": node("Add", "t", "b", "y"),
    }
    return net(*(nodes | changes).values(), stored=STORED, shape=X)


def check(path, model):
    """Assert that the module of a file computes what the runtime does; gives what it calls."""
    onnx.save(model, str(path))
    x = random(X)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(path, x), want, rtol=1e-4, atol=1e-4)
    return functions(read_module(path))


@pytest.mark.parametrize(
    "changes",
    [{}, {"m": mean("x", "m", axes=[2])}, {"t": node("Mul", "w", "n", "t"), "y": node("Add", "b", "t", "y")}],
    ids=["usual", "axis from the first", "turned round"],
)
def test_layer_norm_of_several_nodes_is_one_module(tmp_path, changes):
    assert check(tmp_path / "m.onnx", written(**changes)) == ["LayerNorm"]


@pytest.mark.parametrize(
    "changes",
    [
        {"m": mean("x", "m", axes=[1])},
        {"v": mean("p", "v", axes=[1])},
        {"p": node("Pow", "x", "two", "p")},
        {"p": node("Mul", "d", "x", "p")},
        {"n": node("Div", "x", "s", "n")},
        {"d": node("Sub", "x", "three", "d"), "p": node("Pow", "d", "two", "p")},
        {"t": node("Mul", "n", "three", "t")},
    ],
    ids=str,
)
def test_nodes_that_are_nearly_a_layer_norm_stay_what_they_are(tmp_path, changes):
    assert "LayerNorm" not in check(tmp_path / "m.onnx", written(**changes))
