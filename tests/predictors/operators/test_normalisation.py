"""Normalisations, with torch as the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.operators import kind_of


@pytest.mark.torch
@given(st.integers(1, 5), st.booleans())
def test_batch_norm_has_the_weights_of_torch(channels, affine):
    import torch

    module = torch.nn.BatchNorm2d(channels, affine=affine)
    expected = {name: tuple(p.shape) for name, p in module.state_dict().items() if name != "num_batches_tracked"}
    assert kind_of("batch_norm").weights([(1, channels, 2, 2)], {"affine": affine}) == expected
