import pytest

from scheduler.delegates.opencl.lowering import MAX_ELEMENTS, UnsupportedError
from tests.scheduler.delegates.opencl import networks


def test_parts_of_a_concatenation_are_written_in_place(tmp_path):
    path = networks.classifier(tmp_path / "m.onnx")
    launches = networks.launches(path, winograd="off")
    assert [launch.kernel for launch in launches] == ["stem", "pool", "conv", "conv", "global_pool", "conv", "move", "softmax"]
    assert launches[2].buffers()[1] == launches[3].buffers()[1] == {"c"}


def test_part_that_ends_inside_a_block_is_copied(tmp_path):
    weights = {"w1": networks.numbers(3, 4, 1, 1), "w2": networks.numbers(5, 4, 1, 1)}
    nodes = [
        networks.conv("x", "a", "w1", kernel_shape=[1, 1]),
        networks.conv("x", "b", "w2", kernel_shape=[1, 1]),
        ("Concat", ["a", "b", "x"], "y", {"axis": 1}),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 4, 3, 5)}, ["y"], weights)
    assert networks.error(path) <= 1e-5


def test_tensor_in_two_concatenations_is_right_in_both(tmp_path):
    nodes = [
        ("Relu", ["x"], "a", {}),
        ("Concat", ["a", "x"], "c", {"axis": 1}),
        ("Concat", ["c", "a"], "d", {"axis": 1}),
        ("Relu", ["d"], "y", {}),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 16, 3, 3)}, ["y"], {})
    assert networks.error(path) == 0


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
