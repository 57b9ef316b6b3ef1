import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.evaluation.shares import share_of


@pytest.mark.parametrize(("right", "images"), [(0, 1), (20, 20), (3, 10), (49_998, 50_000)])
def test_interval_of_whole_images_is_scipys(right, images):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, images).proportion_ci(method="wilson")
    share = share_of(right, images)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.floats(0, n))))
def test_interval_holds_the_share_and_stays_a_share(counted):
    images, total = counted
    share = share_of(total, images)
    assert 0 <= share.low <= share.value == total / images <= share.high <= 1
    assert share.images == images
