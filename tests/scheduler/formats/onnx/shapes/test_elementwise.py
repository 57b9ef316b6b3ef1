"""Shapes and work of operators that compute, against ONNX Runtime."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.node import KnownTensor, ShapeNode
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, rule, shapes, sizes, whole

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


def typed(*types):
    return ShapeNode(tuple(KnownTensor(X, item) for item in types), {})


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


channelled = arrays.array_shapes(min_dims=3, max_dims=5, max_side=4)


@given(shapes, st.booleans(), st.integers(1, 3), st.data())
def test_layers_are_normalised_from_any_axis_on_with_their_statistics(shape, bias, results, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    weights = [reals(shape[axis:])] * (2 if bias else 1)
    agrees(Case("LayerNormalization", [reals(shape), *weights], {"axis": axis}, results=results))


@given(channelled)
def test_channels_are_normalised_by_statistics_of_their_own(shape):
    agrees(Case("InstanceNormalization", [reals(shape), reals(shape[1:2]), reals(shape[1:2])]))
    agrees(Case("BatchNormalization", [reals(shape), *[reals(shape[1:2])] * 4]))


@given(channelled, st.integers(1, 3))
def test_groups_of_channels_are_normalised_with_a_weight_for_each_channel(shape, groups):
    wide = (shape[0], shape[1] * groups, *shape[2:])
    agrees(Case("GroupNormalization", [reals(wide), *[reals(wide[1:2])] * 2], {"num_groups": groups}, opset=21))


@given(arrays.array_shapes(min_dims=4, max_dims=4, max_side=4), st.integers(0, 2))
def test_neighbouring_channels_are_normalised(shape, half):
    agrees(Case("LRN", [reals(shape)], {"size": 2 * half + 1}))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("BatchNormalization", node([X, (3,), (3,), (3,), (4,)]), "one number a channel"),
        ("BatchNormalization", node([X, (3,), (3,), (3,), (3,)], {"training_mode": 1}), "training"),
        ("LayerNormalization", node([X, (3,)]), "do not fit|do not go together"),
        ("LayerNormalization", node([X, (1, 1, 1, 8)]), "do not fit"),
        ("LayerNormalization", node([X, (8,)], {"axis": 4}), "its axis is 4"),
        ("InstanceNormalization", node([X, (3,), (8,)]), "one number a channel"),
        ("InstanceNormalization", node([(1, 3), (3,), (3,)]), "has the shape"),
        ("GroupNormalization", node([X, (3,), (3,)], {"num_groups": 2}), "2 groups do not divide"),
        ("GroupNormalization", node([X, (3,), (3,)]), "0 groups do not divide"),
        ("GroupNormalization", node([X, (3,), (1,)], {"num_groups": 3}), "one number a channel"),
        ("LRN", node([X], {"size": 0}), "its size is 0"),
        ("Softmax", node([X], {"axis": 7}), "its axis is 7"),
        ("Softmax", node([X], {"axis": b"one"}), "no whole number"),
    ],
)
def test_normalisation_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


#: Pairs of shapes that numpy's matmul takes, with batches that broadcast and vectors.
PRODUCTS = arrays.mutually_broadcastable_shapes(signature="(n?,k),(k,m?)->(n?,m?)", max_dims=2, max_side=4)


@given(PRODUCTS)
def test_product_has_the_shape_that_the_runtime_gives_it(drawn):
    agrees(Case("MatMul", [reals(shape) for shape in drawn.input_shapes]))


def test_work_is_counted_in_multiply_accumulates():
    assert rule("Gemm", [(2, 5), (7, 5)], {"transB": 1}).work == 2 * 5 * 7
    assert rule("MatMul", [(3, 1, 4, 5), (2, 5, 6)]).work == 3 * 2 * 4 * 5 * 6
    assert rule("MatMul", [(5,), (5,)]).work == 5
    assert rule("Einsum", [(3, 4), (4, 5)], {"equation": b"ab,bc->"}).work == 3 * 4 * 5


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Gemm", ([(2, 5), (7, 5)],), "5 columns meet 7 rows"),
        ("Gemm", ([(2, 5), (5, 7), (3,)],), "its bias|do not go together"),
        ("MatMul", ([(2, 5), (7, 5)],), "5 columns meet 7 rows"),
        ("MatMul", ([(2, 5), ()],), "a single number"),
        ("MatMul", ([(2, 3, 5), (4, 5, 6)],), "do not go together"),
        ("MatMul", ([(2, 5)],), "it has 1 inputs"),
        ("Einsum", ([(2, 5)], {"equation": b"ab->a"}), "1 inputs"),
        ("Einsum", ([(2, 5), (5, 3)], {"equation": b"ab,bc"}), "its equation is"),
        ("Einsum", ([(2, 5), (4, 3)], {"equation": b"ab,bc->ac"}), "`b` has two sizes"),
    ],
)
def test_product_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)


@given(shapes)
def test_bytes_without_a_zero_point_have_no_sign(shape):
    agrees(Case("QuantizeLinear", [reals(shape), reals(())], stored=(1,)))
    agrees(Case("DequantizeLinear", [np.ones(shape, np.int32), reals(())], stored=(1,)))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("QuantizeLinear", node([X, (3, 3), (3, 3)]), "its scales have the shape"),
        ("QuantizeLinear", node([X, (3,)], {"block_size": 2}), "for each block"),
        ("QuantizeLinear", ShapeNode((KnownTensor(X), KnownTensor(()), KnownTensor((), 7)), {}), "no byte"),
        ("DequantizeLinear", node([X, ()]), "of type float"),
        ("DequantizeLinear", ShapeNode((KnownTensor(X, 3), KnownTensor((), 7)), {}), "no reals"),
    ],
)
def test_scales_that_do_not_fit_are_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


#: Gates and states by operator.
KINDS = {"LSTM": (4, 2), "GRU": (3, 1), "RNN": (1, 1)}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def recurrent_shapes(op, steps, batch, width, size, options):
    """Shapes of everything that a layer may read; its lengths are left out."""
    gates, states = KINDS[op]
    state = (options, batch, size)
    return [
        (steps, batch, width),
        (options, gates * size, width),
        (options, gates * size, size),
        (options, 2 * gates * size),
        None,
        *[state] * states,
    ]


@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(DIRECTIONS)), sizes, sizes, sizes, sizes, st.booleans(), st.data())
def test_layer_gives_all_outputs_and_the_last_states(op, direction, steps, batch, width, size, bare, data):
    given_shapes = recurrent_shapes(op, steps, batch, width, size, DIRECTIONS[direction])
    inputs = [None if shape is None else reals(shape) for shape in (given_shapes[:3] if bare else given_shapes)]
    results = data.draw(st.integers(1, 1 + KINDS[op][1]))
    agrees(Case(op, inputs, {"direction": direction, "hidden_size": size}, results=results))


@pytest.mark.parametrize(
    ("changed", "attrs", "problem"),
    [
        ({0: (7, 3)}, {}, "its input has the shape"),
        ({1: (1, 20, 4)}, {}, "its weights have the shape"),
        ({2: (1, 19, 5)}, {}, "its recurrent weights have the shape"),
        ({3: (1, 20)}, {}, "its input 3 is not of the shape"),
        ({4: (2,)}, {}, "lengths of their own"),
        ({6: (1, 2, 4)}, {}, "its input 6 is not of the shape"),
        ({}, {"hidden_size": 0}, "its hidden_size is 0"),
        ({}, {"layout": 1}, "its batch comes first"),
        ({}, {"direction": b"sideways"}, "its direction is `sideways`"),
    ],
)
def test_layer_that_does_not_fit_is_refused(changed, attrs, problem):
    result = recurrent_shapes("LSTM", 7, 2, 3, 5, 1)
    for i, shape in changed.items():
        result[i] = shape
    with pytest.raises(StretchError, match=problem):
        rule("LSTM", result, {"hidden_size": 5, **attrs})
