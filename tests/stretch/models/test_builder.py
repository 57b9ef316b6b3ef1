"""Networks that are built of calls, with windows and sampled pixels."""

from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import MAX_SIDE, Builder, between
from stretch.models.onnx.moving import Window, nonnegative
from stretch.models.onnx.network import RULES, OnnxSite

pytestmark = pytest.mark.torch


def test_tensor_that_is_too_large_is_refused_without_being_made():
    b = Builder((1, 64, 64, 64))
    with pytest.raises(StretchError, match="elements, 1 to"):
        b.method("repeat", b.input, 1, 64, 64, 64)


@pytest.mark.parametrize("name", ["graph", "train", "forward", ".", "0.0", "x." * 99 + "y", "offset", 'a").b', "a\n.b", "-"])
def test_names_never_hide_what_torch_needs(name):
    b = Builder((1, 3))
    x = b.call(torch.add, b.input, b.stored(np.ones(3, np.float32), "offset"))
    finish = b.finish(b.module(nn.Linear(3, 2), x, name), "Net")
    assert finish(torch.zeros(1, 3)).shape == (1, 2)
    assert finish.train().eval().graph is not None


SHAPE = (1, 3, 7, 6)


def test_groups_that_do_not_fit_are_refused():
    b = Builder(SHAPE)
    with pytest.raises(StretchError, match="its 2 groups of weights"):
        RULES["Conv"](OnnxSite([b.input, np.zeros((4, 3, 1, 1), np.float32)], "Conv", "c", {"group": 2}, 1, 22, b))


def window(x, before=(0, 0), behind=(0, 0)):
    return Window(x, (3, 3), (1, 1), (1, 1), before, behind)


def test_padding_by_another_number_stays():
    b = Builder(SHAPE)
    x = window(b.input, (1, 1), (1, 1)).padded(b, 2.0)
    assert window(x).unpadded(0.0) == window(x)
    low = window(b.input, (1, 0), (0, 2)).padded(b, -3.4e38)
    assert window(low, behind=(1, 0)).unpadded(-inf) == window(b.input, (1, 0), (1, 2))


def test_input_is_not_below_zero_only_where_that_is_said():
    b = Builder(SHAPE)
    assert nonnegative(b.input, b, of_input=True)
    assert not nonnegative(b.input, b, of_input=False)
    assert nonnegative(b.call(torch.relu, b.input), b, of_input=False)
    assert not nonnegative(b.call(torch.cat, [b.input, b.call(torch.relu, b.input)], 1), b, of_input=False)
    assert not nonnegative(b.stored(np.ones(3, np.float32), "one"), b, of_input=True)


PLACES = st.lists(st.floats(-2, 8, width=32), min_size=1, max_size=9)


@given(PLACES, st.integers(1, 6))
def test_pixels_between_others_are_those_of_numpy(places, old):
    built = between(np.array(places), old)
    values = np.random.default_rng(0).normal(size=old)
    np.testing.assert_allclose(built @ values, np.interp(places, np.arange(old), values), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(built.sum(1), 1, rtol=1e-5)


def test_matrix_that_would_be_too_large_is_refused():
    with pytest.raises(StretchError, match="coordinates that torch has not"):
        between(np.zeros(MAX_SIDE + 1), 2)
