import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.node import INDICES, Node, Tensor, broadcast, counted, distinct, like, moved
from tests.scheduler.formats.onnx.shapes.oracle import node

X = (1, 3, 8, 8)


def test_shapes_broadcast_as_numpy_has_it():
    assert broadcast([(2, 1, 3), (4, 1)]) == (2, 4, 3)
    assert broadcast([(), (1, 5)]) == (1, 5)


@given(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3), arrays.array_shapes(min_dims=0, max_dims=3, max_side=3))
def test_shapes_go_together_where_numpy_says_so(one, other):
    try:
        wanted = np.broadcast_shapes(one, other)
    except ValueError:
        with pytest.raises(StretchError, match="do not go together"):
            broadcast([one, other])
    else:
        assert broadcast([one, other]) == wanted


def test_input_that_is_left_out_is_none_wherever_it_stands():
    seen = node([X, None])
    assert (seen.optional(1), seen.optional(2), seen.tensor(0).size) == (None, None, 192)
    with pytest.raises(StretchError, match="it has no input 1"):
        seen.tensor(1)
    with pytest.raises(StretchError, match="its input 0 is of type float"):
        seen.tensor(0, INDICES)


def test_sizes_are_short_lists_of_whole_numbers():
    assert node([X, ()], {}, {1: [3, 4]}).numbers(1) == [3, 4]
    for wrong in (Tensor((2,), 1, (1.0, 2.0)), Tensor((1, 2), 7, (1, 2))):
        with pytest.raises(StretchError, match="no list of whole numbers"):
            Node((wrong,), {}).numbers(0)
    with pytest.raises(StretchError, match="no short constant"):
        Node((Tensor((99,), 7),), {}).numbers(0)
    with pytest.raises(StretchError, match="has 2 numbers, one is needed"):
        node([X, ()], {}, {1: [3, 4]}).number(1)


@pytest.mark.parametrize("wrong", [b"ab", [1], [1, 0], [1, 1 << 40], 3, [1, 2.0]])
def test_attribute_that_is_no_list_of_steps_is_refused(wrong):
    with pytest.raises(StretchError, match="its strides is"):
        node([X], {"strides": wrong}).ints("strides", (1, 1), 1)


def test_attribute_of_another_type_is_refused():
    with pytest.raises(StretchError, match="its group is no whole number"):
        node([X], {"group": b"2"}).whole("group", 1)
    with pytest.raises(StretchError, match="its mode is no word"):
        node([X], {"mode": 2}).word("mode", "nearest")
    assert node([X], {"mode": b"\xff"}).word("mode", "nearest") == "\N{REPLACEMENT CHARACTER}"


def test_axes_are_counted_from_both_ends():
    assert [counted(axis, 3) for axis in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    assert distinct([-1, 0], 3) == [2, 0]
    with pytest.raises(StretchError, match="its axis is 3, there are 3 axes"):
        counted(3, 3)
    with pytest.raises(StretchError, match="there twice"):
        distinct([2, -1], 3)


def test_result_keeps_the_element_type_and_what_only_moves_keeps_its_values():
    known = Tensor((2, 1), 7, (3, 4))
    assert like(known, 3).results == (Tensor((2, 1), 7),)
    assert like(known, 3).work == 6
    assert moved(known, [2]).results == (Tensor((2,), 7, (3, 4)),)
