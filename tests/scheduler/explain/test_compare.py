"""Models compared on random inputs."""

import math

import onnx
import pytest

from predictors.errors import StretchError
from scheduler.explain.compare import largest_difference
from tests.scheduler.explain.files import FOREIGN, node, plain

pytest.importorskip("onnxruntime")


def save(path, proto):
    onnx.save(proto, str(path))
    return path


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
