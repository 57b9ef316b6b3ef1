import pytest

from predictors.graph import Op

pytest.importorskip("ai_edge_litert")


pytest.importorskip("torch")


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
