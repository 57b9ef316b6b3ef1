import io
import os

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import numpy_helper

from predictors.errors import StretchError
from scheduler.formats.int8_edges import Quant, edges
from scheduler.formats.npy import read_npy
from tests.scheduler.delegates import qdq

KINDS = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int64, np.bool_]


def content(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


ONES = content(np.ones(8, np.float32))


@given(array=st.sampled_from(KINDS).flatmap(lambda kind: npst.arrays(kind, npst.array_shapes(min_dims=0, max_side=4))))
def test_plain_arrays_are_read_as_they_were_saved(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    np.save(path, array)
    np.testing.assert_array_equal(read_npy(path, "input"), array)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"text", ONES[:-1], ONES + b"0", ONES.replace(b"(8,)", b"(9,)"), ONES.replace(b"(8,), }      ", b"(10000000000,)}")),
        content(np.ones(10, np.float32)).replace(b"(10,), }" + b" " * 11, b"(10**12,), }" + b" " * 7),
        # the last one is a pickle
        *(content(array) for array in (np.ones(8, np.complex64), np.array(["words"]), np.array([os.system], dtype=object))),
        b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000,
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100,
        b"\x93NUMPY\x09\x00\x10\x27" + b" " * 100,
    ],
)
def test_file_that_is_no_array_or_contradicts_its_header_is_refused(tmp_path, data):
    (tmp_path / "x.npy").write_bytes(data)
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    for name, message in (("x.npy", "plain numbers"), ("x.npz", "several arrays")):
        with pytest.raises(StretchError, match=message):
            read_npy(tmp_path / name, "input")


@pytest.fixture
def int8(tmp_path):
    """A convolution in int8 with known scales."""
    qdq.save_conv(tmp_path / "m.onnx")
    return onnx.load(tmp_path / "m.onnx")


def node(model, name):
    return next(node for node in model.graph.node if node.name == name)


def test_scales_of_inputs_and_outputs_are_read(int8):
    assert edges(int8) == ({"x": Quant(qdq.X_SCALE, 128)}, {"y": Quant(qdq.Y_SCALE, 128)})


def never_rounded(model):
    node(model, "conv").output[0] = "y"
    for name in ("y_q", "y_dq"):
        model.graph.node.remove(node(model, name))


def read_as_it_is(model):
    node(model, "x_q").op_type = "Cast"
    del node(model, "x_q").input[1:]


def in_another_scale(model):
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "other"))
    node(model, "y_dq").input[1] = "other"


def of_scale(name):
    return lambda model: node(model, "x_q").input.__setitem__(1, name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (never_rounded, "writes `y` without dequantising it"),
        (read_as_it_is, "reads `x` without quantising it"),
        (in_another_scale, "another scale than it was rounded in"),
        (of_scale("nowhere"), "no single scale at `x_q`"),
        (of_scale("w_scale"), "no single scale at `x_q`"),
    ],
)
def test_input_or_output_without_a_single_scale_is_refused(int8, change, problem):
    change(int8)
    with pytest.raises(StretchError, match=problem):
        edges(int8)
