"""Random weights get batch-norm statistics that keep activations in bounds."""

import pytest
import torch
from torch import nn

from stretch.models.tiny import TinyFamily
from stretch.models.weights import settle

pytestmark = pytest.mark.torch


def settled(name, seed=0):
    """A small network with settled statistics."""
    torch.manual_seed(seed)
    family = TinyFamily()
    module = family.build(name)
    settle(module, family.input_shape(name), torch.Generator().manual_seed(seed))
    return module


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", TinyFamily().names())
@pytest.mark.parametrize("kind", ["noise", "grey", "photograph-like"])
def test_activations_neither_explode_nor_vanish(name, kind):
    module = settled(name)
    shape = (4, *TinyFamily().input_shape(name)[1:])
    torch.manual_seed(1)
    images = {
        "noise": torch.randn(shape),
        "grey": torch.rand(shape[0], 1, 1, 1).expand(shape),
        "photograph-like": nn.functional.interpolate(torch.randn(*shape[:2], 4, 4), size=shape[2:], mode="bilinear"),
    }[kind]
    largest = []
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(lambda _, __, out: largest.append(out.abs().max().item()))
    with torch.no_grad():
        module(images)
    assert all(0.01 < value < 100 for value in largest), largest


def test_layer_that_begins_as_zeros_shows_what_it_reads():
    module = nn.Sequential(nn.Linear(64, 3), nn.Linear(3, 3))
    nn.init.zeros_(module[0].weight)
    kept = module[1].weight.clone()
    settle(module, (1, 64), torch.Generator().manual_seed(0))
    assert module[0].weight.std().item() == pytest.approx(1 / 8, rel=0.2)
    assert torch.equal(module[1].weight, kept)
