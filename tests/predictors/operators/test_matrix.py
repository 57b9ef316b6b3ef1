"""Matrices, with torch as the oracle."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.channels import Narrowed
from predictors.operators import kind_of


@pytest.mark.torch
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_linear_agrees_with_torch(leading, cin, cout, bias):
    import torch

    module = torch.nn.Linear(cin, cout, bias)
    shape, attrs = (*leading, cin), {"out_features": cout, "bias": bias}
    linear = kind_of("linear")
    out = linear.shape([shape], attrs)
    assert out == tuple(module(torch.zeros(shape)).shape)
    assert linear.weights([shape], attrs) == {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert linear.macs([shape], attrs, out) == prod(leading) * cin * cout


def test_scaled_matrix_has_other_features():
    narrowed = Narrowed(before=8, after=4, out=3, position=lambda channel: channel)
    assert kind_of("linear").scaled({"out_features": 9, "bias": True}, narrowed) == {"out_features": 3, "bias": True}
