import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.tensors import Blocking, image_shape, plain

shapes = st.tuples(*[st.integers(1, 9)] * 4)
blockings = st.builds(Blocking, st.sampled_from([4, 8, 16]), st.booleans())


def element(view, n, c, h, w):
    """Index of an element in memory, as the kernels compute it."""
    return (
        view.offset + n * view.strides[0] + c // view.lanes * view.strides[1] + h * view.strides[2] + w * view.strides[3] + c % view.lanes
    )


@given(shapes, blockings)
def test_every_element_has_a_place_of_its_own_inside_the_buffer(shape, blocking):
    view = blocking.blocked("t", shape)
    places = {element(view, *index) for index in np.ndindex(*shape)}
    assert len(places) == int(np.prod(shape))
    assert max(places) * blocking.item_bytes < view.bytes


@given(shapes, blockings, st.data())
def test_rows_are_where_they_were(shape, blocking, data):
    first = data.draw(st.integers(0, shape[2] - 1))
    count = data.draw(st.integers(1, shape[2] - first))
    whole = blocking.blocked("t", shape)
    part = whole.rows(first, count)
    assert part.image == (*shape[:2], count, shape[3])
    for n, c, h, w in np.ndindex(*part.image):
        assert element(part, n, c, h, w) == element(whole, n, c, h + first, w)


@given(shapes, blockings, st.data())
def test_slice_of_channels_is_where_these_channels_are(shape, blocking, data):
    n, c, h, w = shape
    first = data.draw(st.integers(0, (c - 1) // blocking.lanes)) * blocking.lanes
    count = data.draw(st.integers(1, c - first))
    whole = blocking.blocked("t", shape)
    part = whole.channels(first, count)
    assert part.shape == (n, count, h, w)
    assert all(element(part, i, k, y, x) == element(whole, i, first + k, y, x) for i, k, y, x in np.ndindex(n, count, h, w))


@given(shapes)
def test_plain_tensor_is_row_major(shape):
    view = plain("t", shape)
    assert [element(view, *i) for i in np.ndindex(*shape)] == list(range(int(np.prod(shape))))
    assert view.bytes == 4 * int(np.prod(shape))


def test_half_precision_takes_two_bytes_an_element_and_plain_tensors_stay_in_floats():
    assert Blocking(8, True, half=True).blocked("t", (1, 8, 2, 2)).bytes == 64
    assert plain("t", (1, 8, 2, 2)).bytes == 128


def test_matrix_is_images_of_one_pixel():
    assert image_shape((2, 5)) == (2, 5, 1, 1)
    with pytest.raises(ValueError, match="not enough values"):
        image_shape((2, 5, 3))
