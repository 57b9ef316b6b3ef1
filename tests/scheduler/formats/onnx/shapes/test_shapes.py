"""Shapes and work of operators, and constants that give shapes, against ONNX Runtime."""

import math

import numpy as np
import onnx.defs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.moving import MAX_VALUES, without_long_values
from scheduler.formats.onnx.shapes.node import REASONS, KnownTensor, ShapeNode, broadcast
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, rule, shapes, whole

X = (1, 3, 8, 8)

PAIRS = arrays.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4)
TRIPLES = arrays.mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3)
#: Pairs of shapes that numpy's matmul accepts, including broadcast batches and vectors.
PRODUCTS = arrays.mutually_broadcastable_shapes(signature="(n?,k),(k,m?)->(n?,m?)", max_dims=2, max_side=4)
OF_REALS = ["Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum"]
OF_WHOLE = ["Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Less", "Mod", "Mul", "Sub"]


def of_all(op, kind=np.float32):
    """Function that makes a node with one input per drawn shape."""
    return lambda drawn: [Case(op, [np.ones(shape, kind) for shape in drawn])]


def choices(drawn):
    condition, *values = drawn
    return [Case("Where", [np.ones(condition, bool), *(np.ones(shape, kind) for shape in values)]) for kind in (np.float32, np.int64)]


def best(shape):
    return [Case("TopK", [reals(shape), whole(n)], {"axis": axis}, stored=(1,), results=2) for axis, n in ((-1, 1), (0, shape[0]))]


def of_bytes(shape):
    rounded = Case("QuantizeLinear", [reals(shape), reals(())], stored=(1,))
    return [rounded, Case("DequantizeLinear", [np.ones(shape, np.int32), reals(())], stored=(1,))]


def one_hot(shape):
    axes = range(-len(shape) - 1, len(shape) + 1)
    return [Case("OneHot", [np.zeros(shape, np.int64), whole(5), reals((2,))], {"axis": axis}, stored=(1,)) for axis in axes]


def constants(numbers):
    values = {"value_ints": numbers, "value_floats": [float(n) for n in numbers], "value_int": numbers[0], "value_float": float(numbers[0])}
    return [Case("Constant", [], {key: value}) for key, value in values.items()]


def drawn_shapes(strategy):
    return strategy.map(lambda drawn: drawn.input_shapes)


#: Nodes that networks with one float input lack: a strategy, and a function from its values to nodes.
DRAWN = {
    **{op: (drawn_shapes(PAIRS), of_all(op)) for op in OF_REALS},
    **{f"{op} {kind.__name__}": (drawn_shapes(PAIRS), of_all(op, kind)) for op in OF_WHOLE for kind in (np.int32, np.int64)},
    "MatMul": (drawn_shapes(PRODUCTS), of_all("MatMul")),
    "Where": (drawn_shapes(TRIPLES), choices),
    "TopK": (shapes, best),
    "OneHot": (shapes, one_hot),
    "bytes": (shapes, of_bytes),
    "Constant": (st.lists(st.integers(-9, 9), min_size=1, max_size=20), constants),
}


@given(st.data())
@pytest.mark.parametrize(("strategy", "cases"), DRAWN.values(), ids=DRAWN)
def test_rules_give_the_shapes_and_element_types_of_the_runtime(strategy, cases, data):
    """Tests in tests/stretch/network/models/onnx compare the other operators."""
    for case in cases(data.draw(strategy)):
        agrees(case)


def lists(draw, axes, low, high):
    return [draw(st.integers(low, high)) for _ in range(axes)]


@st.composite
def windows(draw, op):
    """A convolution or pool over one to three axes."""
    axes = draw(st.integers(1, 3))
    kernel, strides = lists(draw, axes, 1, 3), lists(draw, axes, 1, 3)
    attrs = {"kernel_shape": kernel, "strides": strides, "pads": [draw(st.integers(0, k - 1)) for k in kernel * 2]}
    # Average pools have dilations since opset 19, but the runtime computes them for images only.
    if op in ("Conv", "MaxPool"):
        attrs["dilations"] = lists(draw, axes, 1, 2)
    if op not in ("Conv", "LpPool"):
        attrs["ceil_mode"] = draw(st.integers(0, 1))
    reach = [d * (k - 1) + 1 for d, k in zip(attrs.get("dilations", [1] * axes), kernel, strict=True)]
    size = [draw(st.integers(r, 8)) for r in reach]
    if op != "Conv":
        return Case(op, [reals((draw(st.integers(1, 2)), draw(st.integers(1, 3)), *size))], attrs, results=1)
    groups, drawn, more = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    bias = [reals((groups * more,))] if draw(st.booleans()) else []
    return Case(op, [reals((1, groups * drawn, *size)), reals((groups * more, drawn, *kernel)), *bias], {**attrs, "group": groups})


@given(shapes, st.data())
def test_slice_of_several_axes_clamps_bounds_like_the_runtime(shape, data):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    bounds = st.integers(-8, 8)
    starts = [data.draw(bounds | st.sampled_from([-(2**63) + 1, 2**63 - 1])) for _ in axes]
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    # The largest integer means the end of the axis, the smallest the position before its start.
    ends = [data.draw(bounds | st.just(2**63 - 1 if step > 0 else -(2**63) + 1)) for step in steps]
    signed = [i - len(shape) if data.draw(st.booleans()) else i for i in axes]
    case = Case("Slice", [reals(shape), *[whole(*value) for value in (starts, ends, signed, steps)]], stored=(1, 2, 3, 4))
    if case.computed()[0].size:
        agrees(case)
    else:
        with pytest.raises(StretchError, match="it cuts nothing"):
            rule("Slice", [shape] * 5, {}, dict(enumerate((starts, ends, signed, steps), 1)))


@given(shapes, st.integers(-5, 5), st.integers(-5, 5))
def test_shape_operator_with_bounds_agrees_with_the_runtime(shape, start, end):
    case = Case("Shape", [reals(shape)], {"start": start, "end": end})
    computed = case.computed()[0]
    if computed.size:
        agrees(case)
    [answer] = RULES["Shape"](node([shape], case.attrs)).results
    assert answer.values == tuple(computed)


def test_values_of_long_constants_are_dropped_and_a_huge_range_has_a_length_but_no_values():
    assert RULES["Range"](numbers(-(2**63), 2**63 - 1, 1)).shape == (2**64 - 1,)
    assert without_long_values(KnownTensor((MAX_VALUES,), 7, (1,) * MAX_VALUES)).values == (1,) * MAX_VALUES
    assert without_long_values(KnownTensor((MAX_VALUES + 1,), 7, (1,) * (MAX_VALUES + 1))).values is None


@given(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3), arrays.array_shapes(min_dims=0, max_dims=3, max_side=3))
def test_shapes_are_broadcast_like_numpy(one, other):
    try:
        wanted = np.broadcast_shapes(one, other)
    except ValueError:
        with pytest.raises(StretchError, match="do not go together"):
            broadcast([one, other])
    else:
        assert broadcast([one, other]) == wanted


def test_attribute_of_a_wrong_type_is_refused():
    for read, default, value in (("integer", 1, b"2"), ("string", "nearest", 2)):
        with pytest.raises(StretchError, match="its mode"):
            getattr(node([X], {"mode": value}), read)("mode", default)
    assert node([X], {"mode": b"\xff"}).string("mode", "nearest") == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("op", "given_node", "work"),
    [
        ("Conv", ([X, (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}), 4 * 8 * 8 * 3 * 9),
        ("Conv", ([X, (3, 1, 3, 3)], {"group": 3}), 3 * 6 * 6 * 9),
        ("ConvTranspose", ([X, (3, 5, 2, 2)], {"strides": [2, 2]}), 64 * 3 * 5 * 4),
        ("MaxPool", ([X], {"kernel_shape": [2, 2], "strides": [2, 2]}), 3 * 4 * 4 * 4),
        ("GlobalAveragePool", ([X],), math.prod(X)),
        ("Gemm", ([(2, 5), (7, 5)], {"transB": 1}), 2 * 5 * 7),
        *(("MatMul", ([(3, 1, 4, 5), (2, 5, 6)],), 3 * 2 * 4 * 5 * 6), ("MatMul", ([(5,), (5,)],), 5)),
        ("Einsum", ([(3, 4), (4, 5)], {"equation": b"ab,bc->"}), 3 * 4 * 5),
    ],
)
def test_work_is_counted_in_multiply_accumulates_or_elements(op, given_node, work):
    assert rule(op, *given_node).work == work


def test_axis_of_a_single_element_is_resized_to_any_size():
    scales = KnownTensor((4,), 1, (1.0, 1.0, 500.0, 1.0))
    [result] = RULES["Resize"](ShapeNode((KnownTensor((1, 3, 1, 8)), None, scales), {})).results
    assert result.shape == (1, 3, 500, 8)


def test_rules_are_for_onnx_operators_and_no_operator_is_both_known_and_refused():
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert REASONS.keys() | RULES.keys() <= names
    assert not REASONS.keys() & RULES.keys()


def typed(*types):
    return ShapeNode(tuple(KnownTensor(X, item) for item in types), {})


def whole_of(shape):
    return KnownTensor(shape, 7)


def numbers(*values, kind=7):
    return ShapeNode(tuple(KnownTensor((), kind, (n,)) for n in values), {})


def scaled(*scales, attrs=None):
    return ShapeNode((KnownTensor(X), None, KnownTensor((len(scales),), 1, scales)), attrs or {})


def columns(shape, image, kernel):
    return node([shape, (len(image),), (len(kernel),)], {}, {1: image, 2: kernel})


def lstm(changed=(), **attrs):
    read = [(7, 2, 3), (1, 20, 3), (1, 20, 5), (1, 40), None, (1, 2, 5), (1, 2, 5)]
    return node((dict(enumerate(read)) | dict(changed)).values(), {"hidden_size": 5, **attrs})


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        *(("Relu", node([]), "it has 0 inputs"), ("Relu", node([None]), "it has no input 0")),
        *(("Exp", node([X, X]), "it has 2 inputs"), ("Exp", typed(7), "its input 0 is of type int64")),
        ("Cast", node([X], {"to": 16}), "casts to type 16"),
        *(("Add", node([]), "no inputs"), ("Add", node([X, (1, 5, 8, 8)]), "do not go together")),
        *(("Add", typed(1, 7), "differ in their element types"), ("Add", typed(9, 9), "of type bool")),
        ("And", typed(1, 1), "of type float"),
        ("Mod", node([X, X]), "without fmod"),
        *(("Where", node([X, X, X]), "its input 0 is of type float"), ("Where", typed(9, 1, 7), "two element types")),
        ("PRelu", node([(3, 1, 1), X]), "slopes"),
        ("Clip", node([X, (1,)]), "no single numbers"),
        *(("ReduceMean", node([X, (1,)], {}, {1: [4]}), "its axes is 4"), ("ReduceMean", node([X, (1,)]), "no short constant")),
        ("ReduceSum", node([X], {"axes": b"all"}), "its axes is no list"),
        ("ArgMax", node([X], {"axis": 4}), "its axis is 4"),
        ("TopK", node([X, (1,)], {"axis": 1}, {1: [4]}, 2), "it takes 4 of 3"),
        ("TopK", node([X, (2,)], {"axis": 1}, {1: [1, 1]}, 2), "has 2 numbers"),
        ("CumSum", node([X, (1,)], {}, {1: [-5]}), "its axes is -5"),
        ("BatchNormalization", node([X, (3,), (3,), (3,), (4,)]), "one number a channel"),
        ("BatchNormalization", node([X, (3,), (3,), (3,), (3,)], {"training_mode": 1}), "training"),
        ("LayerNormalization", node([X, (3,)]), "do not fit|do not go together"),
        ("LayerNormalization", node([X, (1, 1, 1, 8)]), "do not fit"),
        ("InstanceNormalization", node([X, (3,), (8,)]), "one number a channel"),
        ("InstanceNormalization", node([(1, 3), (3,), (3,)]), "has the shape"),
        ("GroupNormalization", node([X, (3,), (3,)], {"num_groups": 2}), "2 groups do not divide"),
        ("GroupNormalization", node([X, (3,), (3,)]), "0 groups do not divide"),
        ("LRN", node([X], {"size": 0}), "its size is 0"),
        ("Softmax", node([X], {"axis": b"one"}), "no whole number"),
        *(("Gemm", node([(2, 5), (7, 5)]), "5 columns meet 7 rows"), ("Gemm", node([(2, 5), (5, 7), (3,)]), "its bias|do not go together")),
        *(("MatMul", node([(2, 5), (7, 5)]), "5 columns meet 7 rows"), ("MatMul", node([(2, 5), ()]), "a single number")),
        ("Einsum", node([(2, 5)] * 3, {"equation": b"ab,ab,ab->a"}), "3 inputs"),
        ("Einsum", node([(2, 5)], {"equation": b"ab,ab->a"}), "for 1 inputs"),
        ("Einsum", node([(2, 5), (5, 3)], {"equation": b"ab,bc"}), "its equation is"),
        ("Einsum", node([(2, 5), (4, 3)], {"equation": b"ab,bc->ac"}), "`b` has two sizes"),
        ("QuantizeLinear", node([X, (3, 3), (3, 3)]), "its scales have the shape"),
        ("QuantizeLinear", node([X, (3,)], {"block_size": 2}), "for each block"),
        ("QuantizeLinear", ShapeNode((KnownTensor(X), KnownTensor(()), KnownTensor((), 7)), {}), "no byte"),
        ("DequantizeLinear", node([X, ()]), "of type float"),
        ("DequantizeLinear", ShapeNode((KnownTensor(X, 3), KnownTensor((), 7)), {}), "no reals"),
        ("Reshape", node([X, (1,)], {}, {1: [10**12]}), "it makes"),
        *(("Transpose", node([X], {"perm": [0, 0, 1, 2]}), "order of axes"), ("Transpose", node([X], {"perm": 3}), "its perm")),
        ("Squeeze", node([X, (1,)], {}, {1: [1]}), r"drops axes \[1\]"),
        *(("Unsqueeze", node([X, (2,)], {}, {1: [1, -5]}), "are there twice"), ("Unsqueeze", node([X]), "which axes")),
        *(("DepthToSpace", node([X], {"blocksize": 2}), "blocks of 2"), ("DepthToSpace", node([X]), "blocks of 0")),
        ("Concat", node([X, (1, 3, 8, 9)], {"axis": 1}), "differ on another axis"),
        *(("Concat", node([X, (1, 3, 8)], {"axis": 1}), "number of axes"), ("Concat", node([X, X]), "along which axis")),
        ("Split", node([X, (2,)], {"axis": 1}, {1: [1, 1]}, 2), r"splits 3 into \[1, 1\]"),
        ("Split", node([X, (2,)], {"axis": 1}, {1: [4, -1]}, 2), r"splits 3 into"),
        ("Split", node([X], {"axis": 1, "num_outputs": 3}, {}, 2), "3 parts for 2 results"),
        ("Slice", node([X] * 4, {}, {1: [0], 2: [0], 3: [1]}), "cuts nothing from axis 1"),
        ("Slice", node([X] * 5, {}, {1: [0], 2: [1], 3: [1], 4: [0]}), "do not fit together"),
        ("Slice", node([X] * 5, {}, {1: [0], 2: [2**63 - 1], 3: [1], 4: [-1]}), "runtimes read in two ways"),
        ("Slice", node([X]), "it has no bounds"),
        ("Pad", node([X, (8,)], {}, {1: [0] * 7 + [10**12]}), "it pads by"),
        ("Pad", node([X, (8,)], {"mode": b"mirror"}, {1: [0] * 8}), "in the mode `mirror`"),
        ("Pad", node([X, (8,)], {"mode": b"reflect"}, {1: [0] * 7 + [8]}), "pads axis 3 of 8 by 8"),
        *(("Pad", node([X, (8,)], {}, {1: [0, 0, 0, 0, 0, 0, 0, -8]}), "cuts off everything"), ("Pad", node([X]), "how much it pads")),
        ("Expand", node([X, (1,)], {}, {1: [0]}), "it makes"),
        ("Tile", node([X, (1,)], {}, {1: [2]}), "it repeats"),
        *(("Trilu", node([(3,)]), "has the shape"), ("Trilu", node([(3, 3), (2,)]), "diagonal")),
        ("Gather", node([X, (2,)]), "its input 1 is of type float"),
        ("Gather", node([X, (1,)], {"axis": 1}, {1: [3]}), "it reads beyond an axis of 3"),
        ("GatherElements", ShapeNode((KnownTensor(X), whole_of((1, 3))), {}), "its indices have the shape"),
        ("GatherND", ShapeNode((KnownTensor(X), whole_of((2, 5))), {}), "its indices have the shape"),
        ("GatherND", ShapeNode((KnownTensor(X), whole_of(())), {}), "a single number"),
        ("GatherND", ShapeNode((KnownTensor(X), whole_of((2, 1))), {"batch_dims": 1}), "batch_dims"),
        ("ScatterND", ShapeNode((KnownTensor(X), whole_of((2, 1)), KnownTensor((2, 3, 8))), {}), "it writes"),
        ("ScatterElements", ShapeNode((KnownTensor(X), whole_of(X), KnownTensor((1, 3, 8, 7))), {}), "it writes"),
        *(("OneHot", node([X, (1,), (2,)], {}, {1: [0]}), "no depth"), ("OneHot", node([X, (1,), (3,)], {}, {1: [2]}), "not two values")),
        *(("Constant", node([]), "no single value"), ("Constant", node([], {"value_string": b"x"}), "as `value_string`")),
        ("ConstantOfShape", node([(2,)], {"value": KnownTensor((2,))}, {0: [3, 3]}), "no single number"),
        *(("Range", numbers(0, 9, 0), "its step is 0"), ("Range", node([(), (), ()]), "no single constants")),
        ("Range", numbers(0.0, 9.0, 0.0, kind=1), "from 0 to 9 by 0"),
        ("Range", numbers(0.0, math.inf, 1.0, kind=1), "from 0 to inf by 1"),
        ("Conv", node([X, (1, 3, 3000, 3000)]), "larger than its input"),
        ("Conv", node([(1, 1, 224, 224), (1, 1, 3000, 3000)], {"pads": [1500] * 4}), "3000 × 3000 on 224 × 224 pixels is too much"),
        ("Conv", node([X, (4, 3, 3, 3)], {"pads": [1 << 40] * 4}), "its pads is"),
        ("Conv", node([X, (4, 3, 3, 3)], {"dilations": 3}), "its dilations is"),
        ("Conv", node([X, (4, 3, 3, 3)], {"kernel_shape": [5, 5]}), "kernel_shape"),
        *(("Conv", node([X, (4, 3, 0, 3)]), "its weight has the shape"), ("Conv", node([X, (4, 3, 3, 3)], {"group": 0}), "groups")),
        *(("Conv", node([X, (4, 3, 3, 3)], {"auto_pad": b"SAME_UPPER"}), "automatic"), ("Conv", node([X, (4, 3, 3, 3), (5,)]), "bias")),
        ("Conv", node([X, (4, 3, 3)]), "its input and weight have the shapes"),
        ("Conv", node([(1, 3), (4, 3)]), "its input has the shape"),
        ("ConvTranspose", node([X, (3, 5, 2, 2)], {"output_padding": [1, 1]}), "its output_padding"),
        ("ConvTranspose", node([X, (3, 5, 2, 2)], {"output_shape": [9, 9]}), "output_shape"),
        ("ConvTranspose", node([X, (4, 5, 2, 2)]), "groups"),
        ("ConvTranspose", node([(1, 1, 4096, 4096), (1, 1, 64, 64)]), "is too much"),
        ("Col2Im", columns((1, 8, 5), (3, 4), (2, 2)), "for 6 windows of 4 pixels"),
        ("Col2Im", columns((1, 8, 6), (3, 4), (2, 2, 1)), "an image of 3 × 4 with 2 × 2 × 1"),
        ("Col2Im", columns((1, 8, 6), (3, 4), (0, 2)), "an image of 3 × 4 with 0 × 2"),
        *(("LSTM", lstm({0: (7, 3)}), "its input has the shape"), ("LSTM", lstm({1: (1, 20, 4)}), "its weights have the shape")),
        ("LSTM", lstm({2: (1, 19, 5)}), "its recurrent weights have the shape"),
        *(("LSTM", lstm({3: (1, 20)}), "its input 3 is not of the shape"), ("LSTM", lstm({4: (2,)}), "lengths of their own")),
        *(("LSTM", lstm({6: (1, 2, 4)}), "its input 6 is not of the shape"), ("LSTM", lstm(hidden_size=0), "its hidden_size is 0")),
        *(("LSTM", lstm(layout=1), "its batch comes first"), ("LSTM", lstm(direction=b"sideways"), "its direction is `sideways`")),
        ("MaxPool", node([X], {"kernel_shape": [2, 2], "pads": [2, 2, 2, 2]}), "padding is larger"),
        ("MaxPool", node([X]), "kernel_shape"),
        ("LpPool", node([X], {"kernel_shape": [2, 2], "p": 0}), "its p"),
        *(
            ("Resize", scaled(1, 1, 1e10, 1), "its scales"),
            ("Resize", scaled(1, 1, 65, 1), "it makes"),
            ("Resize", scaled(2, 2), "no scale for each axis"),
        ),
        ("Resize", scaled(1, 1, 2, 2, attrs={"mode": b"best"}), "in the mode `best`"),
        ("Resize", scaled(1, 1, attrs={"axes": [2, 3]}), "along some axes"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"coordinate_transformation_mode": b"tf_crop_and_resize"}), "it crops"),
        ("Resize", scaled(1, 1, 2, 2, attrs={"keep_aspect_ratio_policy": b"not_larger"}), "ratio of its sides"),
        ("Resize", node([X, None, (4,)]), "no constant"),
        ("GridSample", node([X, (1, 4, 4, 3)]), "its grid"),
    ],
)
def test_node_that_does_not_fit_or_has_a_huge_result_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)
