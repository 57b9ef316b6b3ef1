import pytest

from tests.scheduler.delegates.opencl import networks


def test_parts_of_a_concatenation_are_written_in_place(tmp_path):
    path = networks.classifier(tmp_path / "m.onnx")
    launches = networks.launches(path, winograd="off")
    assert [launch.kernel for launch in launches] == ["stem", "pool", "conv", "conv", "global_pool", "conv", "move", "softmax"]
    assert launches[2].buffers()[1] == launches[3].buffers()[1] == {"c"}


@pytest.mark.slow
def test_part_that_ends_inside_a_block_is_copied(tmp_path):
    weights = {"w1": networks.numbers(3, 4, 1, 1), "w2": networks.numbers(5, 4, 1, 1)}
    nodes = [
        networks.conv("x", "a", "w1", kernel_shape=[1, 1]),
        networks.conv("x", "b", "w2", kernel_shape=[1, 1]),
        ("Concat", ["a", "b", "x"], "y", {"axis": 1}),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 4, 3, 5)}, ["y"], weights)
    assert networks.error(path) <= 1e-5
