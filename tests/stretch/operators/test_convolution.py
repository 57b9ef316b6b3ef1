import numpy as np
import pytest

from predictors.graph import Op, OpGraph
from scheduler.delegates.reference import ReferenceDelegate
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.tflite.source import read_source
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import codes, run

pytest.importorskip("ai_edge_litert")

CONV = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": True}

pytest.importorskip("torch")


def case(*ops, shape=(1, 6, 5, 4), seed=0):
    graph = OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)
    random = np.random.default_rng(seed)
    return graph, graphs.weights_of(graph, random), random.normal(size=shape).astype(np.float32)


def agrees(folder, graph, weights, x):
    save_onnx(to_onnx(graph, weights), folder / "op.onnx")
    expected = graphs.run(ReferenceDelegate(), folder / "op.onnx", graph, x)
    source = read_source(folder / "op.onnx")
    assert np.allclose(run(source, folder, x), expected, rtol=1e-4, atol=1e-4)
    return [code for code, _ in codes(source)]


@pytest.mark.parametrize(
    ("groups", "outputs", "code"), [(6, 6, "DEPTHWISE_CONV_2D"), (6, 12, "DEPTHWISE_CONV_2D"), (3, 6, "CONV_2D"), (1, 5, "CONV_2D")]
)
def test_groups_of_one_channel_are_depthwise_and_others_grouped(tmp_path, groups, outputs, code):
    assert agrees(tmp_path, *case(Op("y", "conv", ("x",), CONV | {"groups": groups, "out_channels": outputs}))) == [code]


def test_convolution_with_unequal_padding_pads_each_side_its_own():
    import torch

    from stretch.operators.convolution import PaddedConv2d
    from stretch.operators.lowerings import make_module

    attrs = {"out_channels": 2, "kernel": (3, 3), "stride": (2, 2), "padding": (0, 0, 1, 1), "dilation": (1, 1), "groups": 1, "bias": False}
    module = make_module(Op("op", "conv", ("x",), attrs), [(1, 2, 8, 8)])
    assert isinstance(module, PaddedConv2d)
    x = torch.randn(1, 2, 8, 8)
    expected = torch.nn.functional.conv2d(torch.nn.functional.pad(x, (0, 1, 0, 1)), module.weight, stride=2)
    assert torch.equal(module(x), expected)
