"""Shapes of operators that move elements, and constants that give shapes, against ONNX Runtime."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.moving import SHORT, short
from scheduler.formats.onnx.shapes.node import KnownTensor, ShapeNode, broadcast
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, rule, shapes, sizes, whole

X = (1, 3, 8, 8)


@given(shapes, st.data())
def test_reshape_keeps_sizes_and_works_one_out(shape, data):
    wanted = list(data.draw(st.permutations(shape)))
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, len(shape) - 1))] = -1
    kept = list(shape)
    kept[0] = 0
    for sizes_ in (wanted, kept, [-1], [1, *wanted]):
        agrees(Case("Reshape", [reals(shape), whole(*sizes_)], stored=(1,)))
    agrees(Case("Reshape", [reals(shape), whole(*shape)], {"allowzero": 1}, stored=(1,)))


@given(sizes, sizes, sizes, sizes, st.integers(1, 3), st.sampled_from(["DCR", "CRD"]))
def test_blocks_and_channels_are_exchanged(n, c, h, w, block, mode):
    agrees(Case("DepthToSpace", [reals((n, c * block**2, h, w))], {"blocksize": block, "mode": mode}))
    agrees(Case("SpaceToDepth", [reals((n, c, h * block, w * block))], {"blocksize": block}))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Flatten", ([X], {"axis": 5}), "its axis is 5"),
        ("Reshape", ([X, (1,)], {}, {1: [10**12]}), "it makes"),
        ("Reshape", ([X, (1,)],), "no short constant"),
        ("Transpose", ([X], {"perm": [0, 0, 1, 2]}), "order of axes"),
        ("Transpose", ([X], {"perm": 3}), "its perm"),
        ("Squeeze", ([X, (1,)], {}, {1: [1]}), r"drops axes \[1\]"),
        ("Squeeze", ([X, (1,)], {}, {1: [4]}), "its axes is 4"),
        ("Unsqueeze", ([X, (1,)], {}, {1: [99]}), "its axes is 99"),
        ("Unsqueeze", ([X, (2,)], {}, {1: [1, -5]}), "are there twice"),
        ("Unsqueeze", ([X],), "which axes"),
        ("DepthToSpace", ([X], {"blocksize": 2}), "blocks of 2"),
        ("DepthToSpace", ([X],), "blocks of 0"),
        ("SpaceToDepth", ([X], {"blocksize": 3}), "blocks of 3"),
    ],
)
def test_layout_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)


def axis_of(draw, shape):
    """An axis, counted from the first or from the last."""
    return draw(st.integers(-len(shape), len(shape) - 1))


@given(shapes, st.data())
def test_cut_of_several_axes_clamps_bounds_as_the_runtime_does(shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bounds = st.integers(-8, 8)
    starts = [data.draw(bounds | st.sampled_from([-(2**63) + 1, 2**63 - 1])) for _ in axes]
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    # The largest number stands for the end of the axis, the smallest for before its beginning.
    ends = [data.draw(bounds | st.just(2**63 - 1 if step > 0 else -(2**63) + 1)) for step in steps]
    signed = [i - len(shape) if data.draw(st.booleans()) else i for i in axes]
    case = Case("Slice", [reals(shape), *[whole(*value) for value in (starts, ends, signed, steps)]], stored=(1, 2, 3, 4))
    computed = case.computed()
    if computed[0].size:
        agrees(case)
    else:
        with pytest.raises(StretchError, match="it cuts nothing"):
            rule("Slice", [shape] * 5, {}, dict(enumerate((starts, ends, signed, steps), 1)))


@given(shapes, st.sampled_from(["constant", "reflect", "edge", "wrap"]), st.data())
def test_padding_grows_and_cuts_in_every_mode(shape, mode, data):
    # What the runtime reflects or wraps must be there.
    most = {"reflect": min(shape) - 1, "wrap": min(shape)}.get(mode, 3)
    least = -((min(shape) - 1) // 2) if mode == "constant" else 0
    widths = [data.draw(st.integers(least, most)) for _ in range(2 * len(shape))]
    agrees(Case("Pad", [reals(shape), whole(*widths)], {"mode": mode}, stored=(1,)))
    axis = axis_of(data.draw, shape)
    agrees(Case("Pad", [reals(shape), whole(*widths[:2]), np.float32(0).reshape(()), whole(axis)], {"mode": mode}, stored=(1, 2, 3)))


@given(shapes, st.data())
def test_repetition_multiplies_sizes(shape, data):
    times = [data.draw(st.integers(1, 3)) for _ in shape]
    agrees(Case("Tile", [reals(shape), whole(*times)], stored=(1,)))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Concat", ([X, (1, 3, 8, 9)], {"axis": 1}), "differ beside"),
        ("Concat", ([X, (1, 3, 8)], {"axis": 1}), "number of axes"),
        ("Concat", ([X, X],), "along which axis"),
        ("Concat", ([X, X], {"axis": 4}), "its axis is 4"),
        ("Split", ([X, (2,)], {"axis": 1}, {1: [1, 1]}, 2), r"splits 3 into \[1, 1\]"),
        ("Split", ([X, (2,)], {"axis": 1}, {1: [4, -1]}, 2), r"splits 3 into"),
        ("Split", ([X], {"axis": 1, "num_outputs": 3}, {}, 2), "3 parts for 2 results"),
        ("Slice", ([X] * 4, {}, {1: [0], 2: [0], 3: [1]}), "cuts nothing from axis 1"),
        ("Slice", ([X] * 4, {}, {1: [0, 0], 2: [1, 1], 3: [1, -3]}), "there twice"),
        ("Slice", ([X] * 5, {}, {1: [0], 2: [1], 3: [1], 4: [0]}), "do not fit together"),
        ("Slice", ([X] * 5, {}, {1: [0], 2: [2**63 - 1], 3: [1], 4: [-1]}), "runtimes read in two ways"),
        ("Slice", ([X] * 3,), "no short constant"),
        ("Slice", ([X],), "it has no bounds"),
        ("Pad", ([X, (8,)], {}, {1: [0] * 7 + [10**12]}), "it pads by"),
        ("Pad", ([X, (8,)], {"mode": b"mirror"}, {1: [0] * 8}), "in the mode `mirror`"),
        ("Pad", ([X, (8,)], {"mode": b"reflect"}, {1: [0] * 7 + [8]}), "pads axis 3 of 8 by 8"),
        ("Pad", ([X, (8,)], {}, {1: [0, 0, 0, 0, 0, 0, 0, -8]}), "cuts off everything"),
        ("Pad", ([X],), "how much it pads"),
        ("Expand", ([X, (1,)], {}, {1: [0]}), "it makes"),
        ("Expand", ([X, (1,)], {}, {1: [5]}), "do not go together"),
        ("Tile", ([X, (1,)], {}, {1: [2]}), "it repeats"),
        ("Trilu", ([(3,)],), "has the shape"),
        ("Trilu", ([(3, 3), (2,)],), "diagonal"),
    ],
)
def test_piece_that_does_not_fit_or_grows_too_much_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)


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
    return KnownTensor(shape, 7)


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Gather", node([X, (2,)]), "its input 1 is of type float"),
        ("Gather", node([X, (1,)], {"axis": 1}, {1: [3]}), "it reads beyond an axis of 3"),
        ("Gather", node([X, (1,)], {"axis": 4}, {1: [0]}), "its axis is 4"),
        ("GatherElements", ShapeNode((KnownTensor(X), whole_of((1, 3))), {}), "its indices have the shape"),
        ("GatherND", ShapeNode((KnownTensor(X), whole_of((2, 5))), {}), "its indices have the shape"),
        ("GatherND", ShapeNode((KnownTensor(X), whole_of(())), {}), "a single number"),
        ("GatherND", ShapeNode((KnownTensor(X), whole_of((2, 1))), {"batch_dims": 1}), "batch_dims"),
        ("ScatterND", ShapeNode((KnownTensor(X), whole_of((2, 1)), KnownTensor((2, 3, 8))), {}), "it writes"),
        ("ScatterElements", ShapeNode((KnownTensor(X), whole_of(X), KnownTensor((1, 3, 8, 7))), {}), "it writes"),
        ("OneHot", node([X, (1,), (2,)], {}, {1: [0]}), "no depth"),
        ("OneHot", node([X, (1,), (3,)], {}, {1: [2]}), "not two values"),
        ("OneHot", node([X, (1,), (2,)], {"axis": 5}, {1: [2]}), "its axis is 5"),
    ],
)
def test_index_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20))
def test_stored_numbers_are_lists_or_single(numbers):
    agrees(Case("Constant", [], {"value_ints": numbers}))
    agrees(Case("Constant", [], {"value_floats": [float(n) for n in numbers]}))
    agrees(Case("Constant", [], {"value_int": numbers[0]}))
    agrees(Case("Constant", [], {"value_float": float(numbers[0])}))


@given(shapes, st.integers(-5, 5), st.integers(-5, 5))
def test_part_of_a_shape_is_counted_as_the_runtime_does(shape, start, end):
    case = Case("Shape", [reals(shape)], {"start": start, "end": end})
    computed = case.computed()[0]
    if computed.size:
        agrees(case)
    [answer] = RULES["Shape"](node([shape], case.attrs)).results
    assert answer.values == tuple(computed)


def test_values_of_long_constants_are_forgotten():
    assert short(KnownTensor((SHORT,), 7, (1,) * SHORT)).values == (1,) * SHORT
    assert short(KnownTensor((SHORT + 1,), 7, (1,) * (SHORT + 1))).values is None


def numbers(*each):
    return ShapeNode(tuple(KnownTensor((), 7, (n,)) for n in each), {})


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Constant", node([]), "no single value"),
        ("Constant", node([], {"value_string": b"x"}), "as `value_string`"),
        ("ConstantOfShape", node([(2,)]), "no short constant"),
        ("ConstantOfShape", node([(2,)], {}, {0: [3, 0]}), r"it makes \[3, 0\]"),
        ("ConstantOfShape", node([(2,)], {"value": KnownTensor((2,))}, {0: [3, 3]}), "no single number"),
        ("Range", numbers(0, 9, 0), "its step is 0"),
        ("Range", ShapeNode((KnownTensor((), 7), KnownTensor((), 7, (9,)), KnownTensor((), 7, (1,))), {}), "no short constant"),
        ("Range", node([(), (), ()]), "no single constants"),
        ("Range", ShapeNode((KnownTensor((), 1, (0.0,)), KnownTensor((), 1, (9.0,)), KnownTensor((), 1, (0.0,))), {}), "from 0 to 9 by 0"),
        (
            "Range",
            ShapeNode((KnownTensor((), 1, (0.0,)), KnownTensor((), 1, (math.inf,)), KnownTensor((), 1, (1.0,))), {}),
            "from 0 to inf by 1",
        ),
    ],
)
def test_constant_that_is_none_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


def test_endless_range_is_counted_and_not_made():
    assert RULES["Range"](numbers(-(2**63), 2**63 - 1, 1)).shape == (2**64 - 1,)


@given(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3), arrays.array_shapes(min_dims=0, max_dims=3, max_side=3))
def test_shapes_go_together_where_numpy_says_so(one, other):
    try:
        wanted = np.broadcast_shapes(one, other)
    except ValueError:
        with pytest.raises(StretchError, match="do not go together"):
            broadcast([one, other])
    else:
        assert broadcast([one, other]) == wanted


def test_attribute_of_another_type_is_refused():
    with pytest.raises(StretchError, match="its group is no whole number"):
        node([X], {"group": b"2"}).whole("group", 1)
    with pytest.raises(StretchError, match="its mode is no word"):
        node([X], {"mode": 2}).word("mode", "nearest")
    assert node([X], {"mode": b"\xff"}).word("mode", "nearest") == "\N{REPLACEMENT CHARACTER}"
