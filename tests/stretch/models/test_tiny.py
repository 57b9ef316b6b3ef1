"""The small networks are small, of the structures they claim, and deterministic."""

import pytest
import torch
from torch import nn

from stretch.models import load_model
from stretch.models.tiny import TinyFamily

pytestmark = pytest.mark.torch

NAMES = TinyFamily().names()


@pytest.mark.parametrize("name", NAMES)
def test_network_is_small_and_gives_ten_finite_scores(name):
    model = load_model(name, weights="none")
    assert sum(p.numel() for p in model.module.parameters()) <= 500_000
    assert max(model.input_shape) <= 64
    with torch.no_grad():
        scores = model.module(torch.randn(2, *model.input_shape[1:]))
    assert scores.shape == (2, 10)
    assert torch.isfinite(scores).all()


def kinds(name):
    """Classes of the modules of one small network."""
    return {type(module).__name__ for module in TinyFamily().build(name).modules()}


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("tiny_resnet", {"BasicBlock"}),
        ("tiny_bottleneck", {"Bottleneck"}),
        ("tiny_mobilenet", {"Hardswish", "Hardsigmoid", "SqueezeExcitation"}),
        ("tiny_efficientnet", {"SiLU", "Sigmoid", "StochasticDepth", "SqueezeExcitation"}),
        ("tiny_vgg", {"MaxPool2d"}),
    ],
)
def test_network_has_the_parts_of_its_structure(name, classes):
    assert classes <= kinds(name)


def test_tiny_regnet_has_grouped_convolutions():
    groups = {m.groups for m in TinyFamily().build("tiny_regnet").modules() if isinstance(m, nn.Conv2d)}
    assert groups == {1, 4, 8}


def test_every_small_network_is_checked():
    assert TinyFamily().checked() == frozenset(NAMES)
