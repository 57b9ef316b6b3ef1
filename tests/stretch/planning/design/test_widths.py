from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.design.widths import partitions, scaled_units


@given(st.integers(1, 512), st.sampled_from([1, 2, 8, 24]), st.floats(0.05, 2.0), st.sampled_from([1, 4, 8, 16, 32]))
def test_scaled_channels_are_a_multiple_of_the_slice_unless_too_few(units, per, ratio, align):
    kept = scaled_units(units, per, ratio, align)
    assert kept >= 1
    if ratio == 1:
        assert kept == units
    elif units * ratio * per >= align * per:
        assert kept * per % align == 0


@given(st.integers(1, 300).map(lambda n: n * 4), st.lists(st.integers(1, 400), min_size=1, max_size=3), st.sampled_from([1, 4, 8]))
def test_partitions_add_up_and_leave_nobody_out(width, widths, align):
    shares = partitions(width, widths, align)
    assert sum(shares) == width
    assert min(shares) > 0


@given(st.integers(3, 64), st.lists(st.integers(1, 400), min_size=2, max_size=3))
def test_partitions_are_less_than_a_channel_off_their_proportion_unless_that_is_none(width, widths):
    exact = [width * each / sum(widths) for each in widths]
    if min(exact) >= 1:
        assert all(abs(share - part) < 1 for share, part in zip(partitions(width, widths, 1), exact, strict=True))
