import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, reals, rule, shapes, whole

X = (1, 3, 8, 8)

REDUCED = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@st.composite
def axes_of(draw, shape):
    """Some of the axes, counted from the first or from the last."""
    places = draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    return [i - len(shape) if draw(st.booleans()) else i for i in places]


@pytest.mark.representatives(9)
@given(shapes, st.integers(0, 1), st.integers(0, 1), st.data())
@pytest.mark.parametrize("op", REDUCED)
def test_axes_that_are_a_constant_are_reduced(op, shape, keep, nothing, data):
    axes = data.draw(axes_of(shape))
    agrees(Case(f"Reduce{op}", [reals(shape), whole(*axes)], {"keepdims": keep, "noop_with_empty_axes": nothing}, stored=(1,)))


@given(shapes, st.data())
def test_largest_come_with_their_places(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    count = data.draw(st.integers(1, shape[axis]))
    agrees(Case("TopK", [reals(shape), whole(count)], {"axis": axis}, stored=(1,), results=2))


@given(shapes, st.data())
def test_running_sum_keeps_the_shape(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    agrees(Case("CumSum", [reals(shape), np.array(axis)], stored=(1,)))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("ReduceMean", ([X, (1,)], {}, {1: [4]}), "its axes is 4"),
        ("ReduceMean", ([X, (2,)], {}, {1: [1, -3]}), "there twice"),
        ("ReduceMean", ([X, (1,)],), "no short constant"),
        ("ReduceSum", ([X], {"axes": b"all"}), "its axes is no list"),
        ("ArgMax", ([X], {"axis": 4}), "its axis is 4"),
        ("TopK", ([X, (1,)], {"axis": 1}, {1: [4]}, 2), "it takes 4 of 3"),
        ("TopK", ([X, (2,)], {"axis": 1}, {1: [1, 1]}, 2), "has 2 numbers"),
        ("CumSum", ([X, (1,)], {}, {1: [-5]}), "its axes is -5"),
    ],
)
def test_reduction_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)
