import onnx
import pytest
from onnx import TensorProto, helper

from predictors.errors import StretchError
from scheduler.formats.onnx.file import graph_shapes, load_onnx


def external(name, location):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def graph(nodes=(), initializers=(), name="g"):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2]) for n in ("x", "y")]
    return helper.make_graph(list(nodes), name, values[:1], values[1:], list(initializers))


def test_shapes_leave_weights_out(tmp_path):
    path = tmp_path / "m.onnx"
    weight = helper.make_tensor("x", TensorProto.FLOAT, [1, 2], [1.0, 2.0])
    onnx.save(helper.make_model(graph([helper.make_node("Relu", ["x"], ["y"])], [weight])), str(path))
    assert graph_shapes(load_onnx(path), path) == ({}, {"y": (1, 2)})


@pytest.mark.parametrize("content", [None, b"", b"text"])
def test_file_that_is_no_model_is_one_error(tmp_path, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StretchError, match=r"cannot read|is not an ONNX model"):
        load_onnx(path)
