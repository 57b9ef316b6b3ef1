import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from stretch.quantize.fold import fold_batch_norms
from tests import onnx_runtime


class Net:
    """Nodes and weights of a small network, input x."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def weight(self, name, value):
        self.weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def conv(self, read, write, out, channels, kernel=3, group=1, bias=True):
        reads = [read, self.weight(f"{write}.w", self.random.normal(size=(out, channels // group, kernel, kernel)))]
        reads += [self.weight(f"{write}.b", self.random.normal(size=out))] if bias else []
        self.nodes.append(helper.make_node("Conv", reads, [write], name=f"{write}/conv", group=group, pads=[kernel // 2] * 4))

    def norm(self, read, write, channels, epsilon=1e-3):
        values = {"scale": self.random.normal(size=channels), "shift": self.random.normal(size=channels)}
        values |= {"mean": self.random.normal(size=channels), "var": self.random.uniform(0.2, 3, channels)}
        names = [self.weight(f"{write}.{key}", value) for key, value in values.items()]
        self.nodes.append(helper.make_node("BatchNormalization", [read, *names], [write], name=f"{write}/bn", epsilon=epsilon))

    def model(self, shape, output, out_shape):
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), (output, out_shape))]
        graph = helper.make_graph(self.nodes, "g", ends[:1], ends[1:], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def compute(model, x):
    return onnx_runtime.output(model.SerializeToString(), x)


def same(model, folded, shape):
    onnx.checker.check_model(folded)
    x = np.random.default_rng(9).normal(size=shape).astype(np.float32)
    expected = compute(model, x)
    return np.allclose(compute(folded, x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def kinds(model):
    return [node.op_type for node in model.graph.node]


@given(st.integers(0, 1000), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([1, 3]))
def test_folded_convolution_computes_the_same(seed, group, bias, kernel):
    net = Net(seed)
    net.conv("x", "a", 8, 4, kernel, group, bias)
    net.norm("a", "y", 8)
    model = net.model([1, 4, 5, 5], "y", [1, 8, 5, 5])
    folded = fold_batch_norms(model)
    assert kinds(folded) == ["Conv"]
    assert same(model, folded, (1, 4, 5, 5))


def test_convolution_that_others_read_too_keeps_its_value():
    net = Net()
    net.conv("x", "a", 4, 4)
    net.norm("a", "b", 4)
    net.nodes.append(helper.make_node("Add", ["a", "b"], ["y"], name="add"))
    model = net.model([1, 4, 5, 5], "y", [1, 4, 5, 5])
    folded = fold_batch_norms(model)
    assert kinds(folded) == ["Conv", "Conv", "Add"]
    assert same(model, folded, (1, 4, 5, 5))


def test_norm_before_anything_else_becomes_a_depthwise_convolution():
    net = Net()
    net.norm("x", "a", 4)
    net.conv("a", "y", 6, 4)
    model = net.model([1, 4, 5, 5], "y", [1, 6, 5, 5])
    folded = fold_batch_norms(model)
    assert kinds(folded) == ["Conv", "Conv"]
    assert same(model, folded, (1, 4, 5, 5))


@pytest.mark.parametrize("bias", [True, False])
def test_norm_after_a_matrix_goes_into_it(bias):
    net = Net()
    reads = ["x", net.weight("w", net.random.normal(size=(5, 7)))] + ([net.weight("b", net.random.normal(size=5))] if bias else [])
    net.nodes.append(helper.make_node("Gemm", reads, ["a"], name="fc", transB=1))
    net.norm("a", "y", 5)
    model = net.model([2, 7], "y", [2, 5])
    folded = fold_batch_norms(model)
    assert kinds(folded) == ["Gemm"]
    assert same(model, folded, (2, 7))
