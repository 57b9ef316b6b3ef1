import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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


def test_images_larger_than_a_block_are_turned_whole():
    x = np.random.default_rng(0).standard_normal((1, 96, 60, 50)).astype(np.float32)
    turned, back = np.empty((1, 60, 50, 96), np.float32), np.empty_like(x)
    to_nhwc(x, turned)
    assert np.array_equal(turned, x.transpose(0, 2, 3, 1))
    to_nchw(turned, back)
    assert np.array_equal(back, x)


def test_rows_are_copied_as_they_are():
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.empty((2, 3), np.float32)
    to_nhwc(x, y)
    assert np.array_equal(x, y)
    to_nchw(x + 1, y)
    assert np.array_equal(x + 1, y)


def test_target_may_be_a_slice_of_a_joined_buffer():
    joined = np.zeros((1, 12, 5, 5), np.float32)
    x = np.random.default_rng(0).standard_normal((1, 5, 5, 4)).astype(np.float32)
    to_nchw(x, joined[:, 4:8])
    assert np.array_equal(joined[:, 4:8], x.transpose(0, 3, 1, 2))
    assert not joined[:, :4].any()
    assert not joined[:, 8:].any()
