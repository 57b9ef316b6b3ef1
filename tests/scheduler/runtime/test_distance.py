import numpy as np
import pytest

from scheduler.runtime.distance import TOLERANCE, distance


def test_equal_tensors_are_at_no_distance():
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    assert [distance(x, x, precision) for precision in TOLERANCE] == [0, 0, 0]


def test_fp32_is_judged_by_its_largest_difference_and_less_by_root_mean_square():
    want = np.full(100, 2, np.float32)
    got = want.copy()
    got[7] += 1
    assert distance(got, want, "fp32") == pytest.approx(0.5)
    assert distance(got, want, "int8") == pytest.approx(1 / np.linalg.norm(want))


@pytest.mark.parametrize("precision", TOLERANCE)
def test_what_is_no_number_is_within_no_tolerance(precision):
    want = np.ones(4, np.float32)
    got = np.array([1, np.nan, 1, 1], np.float32)
    assert not distance(got, want, precision) <= TOLERANCE[precision]
