import numpy as np
import pytest

from scheduler.delegates.opencl.lowering import MAX_ELEMENTS, UnsupportedError
from tests.scheduler.delegates.opencl import networks


def test_output_that_is_read_inside_as_well_and_output_that_is_an_input(tmp_path):
    nodes = [("Relu", ["x"], "y", {}), ("Tanh", ["y"], "z", {}), ("Identity", ["x"], "same", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 5, 3, 3)}, ["y", "z", "same"], {})
    assert networks.error(path) <= 1e-6


def test_operator_without_a_kernel_is_refused_by_name(tmp_path):
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5)}, ["y"], {})
    with pytest.raises(UnsupportedError, match="node `y` is a Cos, for which the opencl delegate has no kernel"):
        networks.launches(path)


def test_operator_of_another_rank_is_refused_with_the_reason(tmp_path):
    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (2, 3, 5)}, ["y"], {})
    with pytest.raises(UnsupportedError, match=r"node `y` \(Unary\): `x` has rank 3"):
        networks.launches(path)


def test_tensor_beyond_32_bit_indices_is_refused(tmp_path):
    side = int(MAX_ELEMENTS**0.5) + 1
    path = networks.save(tmp_path / "m.onnx", [("Relu", ["x"], "y", {})], {"x": (1, 1, side, side)}, ["y"], {})
    with pytest.raises(UnsupportedError, match="more than"):
        networks.launches(path)


def test_weights_that_are_computed_are_refused(tmp_path):
    path = networks.save(
        tmp_path / "m.onnx", [networks.conv("x", "y", "v", kernel_shape=[2, 2])], {"x": (1, 3, 4, 4), "v": (2, 3, 2, 2)}, ["y"], {}
    )
    with pytest.raises(UnsupportedError, match="`v` is computed"):
        networks.launches(path)


def test_flatten_of_larger_images_brings_channels_in_order(tmp_path):
    weights = {"w": networks.numbers(4, 45)}
    nodes = [("Relu", ["x"], "r", {}), ("Flatten", ["r"], "f", {}), ("Gemm", ["f", "w"], "y", {"transB": 1})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 5, 3, 3)}, ["y"], weights)
    assert networks.error(path) <= 1e-5
    assert np.isfinite(networks.error(path))
