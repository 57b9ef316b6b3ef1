import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from stretch.models.builder import Builder, shape_of
from stretch.models.onnx import read_module
from stretch.models.onnx.steps import Steps, common, reread
from tests.stretch.models.onnx.graphs import net

pytestmark = pytest.mark.torch


def steps(scale, zero, kind=np.uint8):
    return Steps(np.asarray(scale, np.float32), np.asarray(zero, kind))


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


@pytest.mark.parametrize("node", [helper.make_node("Cast", ["q"], ["y"], to=1), helper.make_node("QuantizeLinear", ["q", "s", "z"], ["y"])])
def test_bytes_as_numbers_are_refused(tmp_path, node):
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), node]
    onnx.save(net(*nodes, stored={"s": np.float32(0.1), "z": np.array(1, np.uint8)}), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=r"computes with bytes|is rounded already"):
        read_module(tmp_path / "m.onnx")
