"""Networks that are built of calls, with windows and sampled pixels."""

from math import inf

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import Builder
from stretch.models.sampling import MAX_SIDE, between
from stretch.models.windows import convolved, max_pooled, mean_pooled, nonnegative, padded, unpadded
from stretch.operators.convolution import PaddedConv2d
from stretch.operators.pooling import PaddedPool

pytestmark = pytest.mark.torch


def test_tensor_that_is_too_large_is_refused_without_being_made():
    b = Builder((1, 64, 64, 64))
    with pytest.raises(StretchError, match="elements, 1 to"):
        b.method("repeat", b.input, 1, 64, 64, 64)


@pytest.mark.parametrize(
    "name",
    [
        "graph.fc",
        "train.fc",
        "a.train.fc",
        "a.forward",
        ".",
        "0.0",
        "a..b",
        "x." * 99 + "y",
        "offset.fc",
        "block-1.a",
        'a").b',
        "a\n.b",
        "-",
    ],
)
def test_nested_names_never_hide_what_torch_needs(name):
    b = Builder((1, 3), nested=True)
    x = b.call(torch.add, b.input, b.tensor(torch.ones(3), "offset"))
    made = b.finish(b.module(nn.Linear(3, 2), x, name), "Net")
    assert made(torch.zeros(1, 3)).shape == (1, 2)
    assert made.train().eval().graph is not None


SHAPE = (1, 3, 7, 6)
SIDES = st.tuples(st.integers(0, 2), st.integers(0, 2))


def image():
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def run(builder, node):
    """What a network computes for the image, and its modules."""
    made = builder.finish(node, "Net")
    with torch.no_grad():
        return made(image()), [type(part) for part in made.children()]


def around(x, before, behind, value):
    return F.pad(x, (before[1], behind[1], before[0], behind[0]), value=value)


@given(SIDES, SIDES, SIDES, SIDES, st.integers(1, 3), st.integers(1, 3))
def test_padding_before_a_convolution_and_its_own_are_one(outer, beyond, before, behind, stride, kernel):
    weight = np.random.default_rng(1).normal(size=(4, 3, kernel, 2)).astype(np.float32)
    b = Builder(SHAPE)
    x = padded(b, b.input, outer, beyond)
    node = convolved(b, x, weight, None, stride=(stride, 1), dilation=(1, 1), groups=1, before=before, behind=behind, name="conv")
    got, kinds = run(b, node)
    whole = around(around(image(), outer, beyond, 0.0), before, behind, 0.0)
    want = F.conv2d(whole, torch.from_numpy(weight), stride=(stride, 1))
    assert kinds in ([nn.Conv2d], [PaddedConv2d])
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 1e-4 * max(1.0, float(want.abs().max()))


@given(SIDES, SIDES, st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_pools_with_any_padding_are_those_of_the_padded_image(before, behind, stride, kernel, largest):
    # a window of padding alone has neither a largest element nor a mean
    assume(max(*before, *behind) < kernel)
    b = Builder(SHAPE)
    common = {"kernel": (kernel, kernel), "stride": (stride, stride), "before": before, "behind": behind, "name": "pool"}
    if largest:
        node = max_pooled(b, b.input, dilation=(1, 1), **common)
        want = F.max_pool2d(around(image(), before, behind, -inf), kernel, stride)
    else:
        node = mean_pooled(b, b.input, counted=True, **common)
        want = F.avg_pool2d(around(image(), before, behind, 0.0), kernel, stride)
    got, kinds = run(b, node)
    assert kinds in ([nn.MaxPool2d], [nn.AvgPool2d], [PaddedPool])
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 1e-4


def test_groups_that_do_not_fit_are_refused():
    b = Builder(SHAPE)
    with pytest.raises(StretchError, match="its 2 groups of weights"):
        convolved(
            b,
            b.input,
            np.zeros((4, 3, 1, 1), np.float32),
            None,
            stride=(1, 1),
            dilation=(1, 1),
            groups=2,
            before=(0, 0),
            behind=(0, 0),
            name="c",
        )


def test_padding_by_another_number_stays():
    b = Builder(SHAPE)
    x = padded(b, b.input, (1, 1), (1, 1), 2.0)
    assert unpadded(x, (0, 0), (0, 0), [0.0]) == (x, [0, 0], [0, 0])
    low = padded(b, b.input, (1, 0), (0, 2), -3.4e38)
    assert unpadded(low, (0, 0), (1, 0), [-inf]) == (b.input, [1, 0], [1, 2])


def test_input_is_not_below_zero_only_where_that_is_said():
    b = Builder(SHAPE)
    assert nonnegative(b.input, b, given=True)
    assert not nonnegative(b.input, b, given=False)
    assert nonnegative(b.call(torch.relu, b.input), b, given=False)
    assert not nonnegative(b.call(torch.cat, [b.input, b.call(torch.relu, b.input)], 1), b, given=False)
    assert not nonnegative(b.stored(np.ones(3, np.float32), "one"), b, given=True)


PLACES = st.lists(st.floats(-2, 8, width=32), min_size=1, max_size=9)


@given(PLACES, st.integers(1, 6))
def test_pixels_between_others_are_those_of_numpy(places, old):
    made = between(np.array(places), old)
    values = np.random.default_rng(0).normal(size=old)
    np.testing.assert_allclose(made @ values, np.interp(places, np.arange(old), values), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made.sum(1), 1, rtol=1e-5)


def test_matrix_that_would_be_too_large_is_refused():
    with pytest.raises(StretchError, match="coordinates that torch has not"):
        between(np.zeros(MAX_SIDE + 1), 2)
