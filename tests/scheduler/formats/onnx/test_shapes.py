import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.operators import kind_of, kinds
from scheduler.formats.onnx.checks import check_onnx
from scheduler.formats.onnx.file import load_onnx
from scheduler.formats.onnx.shapes import RULES, Node, broadcast
from tests.scheduler.delegates import cases, graphs


@pytest.mark.parametrize("op", sorted(RULES.keys() & cases.OPS.keys()))
@given(data=st.data())
def test_shape_of_any_operator_is_what_the_onnx_package_infers(tmp_path_factory, op, data):
    # Sizes that a reshape leaves to the runtime are not written by us.
    case = data.draw(cases.reshape(stated=True) if op == "Reshape" else cases.OPS[op])
    path = tmp_path_factory.mktemp(op) / "m.onnx"
    shape = case.save(path)
    # It compares what it works out with what the file states, which is what `onnx` inferred.
    assert check_onnx(load_onnx(path), path).alive >= sum(x.size for x in case.inputs)
    assert all(n > 0 for n in shape)


@pytest.mark.torch
@settings(max_examples=20)
@given(data=st.data())
def test_every_operator_that_is_written_has_a_rule(data):
    from stretch.export.onnx import to_onnx

    graph, weights, _ = data.draw(st.sampled_from(graphs.KIND_NAMES).flatmap(graphs.graphs))
    assert {node.op_type for node in to_onnx(graph, weights).graph.node} <= RULES.keys()


def node(shapes, attrs=None, constants=None):
    return Node(tuple(shapes), attrs or {}, constants or {})


X = (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("op", "given_node", "work"),
    [
        ("Conv", node([X, (4, 3, 3, 3)], {"pads": [1, 1, 1, 1]}), 4 * 8 * 8 * 3 * 9),
        ("Conv", node([X, (3, 1, 3, 3)], {"group": 3}), 3 * 6 * 6 * 9),
        ("Gemm", node([(2, 5), (7, 5)], {"transB": 1}), 2 * 5 * 7),
        ("MaxPool", node([X], {"kernel_shape": [2, 2], "strides": [2, 2]}), 3 * 4 * 4 * 4),
        ("Relu", node([X]), 3 * 64),
    ],
)
def test_work_is_counted_in_multiply_accumulates_or_elements(op, given_node, work):
    assert RULES[op](given_node).work == work


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Relu", node([]), "it has 0 inputs"),
        ("Relu", node([None]), "it has no input 0"),
        ("Conv", node([X, (1, 3, 3000, 3000)]), "larger than its input"),
        ("Conv", node([(1, 1, 224, 224), (1, 1, 3000, 3000)], {"pads": [1500] * 4}), "3000 × 3000 on 224 × 224 pixels is too much"),
        ("Conv", node([X, (4, 3, 3, 3)], {"pads": [1 << 40] * 4}), "its pads is"),
        ("Conv", node([X, (4, 3, 3, 3)], {"strides": [0, 0]}), "its strides is"),
        ("Conv", node([X, (4, 3, 3, 3)], {"dilations": 3}), "its dilations is"),
        ("Conv", node([X, (4, 3, 3, 3)], {"kernel_shape": [5, 5]}), "kernel_shape"),
        ("Conv", node([X, (4, 3, 3, 3)], {"group": 0}), "groups"),
        ("Conv", node([X, (4, 3, 3, 3)], {"auto_pad": b"SAME_UPPER"}), "automatic"),
        ("Conv", node([X, (4, 3, 3, 3), (5,)]), "bias"),
        ("Conv", node([X]), "no input 1"),
        ("MaxPool", node([X], {"kernel_shape": [2, 2], "pads": [2, 2, 2, 2]}), "padding is larger"),
        ("MaxPool", node([X]), "kernel_shape"),
        ("Gemm", node([(2, 5), (7, 5)]), "5 columns meet 7 rows"),
        ("BatchNormalization", node([X, (3,), (3,), (3,), (4,)]), "one number a channel"),
        ("BatchNormalization", node([X, (3,), (3,), (3,), (3,)], {"training_mode": 1}), "training"),
        ("Concat", node([X, (1, 3, 8, 9)]), "differ beside"),
        ("Reshape", node([X, (1,)], {}, {1: [10**12]}), "it makes"),
        ("Reshape", node([X, (1,)]), "no short constant"),
        ("Resize", node([X, None, (4,)], {}, {2: [1, 1, 1e9, 1e9]}), "its scales"),
        ("Pad", node([X, (8,)], {}, {1: [0] * 7 + [10**12]}), "it pads by"),
        ("Pad", node([X, (8,)], {"mode": b"edge"}, {1: [0] * 8}), "something else than a constant"),
        ("Slice", node([X, (1,), (1,), (1,)], {}, {1: [0], 2: [-1], 3: [1]}), "cuts axis 1 from 0 to -1"),
        ("Transpose", node([X], {"perm": [0, 0, 1, 2]}), "order of axes"),
        ("Transpose", node([X], {"perm": 3}), "its perm"),
        ("Unsqueeze", node([X, (1,)], {}, {1: [99]}), "its axes"),
        ("Cast", node([X], {"to": 16}), "casts to type 16"),
        ("Add", node([]), "no inputs"),
        ("Add", node([X, (1, 5, 8, 8)]), "do not go together"),
        ("PRelu", node([(3, 1, 1), X]), "slopes"),
        ("QuantizeLinear", node([X, (3, 3), (3, 3)]), "its scales have the shape"),
        ("Softmax", node([X], {"axis": 7}), "its axis is 7"),
        ("Softmax", node([X], {"axis": b"one"}), "no whole number"),
    ],
)
def test_operator_that_does_not_fit_or_grows_too_much_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        RULES[op](given_node)


def test_operator_that_a_kind_alone_is_written_by_has_the_shape_of_that_kind():
    stated = {name: kind for kind in kinds for name in kind_of(kind).nodes}
    assert {"Relu": "relu", "Tanh": "tanh"}.items() <= stated.items()
    for name, kind in stated.items():
        inputs = [X] * kind_of(kind).min_inputs
        assert RULES[name](node(inputs)).shape == kind_of(kind).shape(inputs, {})


def test_shapes_broadcast_as_numpy_has_it():
    assert broadcast([(2, 1, 3), (4, 1)]) == (2, 4, 3)
    assert broadcast([(), (1, 5)]) == (1, 5)
