import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, shapes

X = (1, 3, 8, 8)

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
        ("BatchNormalization", node([X, (3,), (3,), (3,), (3,)], {}, {}, 3), "training"),
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
