import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.elementwise import RULES as OWN
from scheduler.formats.onnx.shapes.node import Node, Tensor
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals

X = (1, 3, 8, 8)

OF_REALS = ["Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum"]


@given(arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
@pytest.mark.parametrize("op", OF_REALS)
def test_operator_of_two_tensors_broadcasts_as_the_runtime_does(op, drawn):
    agrees(Case(op, [reals(shape) for shape in drawn.input_shapes]))


@given(arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4), st.sampled_from([np.int32, np.int64]))
@pytest.mark.parametrize("op", ["Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Less", "Mod", "Mul", "Sub"])
def test_operator_of_whole_numbers_keeps_them_whole(op, drawn, kind):
    agrees(Case(op, [np.ones(shape, kind) for shape in drawn.input_shapes]))


@given(arrays.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3), st.sampled_from([np.float32, np.int64]))
def test_choice_broadcasts_condition_and_both_values(drawn, kind):
    chosen, one, other = drawn.input_shapes
    agrees(Case("Where", [np.ones(chosen, bool), np.ones(one, kind), np.ones(other, kind)]))


def test_cast_of_a_short_constant_keeps_its_whole_numbers():
    def cast(*values, to):
        return OWN["Cast"](Node((Tensor((len(values),), 1, values),), {"to": to})).results[0].values

    assert cast(2.5, -1.0, to=7) == (2, -1)
    assert cast(0.0, 3.0, to=9) == (False, True)
    assert cast(float("nan"), to=7) is None
    assert cast(float("-inf"), to=1) == (float("-inf"),)


def typed(*types):
    return Node(tuple(Tensor(X, each) for each in types), {})


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Relu", node([]), "it has 0 inputs"),
        ("Relu", node([None]), "it has no input 0"),
        ("Exp", node([X, X]), "it has 2 inputs"),
        ("Exp", typed(7), "its input 0 is of type int64"),
        ("Cast", node([X], {"to": 16}), "casts to type 16"),
        ("Cast", node([X]), "casts to type 0"),
        ("Add", node([]), "no inputs"),
        ("Add", node([X]), "it has 1 inputs"),
        ("Add", node([X, (1, 5, 8, 8)]), "do not go together"),
        ("Add", typed(1, 7), "differ in their element types"),
        ("Add", typed(9, 9), "of type bool"),
        ("And", typed(1, 1), "of type float"),
        ("Mod", node([X, X]), "without fmod"),
        ("Where", node([X, X, X]), "its input 0 is of type float"),
        ("Where", typed(9, 1, 7), "two element types"),
        ("PRelu", node([(3, 1, 1), X]), "slopes"),
        ("Clip", node([X, (1,)]), "no single numbers"),
    ],
)
def test_operator_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)
