import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from predictors.operators import kind_of
from predictors.windows import window_shape
from stretch.formats.tflite.padding import window, within_same
from tests.scheduler.delegates.graphs import windows


def reads(size, before, count, kernel, stride, dilation):
    """Pixels that each window reads, with those of the padding left out."""
    return [{p for k in range(kernel) if 0 <= (p := i * stride + k * dilation - before) < size} for i in range(count)]


def in_tflite(place, axis, size, count, kernel, stride, dilation):
    """The same by TFLite's rules: SAME centres what is missing, VALID has no padding but what was put around the image."""
    if place.padding == 0:
        assert count == -(-size // stride)
        missing = max((count - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        return reads(size, missing // 2, count, kernel, stride, dilation)
    padded = place.before[axis] + size + place.after[axis]
    assert count == (padded - (kernel - 1) * dilation - 1) // stride + 1
    return reads(size, place.before[axis], count, kernel, stride, dilation)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conv", "max_pool", "avg_pool"])
@given(data=st.data())
def test_windows_read_the_same_pixels(kind, data):
    side, attrs = data.draw(windows(kind))
    image = (1, 6, *side)
    result = kind_of(kind).shape([image], attrs)
    place = window(attrs, image, result)
    for axis in (0, 1):
        steps = (attrs["kernel"][axis], attrs["stride"][axis], attrs.get("dilation", (1, 1))[axis])
        size, count = side[axis], result[axis + 2]
        assert in_tflite(place, axis, size, count, *steps) == reads(size, attrs["padding"][axis], count, *steps)


@pytest.mark.parametrize(
    ("size", "stride", "rule", "explicit"), [(8, 1, 0, False), (8, 2, 1, True), (7, 2, 0, False)], ids=["same", "symmetric", "odd"]
)
def test_symmetric_padding_needs_an_operator_only_where_same_is_another_rule(size, stride, rule, explicit):
    attrs = {"kernel": (3, 3), "stride": (stride, stride), "padding": (1, 1, 1, 1)}
    image = (1, 4, size, size)
    place = window(attrs, image, kind_of("max_pool").shape([image], attrs))
    assert (place.padding, place.explicit) == (rule, explicit)


@pytest.mark.slow
@given(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.booleans(), st.sampled_from([0, 1])
)
def test_windows_that_same_has_read_the_same_of_the_image(size, kernel, stride, before, after, ceil_mode, axis):
    padding = (before, before, after, after)
    attrs = {"kernel": (kernel, kernel), "stride": (stride, stride), "padding": padding, "ceil_mode": ceil_mode}
    assume(size + before + after >= kernel and max(before, after) < kernel)
    image = (1, 1, size, size)
    result = window_shape(image, attrs, 1)
    found = within_same(attrs, image, result, axis)
    if found is None:
        return
    whole = found.before + size + found.after
    assert found.count == -(-whole // stride)
    same = max((found.count - 1) * stride + kernel - whole, 0) // 2
    for number in range(result[axis + 2]):
        wanted = number * stride - before
        begins = (found.first + number) * stride - same - found.before
        assert begins == wanted
        reads = range(max(begins, -found.before), min(begins + kernel, size + found.after))
        assert set(reads) == {row for row in range(wanted, wanted + kernel) if 0 <= row < size}
