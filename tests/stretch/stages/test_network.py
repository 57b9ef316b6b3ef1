"""A model is loaded and captured the same way, whoever asks."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from stretch.stages.network import check_numbers, read_graph  # noqa: E402

pytestmark = pytest.mark.torch


def test_network_that_cannot_be_traced_is_read_for_a_prediction_with_the_reason(tmp_path):
    (tmp_path / "tokens.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    input_shape = (1, 3, 8, 8)\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.patch, self.norm = torch.nn.Conv2d(3, 6, 2, 2), torch.nn.LayerNorm(6)\n"
        "    def forward(self, x):\n"
        "        return self.norm(self.patch(x).flatten(2).transpose(1, 2)).mean(1)\n"
    )
    read = read_graph(f"{tmp_path}/tokens.py:Net", trust_code=True)
    assert "cannot capture node" in read.refusal
    assert read.graph.macs == 16 * 6 * 12
    assert read_graph("tiny_resnet").refusal is None


def test_ncnn_network_is_read_for_a_prediction(tmp_path):
    path = tmp_path / "net.param"
    path.write_text("7767517\n2 2\nInput x 0 1 x 0=8 1=8 2=3\nConvolution c 1 1 x y 0=4 1=1 5=1 6=12\n")
    read = read_graph(str(path))
    assert (read.graph.macs, read.refusal) == (64 * 12, None)


def test_weights_that_are_no_numbers_are_refused_by_name_and_infinite_masks_are_not():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    check_numbers(net, "net")
    with torch.no_grad():
        net[0].weight[1, 2] = torch.inf
    with pytest.raises(StretchError, match=r"the weight `0.weight` of `net` has 1 of 12 numbers that are not finite"):
        check_numbers(net, "net")
    net[0].reset_parameters()
    net[1].running_mean[0] = torch.nan
    with pytest.raises(StretchError, match=r"`1.running_mean` of `net` has 1 of 4"):
        check_numbers(net, "net")
