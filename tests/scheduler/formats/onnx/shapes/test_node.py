import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.node import Node, Tensor, broadcast
from tests.scheduler.formats.onnx.shapes.oracle import node

X = (1, 3, 8, 8)


@given(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3), arrays.array_shapes(min_dims=0, max_dims=3, max_side=3))
def test_shapes_go_together_where_numpy_says_so(one, other):
    try:
        wanted = np.broadcast_shapes(one, other)
    except ValueError:
        with pytest.raises(StretchError, match="do not go together"):
            broadcast([one, other])
    else:
        assert broadcast([one, other]) == wanted


def test_sizes_are_short_lists_of_whole_numbers():
    assert node([X, ()], {}, {1: [3, 4]}).numbers(1) == [3, 4]
    for wrong in (Tensor((2,), 1, (1.0, 2.0)), Tensor((1, 2), 7, (1, 2))):
        with pytest.raises(StretchError, match="no list of whole numbers"):
            Node((wrong,), {}).numbers(0)
    with pytest.raises(StretchError, match="no short constant"):
        Node((Tensor((99,), 7),), {}).numbers(0)
    with pytest.raises(StretchError, match="has 2 numbers, one is needed"):
        node([X, ()], {}, {1: [3, 4]}).number(1)


def test_attribute_of_another_type_is_refused():
    with pytest.raises(StretchError, match="its group is no whole number"):
        node([X], {"group": b"2"}).whole("group", 1)
    with pytest.raises(StretchError, match="its mode is no word"):
        node([X], {"mode": 2}).word("mode", "nearest")
    assert node([X], {"mode": b"\xff"}).word("mode", "nearest") == "\N{REPLACEMENT CHARACTER}"
