import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.stretch.models.onnx.oracle import agrees, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

X = (1, 4, 6, 3)


@pytest.mark.parametrize("sizes", [(1, -1), (0, -1), (4, 18), (1, 2, 2, 6, 3), (-1,), (1, 72, 1, 1)])
def test_reshape_computes_what_the_runtime_does(tmp_path, sizes):
    agrees(tmp_path, Case("Reshape", [random(X), whole(*sizes)]))


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
