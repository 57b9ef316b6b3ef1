import numpy as np
import pytest

from scheduler.delegates.opencl.lowering import UnsupportedError
from tests.scheduler.delegates.opencl import networks


def test_output_that_is_read_inside_as_well_and_output_that_is_an_input(tmp_path):
    nodes = [("Relu", ["x"], "y", {}), ("Tanh", ["y"], "z", {}), ("Identity", ["x"], "same", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 5, 3, 3)}, ["y", "z", "same"], {})
    assert networks.error(path) <= 1e-6


def test_operator_without_a_kernel_is_refused_by_name(tmp_path):
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5)}, ["y"], {})
    with pytest.raises(UnsupportedError, match="node `y` is a Cos, for which the opencl delegate has no kernel"):
        networks.launches(path)


def test_reshape_of_images_of_one_pixel_launches_nothing(tmp_path):
    nodes = [("GlobalAveragePool", ["x"], "g", {}), ("Flatten", ["g"], "f", {}), ("Relu", ["f"], "y", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 5, 3, 3)}, ["y"], {})
    assert networks.kernels(path) == ["move", "global_pool", "elementwise", "move"]
    assert networks.error(path) <= 1e-6


def test_flatten_of_larger_images_brings_channels_in_order(tmp_path):
    weights = {"w": networks.numbers(4, 45)}
    nodes = [("Relu", ["x"], "r", {}), ("Flatten", ["r"], "f", {}), ("Gemm", ["f", "w"], "y", {"transB": 1})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 5, 3, 3)}, ["y"], weights)
    assert networks.error(path) <= 1e-5
    assert np.isfinite(networks.error(path))
