import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes import RULES
from scheduler.formats.onnx.shapes.constants import SHORT, short
from scheduler.formats.onnx.shapes.node import Node, Tensor
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, node, reals, shapes, whole


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20))
def test_stored_numbers_are_lists_or_single(numbers):
    agrees(Case("Constant", [], {"value_ints": numbers}))
    agrees(Case("Constant", [], {"value_floats": [float(n) for n in numbers]}))
    agrees(Case("Constant", [], {"value_int": numbers[0]}))
    agrees(Case("Constant", [], {"value_float": float(numbers[0])}))


@given(shapes, st.integers(-5, 5), st.integers(-5, 5))
def test_part_of_a_shape_is_counted_as_the_runtime_does(shape, start, end):
    case = Case("Shape", [reals(shape)], {"start": start, "end": end})
    made = case.computed()[0]
    if made.size:
        agrees(case)
    [told] = RULES["Shape"](node([shape], case.attrs)).results
    assert told.values == tuple(made)


def test_values_of_long_constants_are_forgotten():
    assert short(Tensor((SHORT,), 7, (1,) * SHORT)).values == (1,) * SHORT
    assert short(Tensor((SHORT + 1,), 7, (1,) * (SHORT + 1))).values is None


def test_shape_that_a_file_works_out_itself_is_followed(tmp_path):
    from scheduler.formats.onnx import open_onnx

    value = helper.make_tensor_value_info("x", 1, [2, 3, 4, 4])
    rest = numpy_helper.from_array(whole(-1), "rest")
    nodes = [
        helper.make_node("Shape", ["x"], ["kept"], end=1),
        helper.make_node("Concat", ["kept", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [value], [helper.make_tensor_value_info("y", 1, [2, 48])], [rest])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())
    assert open_onnx(tmp_path / "m.onnx").demand.work > 0


def numbers(*each):
    return Node(tuple(Tensor((), 7, (n,)) for n in each), {})


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Constant", node([]), "no single value"),
        ("Constant", node([], {"value_string": b"x"}), "as `value_string`"),
        ("ConstantOfShape", node([(2,)]), "no short constant"),
        ("ConstantOfShape", node([(2,)], {}, {0: [3, 0]}), r"it makes \[3, 0\]"),
        ("ConstantOfShape", node([(2,)], {"value": Tensor((2,))}, {0: [3, 3]}), "no single number"),
        ("Range", numbers(0, 9, 0), "its step is 0"),
        ("Range", Node((Tensor((), 7), Tensor((), 7, (9,)), Tensor((), 7, (1,))), {}), "no short constant"),
        ("Range", node([(), (), ()]), "no single constants"),
        ("Range", Node((Tensor((), 1, (0.0,)), Tensor((), 1, (9.0,)), Tensor((), 1, (0.0,))), {}), "from 0 to 9 by 0"),
        ("Range", Node((Tensor((), 1, (0.0,)), Tensor((), 1, (math.inf,)), Tensor((), 1, (1.0,))), {}), "from 0 to inf by 1"),
    ],
)
def test_constant_that_is_none_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


def test_endless_range_is_counted_and_not_made():
    assert RULES["Range"](numbers(-(2**63), 2**63 - 1, 1)).shape == (2**64 - 1,)
