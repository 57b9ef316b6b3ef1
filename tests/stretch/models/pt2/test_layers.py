"""Each layer as torch computes it, exported and read again as a layer of the same name."""

import pytest
import torch
from torch import nn

from stretch.models.pt2 import read_module
from tests.stretch.models.pt2.archives import save

pytestmark = pytest.mark.torch

LAYERS = {
    "conv": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2), (2, 4, 6, 5)),
    "conv_same": (lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), (2, 4, 6, 5)),
    "conv_1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
    "conv_3d": (lambda: nn.Conv3d(4, 6, 2), (1, 4, 3, 4, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (1, 4, 5, 4)),
    "transposed_1d": (lambda: nn.ConvTranspose1d(4, 6, 4, 2), (1, 4, 5)),
    "batch_norm": (lambda: nn.BatchNorm2d(4, eps=0.01), (2, 4, 6, 5)),
    "batch_norm_plain": (lambda: nn.BatchNorm2d(4, affine=False), (2, 4, 6, 5)),
    "batch_norm_1d": (lambda: nn.BatchNorm1d(4), (3, 4)),
    "linear": (lambda: nn.Linear(5, 3), (2, 5)),
    "linear_without_bias": (lambda: nn.Linear(5, 3, bias=False), (2, 5)),
    "linear_on_tokens": (lambda: nn.Linear(5, 3), (2, 7, 5)),
    "layer_norm": (lambda: nn.LayerNorm((6, 5)), (2, 4, 6, 5)),
    "layer_norm_plain": (lambda: nn.LayerNorm(5, elementwise_affine=False), (2, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4, eps=0.1), (2, 4, 6, 5)),
    "prelu": (lambda: nn.PReLU(4), (2, 4, 6, 5)),
    "lstm": (lambda: _First(nn.LSTM(5, 3, batch_first=True)), (2, 7, 5)),
    "attention": (lambda: _Attention(), (2, 7, 4)),
}

#: Layers of torch that come back as such.
OWN = ("conv", "transposed", "batch_norm", "linear", "layer_norm", "group_norm", "prelu")


class _First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.heads(x, x, x, need_weights=False)[0]


class _Within(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inner = nn.ModuleDict({"own": layer})

    def forward(self, x):
        return self.inner["own"](x)


@pytest.mark.representatives(33)
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layer_computes_what_it_did(tmp_path, name, decomposed):
    make, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(2)
    module = _Within(make()).eval()
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.1)
    found = read_module(save(tmp_path / "m.pt2", module, shape, decomposed))
    x = torch.randn(shape, generator=generator)
    with torch.no_grad():
        got, want = found(x), module(x)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 1e-4 * max(1.0, float(want.abs().max()))
    if name.startswith(OWN) and not (decomposed and name not in ("conv", "transposed", "batch_norm", "linear")):
        assert isinstance(dict(found.named_modules())["inner.own"], type(make()))
        assert {key for key in found.state_dict() if "tracked" not in key} == {key for key in module.state_dict() if "tracked" not in key}


def test_layer_whose_weight_is_computed_is_still_computed(tmp_path):
    class Computed(nn.Module):
        def forward(self, x):
            return nn.functional.conv2d(x, x[:, :, :2, :2].mean(0, keepdim=True).expand(5, -1, -1, -1))

    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    found = read_module(save(tmp_path / "m.pt2", Computed(), x.shape))
    assert (found(x) - Computed()(x)).abs().max() <= 1e-4
