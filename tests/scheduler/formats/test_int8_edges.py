import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from predictors.errors import StretchError
from scheduler.formats.int8_edges import Edge, edges
from tests.scheduler.delegates import qdq


@pytest.fixture
def int8(tmp_path):
    """A convolution in int8 with known scales."""
    qdq.save_conv(tmp_path / "m.onnx")
    return onnx.load(tmp_path / "m.onnx")


def node(model, name):
    return next(node for node in model.graph.node if node.name == name)


def test_scales_at_the_edges_are_those_it_was_written_with(int8):
    assert edges(int8) == ({"x": Edge(qdq.X_SCALE, 128)}, {"y": Edge(qdq.Y_SCALE, 128)})


def test_subgraph_that_gives_its_integers_as_reals_is_refused(int8):
    last = node(int8, "y_dq")
    last.op_type = "Cast"
    del last.input[1:]
    last.attribute.append(helper.make_attribute("to", onnx.TensorProto.FLOAT))
    with pytest.raises(StretchError, match="writes `y` without dequantising it"):
        edges(int8)


def test_subgraph_that_never_rounds_its_output_is_refused(int8):
    node(int8, "conv").output[0] = "y"
    for name in ("y_q", "y_dq"):
        int8.graph.node.remove(node(int8, name))
    with pytest.raises(StretchError, match="writes `y` without dequantising it"):
        edges(int8)


def test_subgraph_that_takes_what_it_reads_for_its_own_integers_is_refused(int8):
    node(int8, "x_q").op_type = "Cast"
    del node(int8, "x_q").input[1:]
    with pytest.raises(StretchError, match="reads `x` without quantising it"):
        edges(int8)


def test_output_in_the_scale_of_another_branch_is_refused(int8):
    int8.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other"))
    node(int8, "y_dq").input[1] = "other"
    with pytest.raises(StretchError, match="another scale than it was rounded in"):
        edges(int8)


@pytest.mark.parametrize("name", ["nowhere", "w_scale"])
def test_edge_without_one_scale_is_refused(int8, name):
    node(int8, "x_q").input[1] = name
    with pytest.raises(StretchError, match="no single scale at `x_q`"):
        edges(int8)
