"""Structures that exporters of other frameworks write, held against ONNX Runtime and against the graph that is meant."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from stretch.capture import capture
from stretch.models.onnx import read_module
from tests.stretch.models.onnx.graphs import net
from tests.stretch.models.onnx.oracle import random

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def check(path, model, x, own=None):
    """Assert that the module of a file computes what the runtime does, for `own` if it reads its input in another order."""
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [want] = session.run(None, {session.get_inputs()[0].name: x})
    found = read_module(path, None if own is None else own.shape)
    with torch.no_grad():
        got = found(torch.from_numpy(x if own is None else own)).numpy()
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-4 * max(1.0, float(np.abs(want).max()))
    return found


def node(op, reads, writes, **attrs):
    return helper.make_node(op, reads, [writes], **attrs)


def of_tensorflow(normalised):
    """Channels last outside, first within: a convolution between two transpositions, a rectifier, another one, a mean."""
    nodes = [node("Sub", ["x", "mean"], "c")] if normalised else []
    nodes += [
        node("Transpose", ["c" if normalised else "x"], "a", perm=[0, 3, 1, 2]),
        node("Conv", ["a", "w"], "b", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Transpose", ["b"], "t", perm=[0, 2, 3, 1]),
        node("Relu", ["t"], "r"),
        node("Transpose", ["r"], "u", perm=[0, 3, 1, 2]),
        node("Conv", ["u", "v"], "d", kernel_shape=[1, 1]),
        node("GlobalAveragePool", ["d"], "p"),
        node("Squeeze", ["p", "axes"], "y"),
    ]
    mean = np.array([0.1, 0.2, 0.3], np.float32)
    stored = {"w": random((6, 3, 3, 3), 1), "v": random((5, 6, 1, 1), 2), "mean": mean, "axes": np.array([2, 3])}
    return net(*nodes, stored=stored, shape=("n", 8, 8, 3))


@pytest.mark.parametrize("normalised", [False, True])
def test_image_whose_channels_are_last_is_read_with_channels_second(tmp_path, normalised):
    x = random((1, 8, 8, 3))
    found = check(tmp_path / "m.onnx", of_tensorflow(normalised), x, np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    assert found.input_shape == (1, 3, 8, 8)
    assert any("channels last" in sentence for sentence in found.warnings)
    captured = capture(found, (1, 3, 8, 8))
    assert captured.refusal is None or not captured.refusal
    kinds = [each.kind for each in captured.graph.ops]
    assert [kind for kind in kinds if kind in ("conv", "relu", "global_avg_pool", "opaque")] == ["conv", "relu", "conv", "global_avg_pool"]


def test_image_that_is_also_read_as_it_is_stays_so(tmp_path):
    nodes = [node("Transpose", ["x"], "a", perm=[0, 3, 1, 2]), node("Softmax", ["x"], "s", axis=-1), node("Flatten", ["s"], "f")]
    nodes += [node("Flatten", ["a"], "g"), node("Concat", ["f", "g"], "y", axis=1)]
    assert check(tmp_path / "m.onnx", net(*nodes, shape=(1, 4, 5, 3)), random((1, 4, 5, 3))).input_shape == (1, 4, 5, 3)


def test_weights_that_several_operators_share_are_told_to_be_copies(tmp_path):
    nodes = [node("Gemm", ["x", "w"], "a"), node("Tanh", ["a"], "b"), node("Gemm", ["b", "w"], "c"), node("Tanh", ["c"], "d")]
    x = random((1, 40))
    shared = check(
        tmp_path / "m.onnx",
        net(*nodes, node("Gemm", ["d", "v"], "y"), stored={"w": random((40, 40), 1), "v": random((40, 9), 2)}, shape=(1, 40)),
        x,
    )
    assert [sentence for sentence in shared.warnings if "share weights" in sentence and "1,600 of them copies" in sentence]
    several = net(*nodes[:3], stored={"w": random((40, 40), 1)}, shape=(1, 40))
    several.graph.node[2].input[1] = "v"
    several.graph.initializer.append(onnx.numpy_helper.from_array(random((40, 40), 2), "v"))
    several.graph.node[2].output[0] = "y"
    assert not check(tmp_path / "n.onnx", several, x).warnings
