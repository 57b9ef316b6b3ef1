import numpy as np
from onnx import numpy_helper

from predictors.graph import Op
from stretch.formats.onnx import OnnxWriter

OP = Op("op", "scale", ("x",), shape=(1, 3, 4, 4))


def values(writer):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in writer.initialisers}


def test_weight_that_is_missing_is_filled_for_every_channel():
    writer = OnnxWriter({"op": {"weight": np.arange(3)}})
    assert [writer.weight(OP, "weight", 1.0), writer.weight(OP, "bias", 0.5)] == ["op.weight", "op.bias"]
    assert np.array_equal(values(writer)["op.weight"], [0, 1, 2])
    assert np.array_equal(values(writer)["op.bias"], [0.5, 0.5, 0.5])


def test_numbers_per_channel_meet_the_second_axis():
    writer = OnnxWriter({"op": {"weight": np.arange(3)}})
    writer.per_channel(OP, "weight")
    assert values(writer)["op.weight"].shape == (3, 1, 1)


def test_sizes_are_whole_numbers_and_values_are_real():
    writer = OnnxWriter({})
    writer.indices(OP, "axes", [2, 3])
    writer.number(OP, "value", 0.5)
    assert {name: str(value.dtype) for name, value in values(writer).items()} == {"op.axes": "int64", "op.value": "float32"}


def test_last_node_of_an_operator_is_called_like_it():
    writer = OnnxWriter({})
    writer.node("Sigmoid", OP, ["x"], output="op.sigmoid")
    writer.node("Mul", OP, ["x", "op.sigmoid"])
    assert [(node.name, node.output[0]) for node in writer.nodes] == [("op.sigmoid", "op.sigmoid"), ("op", "op")]
