"""ONNX files, what they tell and their weights."""

import onnx
import onnx.shape_inference
import pytest
from onnx import TensorProto, helper

from predictors.errors import StretchError
from predictors.formats.onnx import decode
from scheduler.formats.onnx import open_onnx, state
from scheduler.formats.onnx.checks import stored_tensor


def saved(path, *nodes, weights=(), side=2):
    """A file of these nodes from `x` to `y`."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "net", values[:1], values[1:], weights))
    onnx.save(model, str(path))
    return path


def two(path, **changes):
    first, last = helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Add", ["z", "b"], ["y"], name="last")
    state(first, "relu", {})
    state(last, "shift", {})
    return saved(path, first, last, weights=[helper.make_tensor("b", TensorProto.FLOAT, [2], [1.0, 2.0])], **changes)


def test_file_tells_its_nodes_weights_and_the_shapes_of_every_tensor(tmp_path):
    path = two(tmp_path / "m.onnx")
    result = open_onnx(path)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    between = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inferred.graph.value_info}
    assert result.ends == ({"x": (1, 2)}, {"y": (1, 2)})
    assert result.shapes == {"x": (1, 2), "b": (2,), "y": (1, 2)} | between
    assert result.named == [("Relu_0", "Relu"), ("last", "Add")]
    assert [node.op_type for node in result.nodes] == ["Relu", "Add"]
    assert list(result.initialisers["b"].float_data) == [1.0, 2.0]
    assert result.external == set()


def test_operator_that_is_not_allowed_is_refused_once_the_check_is_asked_for(tmp_path):
    result = open_onnx(saved(tmp_path / "m.onnx", helper.make_node("RandomNormalLike", ["x"], ["y"])))
    assert result.ends[1] == {"y": (1, 2)}
    with pytest.raises(StretchError, match=r"m\.onnx cannot be run: operator .*RandomNormalLike"):
        _ = result.demand


def test_damaged_file_is_refused_as_it_is_opened(tmp_path):
    (tmp_path / "m.onnx").write_bytes(two(tmp_path / "whole.onnx").read_bytes()[:-9])
    with pytest.raises(StretchError, match=r"m\.onnx is no ONNX model"):
        open_onnx(tmp_path / "m.onnx")


def graph(nodes=(), initializers=(), name="g"):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2]) for n in ("x", "y")]
    return helper.make_graph(list(nodes), name, values[:1], values[1:], list(initializers))


@pytest.mark.parametrize("content", [None, b"", b"text"])
def test_file_that_is_no_model_is_one_error(tmp_path, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StretchError, match=r"cannot read|is no ONNX model"):
        decode(path)


def test_weight_beside_the_file_is_not_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    assert stored_tensor(tensor, tmp_path / "m.onnx").values is None
