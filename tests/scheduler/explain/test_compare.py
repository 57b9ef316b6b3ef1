"""Models compared on random inputs."""

import math

import onnx
import pytest

from predictors.errors import StretchError
from scheduler.explain.compare import largest_difference
from scheduler.explain.fixing import single_precision
from tests.scheduler.explain.files import FOREIGN, doubles, node, plain

pytest.importorskip("onnxruntime")


def save(path, proto):
    onnx.save(proto, str(path))
    return path


def test_same_model_does_not_differ(tmp_path, foreign):
    assert largest_difference(foreign["plain"], save(tmp_path / "same.onnx", plain())) == 0


def test_changed_weight_is_a_difference(tmp_path, foreign):
    other = plain()
    array = onnx.numpy_helper.to_array(other.graph.initializer[0]) * 1.5
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    assert largest_difference(foreign["plain"], save(tmp_path / "other.onnx", other)) == pytest.approx(0.5, rel=1e-3)


def test_other_shape_differs_without_bound(tmp_path, foreign):
    other = plain()
    other.graph.node[2].CopyFrom(node("Relu", ["r"], ["y"], "again"))
    other.graph.output[0].CopyFrom(FOREIGN["own_domain"]().graph.output[0])
    assert largest_difference(foreign["plain"], save(tmp_path / "other.onnx", other)) == math.inf


def test_other_names_are_refused(tmp_path, foreign):
    other = plain()
    other.graph.node[2].output[0] = other.graph.output[0].name = "z"
    with pytest.raises(StretchError, match="takes or gives other tensors"):
        largest_difference(foreign["plain"], save(tmp_path / "other.onnx", other))


def test_types_that_have_no_kernel_are_computed_as_onnx_defines_them(tmp_path, foreign):
    assert largest_difference(foreign["doubles"], save(tmp_path / "single.onnx", single_precision(doubles()))) < 1e-5


def test_model_that_nothing_runs_cannot_be_compared(foreign):
    with pytest.raises(StretchError, match="no change of it can be compared"):
        largest_difference(foreign["own_domain"], foreign["plain"])
