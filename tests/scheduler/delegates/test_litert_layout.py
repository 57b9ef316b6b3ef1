"""Layouts that LiteRT takes and what it prints."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.base import quiet
from scheduler.delegates.litert import to_nchw, to_nhwc

shapes = st.tuples(st.integers(1, 2), st.integers(1, 130), st.integers(1, 40), st.integers(1, 9))


@given(shapes)
def test_channels_go_last_and_come_back(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    turned = np.empty((shape[0], *shape[2:], shape[1]), np.float32)
    to_nhwc(x, turned)
    assert np.array_equal(turned, x.transpose(0, 2, 3, 1))
    back = np.full(shape, np.nan, np.float32)
    to_nchw(turned, back)
    assert np.array_equal(back, x)


def test_notes_of_native_code_are_held_back_and_the_rest_is_passed_on(capfd):
    with quiet(b"INFO:", b"VERBOSE:"):
        os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nERROR: a tensor is missing\n")
    assert capfd.readouterr().err == "ERROR: a tensor is missing\n"


def test_standard_error_is_back_after_an_error(capfd):
    with pytest.raises(RuntimeError), quiet(b"INFO:", b"VERBOSE:"):
        raise RuntimeError
    os.write(2, b"INFO: later\n")
    assert capfd.readouterr().err == "INFO: later\n"
