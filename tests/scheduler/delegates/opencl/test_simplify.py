import numpy as np
import pytest

from scheduler.delegates.opencl.graph import read_graph
from scheduler.delegates.opencl.simplify import simplify
from scheduler.delegates.reference import ReferenceDelegate
from tests.scheduler.delegates.opencl import networks


def simplified(path):
    graph = read_graph(path)
    simplify(graph)
    return graph


def test_batch_norm_goes_into_the_convolution_before_it(tmp_path):
    path = networks.residual_block(tmp_path / "m.onnx")
    assert [node.op for node in simplified(path).nodes] == ["Conv", "Relu", "Conv", "Add", "Relu"]
    assert networks.error(path) <= 1e-5


def test_batch_norm_elsewhere_becomes_scale_and_shift(tmp_path):
    norm = {key: np.abs(networks.numbers(3, seed=i)) + 0.5 for i, key in enumerate("sbmv")}
    path = networks.save(tmp_path / "m.onnx", [("BatchNormalization", ["x", *norm], "y", {})], {"x": (1, 3, 4, 4)}, ["y"], norm)
    assert [node.op for node in simplified(path).nodes] == ["ScaleShift"]


@pytest.mark.slow
def test_batch_norm_stays_apart_from_a_convolution_that_others_read(tmp_path):
    norm = {key: np.abs(networks.numbers(4, seed=i)) + 0.5 for i, key in enumerate("sbmv")}
    nodes = [networks.conv("x", "c", "w", kernel_shape=[1, 1]), ("BatchNormalization", ["c", *norm], "n", {}), ("Add", ["c", "n"], "y", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 3, 4, 4)}, ["y"], {"w": networks.numbers(4, 3, 1, 1), **norm})
    assert [node.op for node in simplified(path).nodes] == ["Conv", "ScaleShift", "Add"]
    assert networks.error(path) <= 1e-5


def padded(path, after, value=0.0, **attrs):
    pads = np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64)
    nodes = [
        ("Pad", ["x", "pads", "value"], "p", {}),
        (after, ["p", *(["w"] if after == "Conv" else [])], "y", {"kernel_shape": [3, 3], **attrs}),
    ]
    weights = {"pads": pads, "value": np.array(value, np.float32)} | ({"w": networks.numbers(2, 3, 3, 3)} if after == "Conv" else {})
    return networks.save(path, nodes, {"x": (1, 3, 6, 6)}, ["y"], weights)


def test_zero_pad_goes_into_the_convolution(tmp_path):
    path = padded(tmp_path / "m.onnx", "Conv", pads=[1, 0, 0, 1])
    graph = simplified(path)
    assert [(node.op, node.attrs["pads"]) for node in graph.nodes] == [("Conv", (2, 2, 0, 2))]
    assert graph.nodes[0].merged == ("y", "p")
    assert networks.error(path) <= 1e-5


def test_pad_with_another_value_and_before_a_maximum_stays(tmp_path):
    assert [n.op for n in simplified(padded(tmp_path / "a.onnx", "Conv", value=1.0)).nodes] == ["Pad", "Conv"]
    assert [n.op for n in simplified(padded(tmp_path / "b.onnx", "MaxPool")).nodes] == ["Pad", "MaxPool"]
    # ONNX Runtime 1.31 merges this pad and so lets its zeros never win: numpy is the oracle.
    assert networks.error(tmp_path / "b.onnx", oracle=ReferenceDelegate) <= 1e-5


def test_identities_go_and_constants_are_computed_once(tmp_path):
    nodes = [("Identity", ["x"], "i", {}), ("Add", ["one", "one"], "two", {}), ("Mul", ["i", "two"], "m", {}), ("Identity", ["m"], "y", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 3)}, ["y"], {"one": np.ones(3, np.float32)})
    graph = simplified(path)
    assert [node.op for node in graph.nodes] == ["Mul", "Identity"]
    assert set(graph.gone) == {"i", "two"}
    assert networks.error(path) <= 1e-6


def test_reshape_transpose_reshape_is_one_channel_shuffle(tmp_path):
    nodes = [
        ("Relu", ["x"], "r", {}),
        ("Reshape", ["r", "split"], "g", {}),
        ("Transpose", ["g"], "t", {"perm": [0, 2, 1, 3, 4]}),
        ("Reshape", ["t", "whole"], "y", {}),
    ]
    weights = {"split": np.array([2, 3, 4, 5, 5]), "whole": np.array([2, 12, 5, 5])}
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 12, 5, 5)}, ["y"], weights)
    assert [node.op for node in simplified(path).nodes] == ["Relu", "ChannelShuffle"]
    assert networks.error(path) == 0
