import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper
from onnx.reference import ReferenceEvaluator

from predictors.errors import StretchError
from stretch.models.builder import Builder, shape_of
from stretch.models.onnx import read_module
from stretch.models.onnx.steps import Steps, common, reread
from tests.stretch.models.onnx.graphs import computed, net
from tests.stretch.models.onnx.oracle import random

pytestmark = pytest.mark.torch

KINDS = st.sampled_from([np.uint8, np.int8])


def steps(scale, zero, kind=np.uint8):
    return Steps(np.asarray(scale, np.float32), np.asarray(zero, kind))


@given(KINDS, arrays.array_shapes(min_dims=2, max_dims=4), st.data())
def test_stored_bytes_stand_for_what_onnx_says(kind, shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    one = data.draw(st.booleans())
    stored = np.random.default_rng(0).integers(0, 127, shape).astype(kind)
    size = () if one else (shape[axis],)
    own = steps(np.random.default_rng(1).random(size) + 0.1, np.random.default_rng(2).integers(0, 9, size), kind)
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=axis)
    info = [onnx.ValueInfoProto(name=name) for name in "xsz"]
    model = helper.make_model(
        helper.make_graph([node], "g", info, [onnx.ValueInfoProto(name="y")]), opset_imports=[helper.make_opsetid("", 21)]
    )
    [want] = ReferenceEvaluator(model).run(None, {"x": stored, "s": own.scale, "z": own.zero})
    np.testing.assert_allclose(own.reals(stored, axis), want, rtol=1e-6)


@given(st.floats(0.125, 2, width=32), st.floats(0.125, 2, width=32), st.integers(0, 9), st.integers(0, 9))
def test_bytes_that_are_read_in_other_steps_are_other_numbers(one, other, zero, point):
    builder = Builder((2, 3))
    old, new = steps(one, zero), steps(other, point)
    numbers = np.arange(6, dtype=np.uint8).reshape(2, 3)
    found = reread(builder, builder.input, old, new)
    assert (found is builder.input) == old.same(new)
    if found is builder.input:
        return
    import torch

    with torch.no_grad():
        got = builder.finish(found, "Network")(torch.from_numpy(old.reals(numbers))).numpy()
    np.testing.assert_allclose(got, new.reals(numbers), rtol=1e-4, atol=1e-4)
    assert shape_of(found) == (2, 3)


@pytest.mark.parametrize(("scale", "zero"), [(np.inf, 0), (np.nan, 0), ([0.1, 0.2], [1, 2, 3])])
def test_steps_that_are_no_numbers_are_refused(scale, zero):
    with pytest.raises(StretchError):
        steps(scale, zero)


def test_scales_that_fit_no_axis_are_refused():
    with pytest.raises(StretchError, match=r"3 scales for the shape \[2, 4\]"):
        steps([0.1] * 3, [0] * 3).reals(np.zeros((2, 4), np.uint8), 1)
    builder = Builder((2, 3))
    with pytest.raises(StretchError, match="other scales than it states"):
        reread(builder, builder.input, steps([0.1] * 3, 0), steps(0.1, 0))
    with pytest.raises(StretchError, match="other scales than it states"):
        reread(builder, builder.input, steps(0.0, 0), steps(0.1, 0))


def test_only_what_moves_bytes_keeps_their_steps():
    own = steps(0.1, 3)
    assert common("Concat", [own, None, steps(0.1, 3)]) is own
    assert common("Tanh", [None]) is None
    with pytest.raises(StretchError, match="computes with bytes"):
        common("Tanh", [own])
    with pytest.raises(StretchError, match="with several scales"):
        common("Concat", [own, steps(0.2, 3)])


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Pad", ["q", "w", "z"], ["m"]),
        helper.make_node("Pad", ["q", "w", "n"], ["m"]),
        helper.make_node("Concat", ["q", "c"], ["m"], axis=1),
        helper.make_node("Clip", ["q", "n"], ["m"]),
        helper.make_node("MaxPool", ["q"], ["m"], kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["q"], ["m"], perm=[0, 2, 1, 3]),
    ],
    ids=lambda node: f"{node.op_type} {list(node.input)}",
)
def test_moved_bytes_and_stored_ones_beside_them_stand_for_the_same_numbers(tmp_path, node):
    import onnxruntime

    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), node, helper.make_node("DequantizeLinear", ["m", "s", "z"], ["y"])]
    shape = (1, 3, 4, 5)
    stored = {"s": np.float32(0.1), "z": np.array(100, np.uint8), "n": np.array(90, np.uint8), "w": np.array([0, 0, 1, 0, 0, 0, 2, 1])}
    model = net(*nodes, stored={**stored, "c": np.arange(60, dtype=np.uint8).reshape(shape)}, shape=shape)
    onnx.save(model, str(tmp_path / "m.onnx"))
    x = np.round(random(shape) * 20).astype(np.float32) * np.float32(0.1)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, atol=1e-5)


@pytest.mark.parametrize("node", [helper.make_node("Cast", ["q"], ["y"], to=1), helper.make_node("QuantizeLinear", ["q", "s", "z"], ["y"])])
def test_bytes_as_numbers_are_refused(tmp_path, node):
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), node]
    onnx.save(net(*nodes, stored={"s": np.float32(0.1), "z": np.array(1, np.uint8)}), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=r"computes with bytes|is rounded already"):
        read_module(tmp_path / "m.onnx")
