import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.evaluation.shares import Share


@pytest.mark.parametrize(("right", "images"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 10), (719, 1000), (49_998, 50_000)])
def test_interval_of_whole_images_is_scipys(right, images):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(right, images).proportion_ci(method="wilson")
    assert Share(right / images, images).interval == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.just(n), st.floats(0, n))))
def test_interval_holds_the_share_and_stays_a_share(counted):
    images, total = counted
    low, high = Share(total / images, images).interval
    assert 0 <= low <= total / images <= high <= 1


def test_json_has_value_interval_and_images():
    share = Share(0.5, 8)
    low, high = share.interval
    assert share.to_json() == {"value": 0.5, "low": low, "high": high, "images": 8}
