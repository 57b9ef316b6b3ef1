"""Arrays, and the scales of those in eight bits."""

import io
import os

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some
from onnx import numpy_helper

from predictors.errors import StretchError
from scheduler.formats.int8_edges import Edge, edges
from scheduler.formats.npy import read_npy
from tests.scheduler.delegates import qdq

KINDS = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int64, np.bool_]


def content(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@given(array=st.sampled_from(KINDS).flatmap(lambda kind: some.arrays(kind, some.array_shapes(min_dims=0, max_side=4))))
def test_plain_arrays_come_back_as_they_were_saved(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    np.save(path, array)
    np.testing.assert_array_equal(read_npy(path, "input"), array)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        content(np.ones(8, np.float32))[:-1],
        content(np.ones(8, np.float32)) + b"0",
        content(np.ones(8, np.float32)).replace(b"(8,)", b"(9,)"),
        content(np.ones(10, np.float32)).replace(b"(10,), }" + b" " * 11, b"(10**12,), }" + b" " * 7),
        content(np.ones(8, np.float32)).replace(b"(8,), }      ", b"(10000000000,)}"),
        content(np.ones(8, np.complex64)),
        content(np.array(["words"])),
        b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000,
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100,
        b"\x93NUMPY\x09\x00\x10\x27" + b" " * 100,
    ],
)
def test_file_that_is_no_array_or_another_than_its_header_says_is_one_sentence(tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(StretchError, match=r"is not a \.npy file of plain numbers"):
        read_npy(tmp_path / "x.npy", "input")


def test_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([os.system], dtype=object), allow_pickle=True)
    with pytest.raises(StretchError, match="plain numbers"):
        read_npy(tmp_path / "x.npy", "input")


def test_archive_of_arrays_is_told_from_an_array(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    with pytest.raises(StretchError, match="several arrays"):
        read_npy(tmp_path / "x.npz", "input")


@pytest.fixture
def int8(tmp_path):
    """A convolution in int8 with known scales."""
    qdq.save_conv(tmp_path / "m.onnx")
    return onnx.load(tmp_path / "m.onnx")


def node(model, name):
    return next(node for node in model.graph.node if node.name == name)


def test_scales_at_the_edges_are_those_it_was_written_with(int8):
    assert edges(int8) == ({"x": Edge(qdq.X_SCALE, 128)}, {"y": Edge(qdq.Y_SCALE, 128)})


def test_subgraph_that_never_rounds_its_output_is_refused(int8):
    node(int8, "conv").output[0] = "y"
    for name in ("y_q", "y_dq"):
        int8.graph.node.remove(node(int8, name))
    with pytest.raises(StretchError, match="writes `y` without dequantising it"):
        edges(int8)


def test_subgraph_that_takes_what_it_reads_for_its_own_integers_is_refused(int8):
    node(int8, "x_q").op_type = "Cast"
    del node(int8, "x_q").input[1:]
    with pytest.raises(StretchError, match="reads `x` without quantising it"):
        edges(int8)


def test_output_in_the_scale_of_another_branch_is_refused(int8):
    int8.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other"))
    node(int8, "y_dq").input[1] = "other"
    with pytest.raises(StretchError, match="another scale than it was rounded in"):
        edges(int8)


@pytest.mark.parametrize("name", ["nowhere", "w_scale"])
def test_edge_without_one_scale_is_refused(int8, name):
    node(int8, "x_q").input[1] = name
    with pytest.raises(StretchError, match="no single scale at `x_q`"):
        edges(int8)
