import pytest

from scheduler.delegates.opencl.fuse import Activation, fuse
from scheduler.delegates.opencl.graph import read_graph
from scheduler.delegates.opencl.simplify import simplify
from tests.scheduler.delegates.opencl import networks


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


@pytest.mark.slow
def test_activation_before_the_addition_keeps_its_place(tmp_path):
    nodes = [
        networks.conv("x", "c", "w", kernel_shape=[1, 1]),
        ("Relu", ["c"], "r", {}),
        ("Add", ["x", "r"], "a", {}),
        ("Tanh", ["a"], "y", {}),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 8, 5, 5)}, ["y"], {"w": networks.numbers(8, 8, 1, 1)})
    conv, tanh = fused(path)
    assert (conv.attrs["activation"], conv.attrs["residual_last"]) == (Activation("relu"), True)
    assert tanh.op == "Unary"
    assert networks.error(path) <= 1e-5
