"""Operators are counted by what becomes of them."""

import pytest

pytest.importorskip("pyopencl")

from experiments.paper.p000_delegate_partition.run import left, row

TOLD = {
    "operators": [
        {"op": "Conv", "taken": True},
        {"op": "Gather", "taken": False},
        {"op": "Relu", "taken": True},
        {"op": "Gather", "taken": False},
        {"op": "Split", "taken": False},
        {"op": "Identity", "taken": None},
    ],
    "partitions": 2,
    "copies": 3,
    "share": 0.9996,
}


def test_row_counts_what_is_taken_and_what_is_left(tmp_path):
    found = row("net", tmp_path / "absent.onnx", TOLD)
    assert (found["operators"], found["on the GPU"], found["on the CPU"]) == (6, 2, 3)
    assert found["left to the CPU"] == "2 Gather, 1 Split"
    assert found["multiply-accumulates on the GPU %"] == 100.0
    assert found["left after fusion"] is None


def test_file_that_the_delegate_does_not_read_has_no_count(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no network")
    assert left(path) is None
