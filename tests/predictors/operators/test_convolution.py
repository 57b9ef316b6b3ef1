"""Convolutions, with torch as the oracle."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.channels import Narrowed
from predictors.operators import kind_of

pair = st.tuples(st.integers(1, 5), st.integers(1, 5))
strides = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.torch
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(3, 17), st.integers(3, 17),
    pair, strides, st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(1, 2), st.integers(1, 2)), st.booleans(),
)  # fmt: skip
def test_convolution_agrees_with_torch(batch, groups, cin, cout, height, width, kernel, stride, padding, dilation, bias):
    import torch

    if height + 2 * padding[0] < dilation[0] * (kernel[0] - 1) + 1 or width + 2 * padding[1] < dilation[1] * (kernel[1] - 1) + 1:
        return
    module = torch.nn.Conv2d(groups * cin, groups * cout, kernel, stride, padding, dilation, groups, bias)
    shape = (batch, groups * cin, height, width)
    attrs = {
        "out_channels": groups * cout, "kernel": kernel, "stride": stride, "padding": (*padding, *padding), "dilation": dilation,
        "groups": groups, "bias": bias,
    }  # fmt: skip
    conv = kind_of("conv")
    out = conv.shape([shape], attrs)
    assert out == tuple(module(torch.zeros(shape)).shape)
    assert conv.weights([shape], attrs) == {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert conv.macs([shape], attrs, out) == prod(out) * module.weight[0].numel()


ATTRS = {"out_channels": 12, "kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": False}


@pytest.mark.parametrize(("groups", "expected"), [(1, 1), (4, 2), (8, 4)])
def test_scaled_convolution_keeps_the_size_of_its_groups(groups, expected):
    found = kind_of("conv").scaled(ATTRS | {"groups": groups}, Narrowed(before=8, after=4, out=6, position=lambda channel: channel))
    assert (found["out_channels"], found["groups"]) == (6, expected)
    assert {**found, "out_channels": 12, "groups": groups} == ATTRS | {"groups": groups}
