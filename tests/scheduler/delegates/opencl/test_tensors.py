import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.tensors import Blocking

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
def test_slice_of_channels_is_where_these_channels_are(shape, blocking, data):
    n, c, h, w = shape
    first = data.draw(st.integers(0, (c - 1) // blocking.lanes)) * blocking.lanes
    count = data.draw(st.integers(1, c - first))
    whole = blocking.blocked("t", shape)
    part = whole.channels(first, count)
    assert part.shape == (n, count, h, w)
    assert all(element(part, i, k, y, x) == element(whole, i, first + k, y, x) for i, k, y, x in np.ndindex(n, count, h, w))
