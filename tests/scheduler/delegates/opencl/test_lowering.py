"""From ONNX nodes to launches of kernels."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.delegates.opencl.fuse import fuse
from scheduler.delegates.opencl.graph import read_graph
from scheduler.delegates.opencl.launch import Launch
from scheduler.delegates.opencl.lowering import MAX_ELEMENTS, UnsupportedError
from scheduler.delegates.opencl.simplify import simplify
from scheduler.delegates.reference import ReferenceDelegate
from tests.scheduler.delegates.opencl import networks


def test_old_opset_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "OPSET", 12)
    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (1, 2)}, ["y"], {})
    with pytest.raises(StretchError, match="opset 12"):
        read_graph(path)


def test_operator_of_another_domain_is_refused(tmp_path):
    import onnx

    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (1, 2)}, ["y"], {})
    model = onnx.load(str(path))
    model.graph.node[0].domain = "com.example"
    onnx.save(model, str(path))
    with pytest.raises(StretchError, match="does not run"):
        read_graph(path)


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


def fused(path):
    graph = read_graph(path)
    simplify(graph)
    fuse(graph)
    return graph.nodes


def test_residual_block_is_two_kernels(tmp_path):
    first, second = fused(networks.residual_block(tmp_path / "m.onnx"))
    assert (first.op, first.attrs["activation"].name) == ("Conv", "relu")
    assert (second.inputs[3], second.attrs["activation"].name, second.attrs["residual_last"]) == ("x", "relu", False)
    assert second.merged == ("c2", "a", "y")


def test_sigmoid_times_its_input_is_silu_and_the_gate_stays_a_product(tmp_path):
    nodes = fused(networks.squeeze_excite(tmp_path / "m.onnx"))
    assert [node.op for node in nodes] == ["Conv", "GlobalAveragePool", "Conv", "Conv", "Binary"]
    assert [node.attrs["activation"].name for node in nodes if node.op == "Conv"] == ["silu", "relu", "hard_sigmoid"]


@pytest.mark.slow
def test_unfused_graph_computes_the_same(tmp_path):
    path = networks.residual_block(tmp_path / "m.onnx")
    assert len(networks.kernels(path, fuse=False)) > len(networks.kernels(path))
    assert networks.error(path, fuse=False) <= 1e-5


def test_output_that_is_read_inside_as_well_and_output_that_is_an_input(tmp_path):
    nodes = [("Relu", ["x"], "y", {}), ("Tanh", ["y"], "z", {}), ("Identity", ["x"], "same", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 5, 3, 3)}, ["y", "z", "same"], {})
    assert networks.error(path) <= 1e-6


def test_operator_without_a_kernel_is_refused_by_name(tmp_path):
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5)}, ["y"], {})
    with pytest.raises(UnsupportedError, match="node `y` is a Cos, for which the opencl delegate has no kernel"):
        networks.launches(path)


def test_tensor_beyond_32_bit_indices_is_refused(tmp_path):
    side = int(MAX_ELEMENTS**0.5) + 1
    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (1, 1, side, side)}, ["y"], {})
    with pytest.raises(UnsupportedError, match="more than"):
        networks.launches(path)


def test_weights_that_are_computed_are_refused(tmp_path):
    path = networks.save(
        tmp_path / "m.onnx", [networks.conv("x", "y", "v", kernel_shape=[2, 2])], {"x": (1, 3, 4, 4), "v": (2, 3, 2, 2)}, ["y"], {}
    )
    with pytest.raises(UnsupportedError, match="`v` is computed"):
        networks.launches(path)


def test_parts_of_a_concatenation_are_written_in_place(tmp_path):
    path = networks.classifier(tmp_path / "m.onnx")
    launches = networks.launches(path, winograd="off")
    assert [launch.kernel for launch in launches] == ["stem", "pool", "conv", "conv", "global_pool", "conv", "move", "softmax"]
    assert launches[2].buffers()[1] == launches[3].buffers()[1] == {"c"}


@pytest.mark.slow
def test_part_that_ends_inside_a_block_is_copied(tmp_path):
    weights = {"w1": networks.numbers(3, 4, 1, 1), "w2": networks.numbers(5, 4, 1, 1)}
    nodes = [
        networks.conv("x", "a", "w1", kernel_shape=[1, 1]),
        networks.conv("x", "b", "w2", kernel_shape=[1, 1]),
        ("Concat", ["a", "b", "x"], "y", {"axis": 1}),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 4, 3, 5)}, ["y"], weights)
    assert networks.error(path) <= 1e-5


sizes = st.tuples(*[st.integers(1, 40)] * 3)


@given(sizes, sizes, st.integers(1, 64), sizes)
def test_work_group_is_brought_within_limits(grid, local, limit, most):
    launch = Launch("k", "n", (), (), grid, "", local=local).within(limit, most)
    assert all(size <= current and size <= top for size, current, top in zip(launch.local, local, most, strict=True))
    assert prod(launch.local) <= limit or launch.local[:2] == (1, 1)
    assert Launch("k", "n", (), (), grid, "").within(limit, most).local is None
