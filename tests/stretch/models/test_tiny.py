"""The small networks are small, of the structures they claim, and deterministic."""

import pytest
import torch

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
