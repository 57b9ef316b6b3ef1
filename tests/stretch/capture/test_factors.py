"""Axes that are reshaped, permuted and cut, and the views that lead back to channels."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.capture.aten import Axes, Factor, common, map_axes, rearrangement

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.capture.trace import capture_traced as capture  # noqa: E402


def elements(axes, shape):
    """What the axes say of a map whose elements are numbered."""
    n, c, h, w = shape
    numbers = np.arange(n * c * h * w).reshape(n, c, h * w)
    stride = {"image": c * h * w, "channel": h * w, "pixel": 1}
    full = np.full(axes.shape, axes.first * h * w)
    for place, axis in enumerate(axes.axes):
        inside = np.zeros(1, int)
        for factor in axis:
            inside = np.add.outer(inside, np.arange(factor.size) * factor.step * stride[factor.of]).ravel()
        full = full + inside.reshape([-1 if i == place else 1 for i in range(len(axes.axes))])
    return numbers.ravel()[full]


def factorisations(size):
    return [(a, b, size // a // b) for a in range(1, size + 1) if size % a == 0 for b in range(1, size // a + 1) if size // a % b == 0]


@given(st.data())
def test_reshaped_permuted_and_cut_axes_say_where_each_element_lies(data):
    shape = data.draw(st.sampled_from([(1, 12, 4, 6), (2, 8, 2, 2), (1, 6, 1, 9)]))
    axes, array = map_axes(shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        match data.draw(st.sampled_from(["reshape", "permute", "cut"])):
            case "permute":
                order = data.draw(st.permutations(range(array.ndim)))
                axes, array = axes.permuted(order), array.transpose(order)
            case "reshape":
                wanted = [data.draw(st.sampled_from(factorisations(size))) for size in array.shape][:4]
                wanted = [*itertools.chain(*wanted), *array.shape[4:]]
                reshaped = axes.reshaped(tuple(wanted))
                if reshaped is not None:
                    axes, array = reshaped, array.reshape(wanted)
                reshaped = axes.reshaped((array.shape[0], int(np.prod(array.shape[1:]))))
                if reshaped is not None and data.draw(st.booleans()):
                    axes, array = reshaped, array.reshape(array.shape[0], -1)
            case "cut":
                axis = data.draw(st.integers(0, array.ndim - 1))
                start = data.draw(st.integers(0, array.shape[axis] - 1))
                size = data.draw(st.integers(1, array.shape[axis] - start))
                reshaped = axes.cut(axis, start, size)
                if reshaped is not None:
                    axes, array = reshaped, array.take(range(start, start + size), axis)
    assert axes.shape == array.shape
    np.testing.assert_array_equal(elements(axes, shape), array)


def test_cut_within_a_head_or_of_pixels_is_none():
    axes = map_axes((1, 12, 2, 2)).reshaped((1, 12, 4))
    assert axes is not None
    assert axes.cut(2, 0, 2) is None
    heads = Axes(((Factor("channel", 3, 1), Factor("channel", 2, 6)),))
    assert heads.cut(0, 1, 3) is None


def test_factors_of_one_size_come_in_pairs():
    twelve, parts = (Factor("pixel", 12, 1),), (Factor("pixel", 3, 1), Factor("pixel", 4, 3))
    pairs = common(twelve, parts)
    assert pairs == [(Factor("pixel", 3, 4), Factor("pixel", 3, 1)), (Factor("pixel", 4, 1), Factor("pixel", 4, 3))]
    assert common(twelve, (Factor("pixel", 8, 1),)) is None


@given(st.permutations(range(3)), st.sampled_from([(2, 3, 4), (5, 1, 2), (3, 3, 3)]))
def test_rearrangement_moves_pixels_to_where_they_are_wanted(order, split):
    array = np.arange(np.prod(split))
    seen = map_axes((1, 1, 1, len(array))).reshaped((1, 1, *split))
    assert seen is not None
    wanted = seen.permuted((0, 1, *[axis + 2 for axis in order]))
    steps = rearrangement(list(zip(wanted.factors("pixel"), wanted.in_order().factors("pixel"), strict=True)))
    assert steps is not None
    np.testing.assert_array_equal(array.reshape(steps[0]).transpose(steps[1]).ravel(), array.reshape(split).transpose(order).ravel())


def test_steps_that_leave_pixels_out_are_no_rearrangement():
    assert rearrangement([(Factor("pixel", 4, 2), Factor("pixel", 4, 1))]) is None


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.function = function

    def forward(self, x):
        return self.function(self.conv(x))


def graph(function):
    return capture(Apply(function).eval(), (1, 3, 4, 4), "net").graph


def shuffle(x):
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def test_view_transpose_view_is_a_channel_shuffle():
    op = graph(shuffle).ops[-1]
    assert (op.kind, op.attrs["groups"]) == ("channel_shuffle", 2)


def test_permutation_to_channels_last_and_back_leaves_nothing():
    assert [
        op.kind for op in graph(lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2)).ops if op.kind not in ("input", "conv", "identity")
    ] == []


def test_chunks_along_channels_are_slices():
    def swapped(x):
        first, second = torch.chunk(x, 2, 1)
        return torch.cat([second, first], 1)

    result = graph(swapped)
    assert sorted((op.attrs["start"], op.attrs["stop"]) for op in result.ops if op.kind == "slice") == [(0, 4), (4, 8)]


@pytest.mark.parametrize("function", [lambda x: x.permute(0, 2, 3, 1), lambda x: x.transpose(2, 3), lambda x: x.view(1, 8, 16)])
def test_view_that_never_comes_back_to_channels_first_is_refused(function):
    with pytest.raises(StretchError, match=r"cannot (be captured|capture node)"):
        graph(lambda x: torch.relu(function(x)))
