"""Each call as torch computes it, exported and read again."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stretch.models.pt2 import read_module
from tests.stretch.models.pt2.archives import save

pytestmark = pytest.mark.torch


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.4),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp_below": lambda x: x.clamp(min=-0.2),
    "add_scaled": lambda x: torch.add(x, x, alpha=3),
    "add_number": lambda x: 1.5 + x,
    "subtract_from": lambda x: 2 - x,
    "floor_division": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "power": lambda x: x**2,
    "root": lambda x: torch.rsqrt(x.abs() + 1),
    "mean_of_image": lambda x: x.mean((2, 3), keepdim=True),
    "mean_of_all": lambda x: x.mean().reshape(1),
    "maximum": lambda x: x.amax(1),
    "variance": lambda x: x.var(1),
    "softmax": lambda x: F.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "max_pool": lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True),
    "max_pool_with_places": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "average_pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average_pool_divided": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive_pool": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, 2),
    "split": lambda x: x.split([1, 3], 1)[1],
    "chunk": lambda x: torch.cat(x.chunk(2, 2)[::-1], 2),
    "unbind": lambda x: x.unbind(1)[2],
    "slice": lambda x: x[:, 1:, 1::2, :-1],
    "select": lambda x: x[:, -1],
    "unsqueeze": lambda x: x.unsqueeze(2).squeeze(2).unsqueeze(-1).squeeze(),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "roll": lambda x: torch.roll(x, (1, 2), (2, 3)),
    "flip": lambda x: x.flip(3),
    "pad_reflect": lambda x: F.pad(x, (1, 1, 2, 0), mode="reflect"),
    "pad_constant": lambda x: F.pad(x, (1, 0, 0, 2), value=0.5),
    "nearest_whole": lambda x: F.interpolate(x, scale_factor=2),
    "nearest_size": lambda x: F.interpolate(x, size=(9, 4)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(7, 9), mode="bicubic", align_corners=True),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :4, :4], 2),
    "flatten": lambda x: x.flatten(2).flatten(1),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "einsum": lambda x: torch.einsum("nchw,ndhw->ncd", x, x),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "mask": lambda x: x.masked_fill(torch.ones(6, 5).tril().bool(), 0.0),
    "made": lambda x: x + torch.linspace(0, 1, 5) + torch.zeros(6, 1) + torch.ones_like(x),
    "normalise": lambda x: F.normalize(x, dim=1),
    "unfold": lambda x: F.unfold(x, 2),
    "cumsum": lambda x: x.cumsum(2),
    "instance_norm": F.instance_norm,
    "type_and_back": lambda x: (x * 3).to(torch.int32).float(),
    "dropout": lambda x: F.dropout(x, 0.5, training=False) + 1,
    "product_with_gate": lambda x: x * torch.sigmoid(x),
    "gate_of_another": lambda x: (x + 1) * torch.sigmoid(x),
}


@pytest.mark.representatives(100)
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_call_computes_what_torch_does(tmp_path, name, decomposed):
    x = torch.randn(1, 4, 6, 5, generator=torch.Generator().manual_seed(1))
    found = read_module(save(tmp_path / "m.pt2", Of(FUNCTIONS[name]), x.shape, decomposed))
    with torch.no_grad():
        got, want = found(x.clone()), FUNCTIONS[name](x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 1e-4 * max(1.0, float(want.abs().max()))


def test_random_numbers_are_refused(tmp_path):
    from predictors.errors import StretchError

    with pytest.raises(StretchError, match="more than compute tensors from tensors"):
        read_module(save(tmp_path / "m.pt2", Of(lambda x: x + torch.randn_like(x)), (1, 4)))
