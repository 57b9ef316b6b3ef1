"""Moves and indices of ONNX files against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.stretch.models.onnx.oracle import agrees, computed, net, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


X = (1, 4, 6, 3)


@pytest.mark.parametrize("sizes", [(1, -1), (0, -1), (4, 18), (1, 2, 2, 6, 3), (-1,), (1, 72, 1, 1)])
def test_reshape_computes_what_the_runtime_does(tmp_path, sizes):
    agrees(tmp_path, Case("Reshape", [random(X), whole(*sizes)]))


@pytest.mark.representatives(16)
@pytest.mark.parametrize(
    "case",
    [
        Case("Flatten", [random(X)], {"axis": 2}),
        Case("Flatten", [random(X)], {"axis": -3}),
        Case("Squeeze", [random((1, 4, 1, 1)), whole(2, -1)]),
        Case("Squeeze", [random((1, 4, 1, 3))], {"axes": [2]}, opset=11),
        Case("Unsqueeze", [random((2, 4)), whole(2, 3)]),
        Case("Transpose", [random(X)], {"perm": [0, 2, 3, 1]}),
        Case("Transpose", [random(X)]),
        Case("Concat", [random(X), random((1, 2, 6, 3), 1)], {"axis": 1}),
        Case("Concat", [random(X), random((1, 4, 6, 2), 1)], {"axis": -1}),
        Case("Slice", [random(X), whole(1), whole(3), whole(1)]),
        Case("Slice", [random(X), whole(0, -3), whole(2**62, -1), whole(1, 2), whole(2, 1)]),
        Case("Slice", [random(X), whole(0), whole(4), whole(1)]),
        Case("Slice", [random(X), whole(3), whole(0), whole(1), whole(-1)]),
        Case("Slice", [random(X), whole(-1, 0), whole(-(2**62), 2), whole(-1, 1), whole(-2, 1)]),
        Case("Trilu", [random(X), np.array(1)], {"upper": 0}),
        Case("Trilu", [random(X)]),
        Case("Slice", [random(X)], {"starts": [1], "ends": [3], "axes": [1]}, opset=9),
        Case("Expand", [random((1, 4, 1, 1)), whole(1, 4, 5, 2)]),
        Case("Tile", [random(X), whole(1, 2, 1, 3)]),
        Case("Pad", [random(X), whole(0, 0, 1, 2, 0, 0, 3, 0)]),
        Case("Pad", [random(X), whole(0, 1, 0, 0, 0, 2, 0, 0)]),
        Case("Pad", [random(X), whole(0, 0, 1, 0, 0, 0, 1, 0), np.float32(2).reshape(())]),
        Case("Pad", [random(X)], {"pads": [0, 0, 1, 0, 0, 0, 0, 1], "value": 3.0}, opset=10),
        *[Case("Pad", [random(X), whole(0, 0, 1, 2, 0, 0, 3, 0)], {"mode": mode}) for mode in ("reflect", "edge", "wrap")],
        *[Case("DepthToSpace", [random((1, 8, 3, 2))], {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")],
        Case("CenterCropPad", [random(X), whole(1, 7, 3, 3)]),
        Case("CenterCropPad", [random(X), whole(9, 3)], {"axes": [-1, 1]}),
        Case("CenterCropPad", [random(X), whole(5)], {"axes": [2]}),
        Case("Col2Im", [random((2, 8, 6)), whole(3, 4), whole(2, 2)]),
        Case("Col2Im", [random((1, 8, 9)), whole(5, 5), whole(2, 2)], {"pads": [1, 0, 1, 0], "strides": [2, 1], "dilations": [1, 2]}),
        Case("SpaceToDepth", [random((1, 3, 4, 6))], {"blocksize": 2}),
    ],
    ids=lambda case: f"{case.op}-{case.attrs}",
)
def test_move_computes_what_the_runtime_does(tmp_path, case):
    agrees(tmp_path, case)


@pytest.mark.parametrize(("attrs", "sizes", "opset"), [({}, [1, 3], 20), ({"num_outputs": 2}, None, 20), ({"split": [3, 1]}, None, 11)])
def test_parts_of_a_split_are_those_of_the_runtime(tmp_path, attrs, sizes, opset):
    stored = [] if sizes is None else [numpy_helper.from_array(whole(*sizes), "sizes")]
    nodes = [
        helper.make_node("Split", ["x", *(["sizes"] if stored else [])], ["one", "other"], axis=1, **attrs),
        helper.make_node("Concat", ["other", "one"], ["y"], axis=1),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, X) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    x = random(X)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with torch.no_grad():
        np.testing.assert_array_equal(read_module(tmp_path / "m.onnx")(torch.from_numpy(x)).numpy(), want)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Slice", [random(X), whole(3), whole(3), whole(1)]), "cuts nothing"),
        (Case("Reshape", [random(X), whole(5, -1)]), "it makes"),
        (Case("CenterCropPad", [random(X), whole(3)]), "its attributes are not understood"),
        (Case("Col2Im", [random((1, 8, 6)), whole(3, 4), whole(2, 2)], {"pads": [1, 0, 0, 0]}), "differs between sides"),
        (Case("EyeLike", [random(X)]), "no matrix"),
        (Case("Pad", [random(X), whole(0, 0, 1, 1)]), "for 4 axes"),
    ],
)
def test_move_that_torch_has_not_is_refused(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)


REDUCTIONS = ["none", "add", "mul", "max", "min"]


def pointed(shape, sizes, seed=0):
    """Indices into axes of these sizes, from the first or the last, no two of them alike."""
    flat = np.random.default_rng(seed).choice(int(np.prod(sizes)), int(np.prod(shape)), replace=False).reshape(shape)
    places = np.stack(np.unravel_index(flat, sizes), -1)
    return np.where(np.random.default_rng(seed + 1).random(places.shape) < 0.5, places, places - np.array(sizes)).astype(np.int64)


@pytest.mark.representatives(18)
@pytest.mark.parametrize(
    "case",
    [
        Case("Gather", [random(X), np.array(2)], {"axis": 1}),
        Case("Gather", [random(X), np.array(-1)], {"axis": -1}),
        Case("Gather", [random(X), whole(3, -1, 0)], {"axis": 1}),
        Case("Gather", [random(X), whole(3, -1, 0).astype(np.int32)], {"axis": -2}),
        Case("Gather", [random(X), np.array([[0, 1], [2, 0]])], {"axis": 2}),
        Case("GatherElements", [random(X), np.array([[[[0, -1]]]]).repeat(3, 2).repeat(2, 1)], {"axis": 3}),
        Case("GatherND", [random(X), pointed((3,), (1, 4))]),
        Case("GatherND", [random(X), pointed((2, 3), X)]),
        Case("GatherND", [random((2, 3, 4)), pointed((2, 1), (3,))], {"batch_dims": 1}),
        Case("GatherND", [random((2, 3, 4)), np.array([[[0], [-1], [3]], [[2], [0], [1]]])], {"batch_dims": 2}),
        *[Case("ScatterND", [random(X), pointed((5,), (1, 4, 6)), random((5, 3), 1)], {"reduction": how}) for how in REDUCTIONS],
        Case("ScatterND", [random(X), pointed((2, 2), X), random((2, 2), 1)]),
        *[
            Case("ScatterElements", [random((3, 4)), whole(0, -1, 1)[None], random((1, 3), 1)], {"axis": 1, "reduction": how})
            for how in REDUCTIONS
        ],
        Case("Scatter", [random((3, 4)), whole(0, 2, 1)[None], random((1, 3), 1)], opset=10),
        *[
            Case(
                "GridSample",
                [random((1, 2, 5, 6)), random((1, 3, 4, 2), 1)],
                {"mode": mode, "padding_mode": edge, "align_corners": corners},
            )
            for mode in ("linear", "nearest", "cubic")
            for edge in ("zeros", "border", "reflection")
            for corners in (0, 1)
        ],
        Case("GridSample", [random((1, 2, 3, 5, 6)), random((1, 2, 3, 4, 3), 1)]),
        Case("GridSample", [random((1, 2, 5, 6)), random((1, 3, 4, 2), 1)], {"mode": "bicubic"}, opset=16),
        *[Case("AffineGrid", [random((2, 2, 3)), whole(2, 3, 4, 5)], {"align_corners": corners}) for corners in (0, 1)],
        Case("OneHot", [np.round(random((2, 5), scale=3)), np.array(3, np.float32), np.array([-0.5, 2.0], np.float32)], {"axis": 1}),
        Case("OneHot", [np.round(random((2, 5), scale=3)), np.array([4], np.float32), np.array([0, 1], np.float32)]),
    ],
    ids=lambda case: f"{case.op}-{case.attrs}-{case.inputs[1].shape}",
)
def test_what_other_tensors_point_at_is_what_the_runtime_finds(tmp_path, case):
    agrees(tmp_path, case)


def follows(folder, node, shape, cut, size, **stored):
    """Assert that a node with indices that the network computes does what the runtime does."""
    last = [helper.make_node("Identity", ["r"], ["y"])]
    model = net(
        helper.make_node("Slice", ["x", *cut], ["piece"]),
        helper.make_node("Abs", ["piece"], ["plain"]),
        helper.make_node("Abs", ["x"], ["all"]),
        helper.make_node("ReduceMax", ["all"], ["top"], keepdims=0),
        helper.make_node("Div", ["piece", "top"], ["part"]),
        helper.make_node("Mul", ["part", "size"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["i"], to=7),
        node,
        *last,
        stored={**stored, "size": np.asarray(size, np.float32)},
        shape=shape,
        opset=18,
    )
    onnx.save(model, str(folder / "m.onnx"))
    x = random(shape)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    [want] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    np.testing.assert_allclose(computed(folder / "m.onnx", x), want, rtol=1e-5, atol=1e-5)


CUT = {"starts": whole(0, 0), "ends": whole(2, 2), "axes": whole(0, 1)}


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_places_that_the_network_computes_are_gathered(tmp_path, axis):
    size = (3, 4, 5)[axis] - 0.01
    for op in ("Gather", "GatherElements"):
        follows(tmp_path, helper.make_node(op, ["x", "i"], ["r"], axis=axis), (3, 4, 5), list(CUT), size, **CUT)


@pytest.mark.parametrize("batch", [0, 1])
def test_tuples_of_places_that_the_network_computes_are_gathered(tmp_path, batch):
    cut = {"starts": whole(0), "ends": whole(2), "axes": whole(2)}
    sizes = np.array([[3, 4], [4, 5]][batch]) - 0.01
    follows(tmp_path, helper.make_node("GatherND", ["x", "i"], ["r"], batch_dims=batch), (3, 4, 5), list(cut), sizes, **cut)


@pytest.mark.parametrize("how", ["add", "max"])
def test_numbers_are_written_where_the_network_computes(tmp_path, how):
    node = helper.make_node("ScatterElements", ["x", "i", "plain"], ["r"], axis=1, reduction=how)
    follows(tmp_path, node, (3, 4, 5), list(CUT), 3.9, **CUT)
    cut = {"starts": whole(0), "ends": whole(1), "axes": whole(2)}
    node = helper.make_node("ScatterND", ["x", "i", "new"], ["r"], reduction=how)
    follows(tmp_path, node, (3, 4, 5), list(cut), 2.9, **cut, new=random((3, 4, 4, 5), 3))


@given(st.data())
def test_any_stored_tuples_of_places_are_those_of_numpy(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple))
    depth = data.draw(st.integers(1, len(shape)))
    count = data.draw(st.integers(1, int(np.prod(shape[:depth]))))
    case = Case("GatherND", [random(shape), pointed((count,), shape[:depth])])
    path = save(tmp_path_factory.mktemp("nd") / "m.onnx", case)
    np.testing.assert_array_equal(computed(path, case.inputs[0]), case.inputs[0][tuple(case.inputs[1].T)])


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Gather", [random(X), whole(4)], {"axis": 1}), "beyond an axis of 4"),
        (Case("Gather", [random(X), random((2,))], {"axis": 1}), "its indices are of type float32"),
        (Case("GatherElements", [random(X), whole(7, 0)]), "beyond an axis of 1"),
        (Case("GatherND", [random(X), whole(0, 4)[None]]), "beyond an axis of 1 or 4"),
        (Case("GatherND", [random(X), np.zeros((2, 5), np.int64)]), r"its indices have the shape \[2, 5\]"),
        (Case("GatherND", [random(X), np.zeros((2, 1), np.int64)], {"batch_dims": 1}), "1 axes of them alike"),
        (Case("GatherND", [random(X), np.zeros((1, 1), np.int64)], {"batch_dims": 7}), "7 axes of them alike"),
        (Case("ScatterND", [random(X), np.zeros((2, 1), np.int64), random((2, 4))]), r"it writes \[2, 4\] where \[2, 4, 6, 3\] goes"),
        (Case("ScatterND", [random((3,)), np.zeros((1, 1), np.int64), random((1,))], {"reduction": "mean"}), "its reduction is `mean`"),
        (Case("ScatterElements", [random((3, 4)), whole(0, 1)[None], random((2, 1))]), r"it writes \[2, 1\] where \[1, 2\] goes"),
        (Case("OneHot", [random((2,)), np.array(1 << 40), np.ones(2, np.float32)]), "the depth 1099511627776"),
        (Case("OneHot", [random((2,)), np.array(0), np.ones(2, np.float32)]), "the depth 0"),
        (Case("OneHot", [random((2,)), np.array(3), np.ones(3, np.float32)]), "it has 3 values"),
        (Case("GridSample", [random(X), random((1, 2, 2, 2))], {"mode": "best"}), "torch does not take what it reads"),
    ],
)
def test_places_that_are_not_there_are_refused(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)
