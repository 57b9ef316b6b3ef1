import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.measure.links import MOST_GBS, Handover, fit_link

SIZES = [(1_000, 1_000), (1_000_000, 1_000), (1_000, 1_000_000), (4_000_000, 4_000_000)]


@given(st.floats(0.001, 5), st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_link_without_noise_is_found_again(fixed, to, back):
    runs = [Handover(i, o, fixed + i / (to * 1e6) + o / (back * 1e6)) for i, o in SIZES]
    found = fit_link(runs)
    assert (found.fixed_ms, found.to_gbs, found.back_gbs) == pytest.approx((fixed, to, back), rel=1e-4)


def test_nothing_is_negative_where_large_tensors_are_handed_over_as_fast_as_small_ones():
    found = fit_link([Handover(i, o, 1.0 - i * 1e-8) for i, o in SIZES])
    assert found.fixed_ms > 0
    assert found.to_gbs == MOST_GBS
    assert 0 < found.back_gbs <= MOST_GBS
