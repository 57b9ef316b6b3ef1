import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from predictors.operators import kind_of, kinds
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.elementwise import RULES as OWN
from scheduler.formats.onnx.shapes.node import Node, Tensor
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, rule, shapes

X = (1, 3, 8, 8)

ALONE = sorted(
    {"Abs", "Acos", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Exp", "Floor", "Identity", "IsInf", "IsNaN"}
    | {"Log", "Neg", "Reciprocal", "Round", "Selu", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "ThresholdedRelu"}
)
OF_REALS = ["Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum"]


@given(st.data())
@pytest.mark.parametrize("op", [*ALONE, "Acosh"])
def test_operator_of_one_tensor_keeps_its_shape(op, data):
    agrees(Case(op, [reals(data.draw(shapes)) + (op == "Acosh")]))


@given(arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
@pytest.mark.parametrize("op", OF_REALS)
def test_operator_of_two_tensors_broadcasts_as_the_runtime_does(op, drawn):
    agrees(Case(op, [reals(shape) for shape in drawn.input_shapes]))


@given(st.integers(1, 5).flatmap(lambda n: arrays.mutually_broadcastable_shapes(num_shapes=n, max_dims=4, max_side=3)))
@pytest.mark.parametrize("op", ["Max", "Mean", "Min", "Sum"])
def test_operator_of_any_number_of_tensors_broadcasts_them_all(op, drawn):
    agrees(Case(op, [reals(shape) for shape in drawn.input_shapes]))


@given(arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_operator_of_truths_makes_truths(op, drawn):
    agrees(Case(op, [np.ones(shape, bool) for shape in drawn.input_shapes]))


@given(arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4), st.sampled_from([np.int32, np.int64]))
@pytest.mark.parametrize("op", ["Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Less", "Mod", "Mul", "Sub"])
def test_operator_of_whole_numbers_keeps_them_whole(op, drawn, kind):
    agrees(Case(op, [np.ones(shape, kind) for shape in drawn.input_shapes]))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64])
def test_bits_are_turned_in_whole_numbers_alone(kind):
    agrees(Case("BitwiseNot", [np.ones((2, 3), kind)]))
    with pytest.raises(StretchError, match="of type float"):
        rule("BitwiseNot", [X])


@given(arrays.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3), st.sampled_from([np.float32, np.int64]))
def test_choice_broadcasts_condition_and_both_values(drawn, kind):
    chosen, one, other = drawn.input_shapes
    agrees(Case("Where", [np.ones(chosen, bool), np.ones(one, kind), np.ones(other, kind)]))


@given(shapes, st.sampled_from([np.float32, np.int32, np.int64, bool]), st.sampled_from([1, 6, 7, 9]))
def test_cast_makes_the_type_that_it_states(shape, kind, to):
    agrees(Case("Cast", [np.ones(shape, kind)], {"to": to}))


def test_cast_of_a_short_constant_keeps_its_whole_numbers():
    def cast(*values, to):
        return OWN["Cast"](Node((Tensor((len(values),), 1, values),), {"to": to})).results[0].values

    assert cast(2.5, -1.0, to=7) == (2, -1)
    assert cast(0.0, 3.0, to=9) == (False, True)
    assert cast(float("nan"), to=7) is None
    assert cast(float("-inf"), to=1) == (float("-inf"),)


@given(shapes, st.booleans(), st.booleans())
def test_clip_keeps_the_shape_whichever_bound_it_has(shape, low, high):
    bounds = [np.float32(n) if there else None for n, there in ((-1, low), (1, high))]
    agrees(Case("Clip", [reals(shape), *[None if b is None else np.array(b) for b in bounds]], stored=(1, 2)))


@given(shapes)
def test_negation_of_truths_is_one_of_truths(shape):
    agrees(Case("Not", [np.ones(shape, bool)]))


@given(shapes, st.data())
def test_remainder_of_reals_and_slopes_broadcast_into_the_first(shape, data):
    other = tuple(n if data.draw(st.booleans()) else 1 for n in shape)
    agrees(Case("Mod", [reals(shape), reals(other)], {"fmod": 1}))
    agrees(Case("PRelu", [reals(shape), reals(other)]))


def test_operator_that_a_kind_alone_is_written_by_has_the_shape_of_that_kind():
    stated = {name: kind for kind in kinds for name in kind_of(kind).nodes}
    assert {"Relu": "relu", "Tanh": "tanh"}.items() <= stated.items()
    for name, kind in stated.items():
        inputs = [X] * kind_of(kind).min_inputs
        assert RULES[name](node(inputs)).shape == kind_of(kind).shape(inputs, {})


def test_work_is_an_operation_for_each_element_and_tensor():
    assert rule("Relu", [X]).work == 3 * 64
    assert rule("Sum", [X, X, (1,)]).work == 3 * 3 * 64


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
