import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import Node, Tensor
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, shapes, whole

X = (1, 3, 8, 8)

indices = arrays.array_shapes(min_dims=0, max_dims=3, max_side=4)


def zeros(shape, kind=np.int64):
    """Indices that are in any tensor."""
    return np.zeros(shape, kind)


@given(shapes, indices, st.sampled_from([np.int32, np.int64]), st.booleans(), st.data())
def test_gathered_slices_take_the_place_of_the_axis(shape, places, kind, stored, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    agrees(Case("Gather", [reals(shape), zeros(places, kind)], {"axis": axis}, stored=(1,) if stored else ()))


@given(shapes, st.data())
def test_gathered_and_scattered_elements_have_the_shape_of_their_indices(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    places = tuple(data.draw(st.integers(1, n)) for n in shape)
    more = (*places[:axis], data.draw(st.integers(1, 6)), *places[axis + 1 :])
    agrees(Case("GatherElements", [reals(shape), zeros(more)], {"axis": axis - len(shape)}))
    agrees(Case("ScatterElements", [reals(shape), zeros(places), reals(places)], {"axis": axis}))


@given(shapes, st.data())
def test_tuples_of_indices_point_at_what_is_left_of_the_shape(shape, data):
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    between = data.draw(arrays.array_shapes(min_dims=0, max_dims=2, max_side=3))
    agrees(Case("GatherND", [reals(shape), zeros((*shape[:batch], *between, depth))], {"batch_dims": batch}))


@given(shapes, st.data())
def test_written_slices_leave_the_shape(shape, data):
    depth = data.draw(st.integers(1, len(shape)))
    between = data.draw(arrays.array_shapes(min_dims=0, max_dims=2, max_side=3))
    agrees(Case("ScatterND", [reals(shape), zeros((*between, depth)), reals((*between, *shape[depth:]))]))


@given(shapes, st.integers(1, 6), st.data())
def test_one_hot_adds_an_axis(shape, depth, data):
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    agrees(Case("OneHot", [zeros(shape), whole(depth), reals((2,))], {"axis": axis}, stored=(1,)))


def whole_of(shape):
    return Tensor(shape, 7)


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Gather", node([X, (2,)]), "its input 1 is of type float"),
        ("Gather", node([X, (1,)], {"axis": 1}, {1: [3]}), "it reads beyond an axis of 3"),
        ("Gather", node([X, (1,)], {"axis": 4}, {1: [0]}), "its axis is 4"),
        ("GatherElements", Node((Tensor(X), whole_of((1, 3))), {}), "its indices have the shape"),
        ("GatherElements", Node((Tensor(X), whole_of((1, 4, 8, 8))), {"axis": 2}), "its indices have the shape"),
        ("GatherND", Node((Tensor(X), whole_of((2, 5))), {}), "its indices have the shape"),
        ("GatherND", Node((Tensor(X), whole_of(())), {}), "a single number"),
        ("GatherND", Node((Tensor(X), whole_of((2, 1))), {"batch_dims": 1}), "batch_dims"),
        ("GatherND", Node((Tensor(X), whole_of((1, 3))), {"batch_dims": -1}), "batch_dims"),
        ("ScatterND", Node((Tensor(X), whole_of((2, 1)), Tensor((2, 3, 8))), {}), "it writes"),
        ("ScatterND", Node((Tensor(X), whole_of((2, 4)), whole_of((2,))), {}), "it writes"),
        ("ScatterElements", Node((Tensor(X), whole_of(X), Tensor((1, 3, 8, 7))), {}), "it writes"),
        ("OneHot", node([X, (1,), (2,)], {}, {1: [0]}), "no depth"),
        ("OneHot", node([X, (1,), (3,)], {}, {1: [2]}), "not two values"),
        ("OneHot", node([X, (1,), (2,)], {"axis": 5}, {1: [2]}), "its axis is 5"),
    ],
)
def test_index_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)
