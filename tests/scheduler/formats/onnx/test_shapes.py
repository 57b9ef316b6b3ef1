from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from predictors.errors import StretchError
from scheduler.formats.onnx.checks import tensor_shapes
from scheduler.formats.onnx.shapes import RULES
from tests.effort import examples
from tests.scheduler.delegates import graphs
from tests.scheduler.formats.onnx.shapes.oracle import FILE, Case, node, refused


@pytest.mark.torch
@settings(max_examples=examples(20))
@given(data=st.data())
def test_every_operator_that_is_written_has_a_rule(data):
    from stretch.export.onnx import to_onnx

    graph, weights, _ = data.draw(st.sampled_from(graphs.KIND_NAMES).flatmap(graphs.graphs))
    assert {node.op_type for node in to_onnx(graph, weights).graph.node} <= RULES.keys()


#: Attributes of any operator, with values that some of them take.
NUMBERS = st.integers(-3, 5)
ATTRIBUTES = {
    **dict.fromkeys(
        ("axes", "dilations", "kernel_shape", "output_padding", "pads", "perm", "split", "strides"),
        st.lists(NUMBERS, min_size=1, max_size=4),
    ),
    **dict.fromkeys(("axis", "batch_dims", "blocksize", "group", "num_groups", "num_outputs", "p", "size", "start", "end"), NUMBERS),
    **dict.fromkeys(("allowzero", "ceil_mode", "fmod", "keepdims", "noop_with_empty_axes", "transA", "transB", "upper"), st.integers(0, 1)),
    "mode": st.sampled_from(["nearest", "linear", "cubic", "constant", "reflect", "edge", "wrap", "DCR"]),
    "equation": st.sampled_from(["ab,bc->ac", "abc,abd->acd", "a,b->ab"]),
    "to": st.sampled_from([1, 6, 7, 9]),
}


@st.composite
def wild(draw, op):
    """A node of this operator with inputs and attributes that mostly do not fit."""
    schema = onnx.defs.get_schema(op, 20)
    kinds = st.sampled_from([np.float32, np.float32, np.int64, np.bool_, np.int8])
    inputs, stored = [], []
    for i in range(draw(st.integers(schema.min_input, min(schema.max_input, 5)))):
        shape, kind = draw(arrays.array_shapes(min_dims=0, max_dims=4, max_side=4)), draw(kinds)
        if draw(st.booleans()) and kind == np.int64:
            shape = shape[-1:]
            stored.append(i)
        inputs.append(draw(arrays.arrays(kind, shape, elements=st.integers(0, 1) if kind == np.bool_ else st.integers(-2, 4))))
    attrs = {name: draw(ATTRIBUTES[name]) for name in sorted(schema.attributes.keys() & ATTRIBUTES.keys()) if draw(st.booleans())}
    return Case(op, inputs, attrs, tuple(stored), draw(st.sampled_from([1, 1, 2])))


@pytest.mark.representatives(44)
@pytest.mark.parametrize("op", sorted(RULES))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_node_that_is_taken_has_the_shape_that_the_runtime_makes_if_it_takes_it_too(op, data):
    case = data.draw(wild(op))
    try:
        tensor_shapes(case.model([]), FILE)
    except StretchError:
        return
    computed = case.computed()
    assert computed is None or refused(case, computed) is None


@pytest.mark.parametrize("shapes", [[], [None], [()], [(2,)], [(1, 2, 3, 4)] * 6])
def test_every_rule_answers_or_refuses_whatever_a_node_is(shapes):
    for op, written in RULES.items():
        for attrs in ({}, {"axis": 10**18, "mode": b"\xff", "perm": [-1]}, {"axis": b"", "kernel_shape": [1, 1], "pads": [1 << 62] * 4}):
            with suppress(StretchError):
                assert written(node(shapes, attrs, {1: [10**18]} if len(shapes) > 1 else {})).work >= 0, op
