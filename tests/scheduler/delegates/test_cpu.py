import os

import numpy as np
import onnx
import pytest
from onnx import helper

from predictors.errors import StretchError
from scheduler.delegates.cpu import CpuDelegate
from tests import onnx_runtime

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_writes_straight_into_a_slice_of_a_larger_buffer_and_nowhere_else(bundle_dir):
    joined = np.full((1, 20, 8, 8), 5, np.float32)
    CpuDelegate().compile(bundle_dir / "stem.onnx").run([X], [joined[:, 7:13]])
    expected = onnx_runtime.output(bundle_dir / "stem.onnx", X)
    assert np.array_equal(joined[:, 7:13], expected)
    assert (joined[:, :7] == 5).all()
    assert (joined[:, 13:] == 5).all()


def test_one_thread_leaves_no_helper_threads(bundle_dir):
    def threads():
        return len(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("this system does not list threads")
    before = threads()
    compiled = CpuDelegate().compile(bundle_dir / "stem.onnx")
    compiled.run([X], [np.zeros((1, 6, 8, 8), np.float32)])
    assert threads() == before


def test_model_without_fixed_shapes_is_refused(tmp_path):
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=r"`x` of .* has no fixed shape"):
        CpuDelegate().compile(tmp_path / "m.onnx")
