"""Shape inference of the onnx library on files of any origin."""

from contextlib import suppress

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from predictors.errors import StretchError
from predictors.formats.inference import LARGE, infer_shapes
from predictors.formats.onnx import read_onnx
from scheduler.tools.explain.model import open_model


def model_of(nodes, inputs, outputs, weights=()):
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", tensors, ends, [numpy_helper.from_array(value, name) for name, value in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


FATAL = {  # the inference of onnx 1.23 reads beyond its memory: mostly a signal ends its process, as what lies there decides
    "gather": model_of(
        [helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-2)], {"x": [2, 3, 4]}, ["y"], [("i", np.zeros((2, 1), np.int64))]
    ),
    "split": model_of([helper.make_node("Split", ["x"], list("abcd"), num_outputs=2)], {"x": [4, 4]}, list("abcd")),
}


@pytest.mark.parametrize("name", FATAL)
def test_file_that_may_end_the_librarys_inference_ends_in_an_answer_or_a_sentence(tmp_path, name):
    onnx.save(FATAL[name], tmp_path / "m.onnx")
    with suppress(StretchError) if name == "gather" else pytest.raises(StretchError, match=r"the shapes of .*m\.onnx cannot be worked out"):
        read_onnx(tmp_path / "m.onnx")
    assert [op.op for op in open_model(tmp_path / "m.onnx").ops] == [FATAL[name].graph.node[0].op_type]


def test_shapes_do_not_depend_on_the_process_or_on_weights_that_are_left_out():
    weight = np.ones((LARGE, 3, 1, 1), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Reshape", ["c", "s"], ["y"])]
    model = model_of(nodes, {"x": [1, 3, 4, 4]}, ["y"], [("w", weight), ("s", np.array([1, -1]))])
    for trusted in (False, True):
        values = infer_shapes(model, "m", trusted=trusted)
        shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
        assert (shapes["c"], shapes["y"]) == ([1, LARGE, 4, 4], [1, LARGE * 16])
    assert len(model.graph.initializer) == 2
