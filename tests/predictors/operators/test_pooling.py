"""Pooling, with torch as the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.operators import kind_of

pair = st.tuples(st.integers(1, 5), st.integers(1, 5))
strides = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.torch
@given(st.sampled_from(["max_pool", "avg_pool"]), st.integers(1, 20), st.integers(1, 20), pair, strides, st.booleans(), st.data())
def test_pooling_agrees_with_torch_also_in_ceil_mode(kind, height, width, kernel, stride, ceil_mode, data):
    import torch

    padding = (data.draw(st.integers(0, kernel[0] // 2)), data.draw(st.integers(0, kernel[1] // 2)))
    if height + 2 * padding[0] < kernel[0] or width + 2 * padding[1] < kernel[1]:
        return
    pool = torch.nn.functional.max_pool2d if kind == "max_pool" else torch.nn.functional.avg_pool2d
    expected = pool(torch.zeros(1, 3, height, width), kernel, stride, padding, ceil_mode=ceil_mode)
    attrs = {"kernel": kernel, "stride": stride, "padding": (*padding, *padding), "ceil_mode": ceil_mode}
    assert kind_of(kind).shape([(1, 3, height, width)], attrs) == tuple(expected.shape)


@pytest.mark.parametrize("name", ["max_pool", "global_avg_pool"])
def test_pooling_of_a_vector_is_refused(name):
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0,) * 4, "keepdims": True}
    with pytest.raises(ValueError, match="N×C×H×W"):
        kind_of(name).shape([(1, 6)], attrs)
