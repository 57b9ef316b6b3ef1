"""Intervals of medians over starts, against scipy and against draws of which the truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.measure.bench.interval import MOST_STARTS, known, paired

times = st.lists(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=12), min_size=1, max_size=MOST_STARTS)


def test_interval_of_starts_of_one_round_is_students_on_logarithms():
    stats = pytest.importorskip("scipy.stats")
    values = [3.0, 3.1, 2.9, 3.3, 3.2]
    logs = np.log(values)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    found = known([[each] for each in values])
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=math.sqrt(2) * stats.sem(logs))
    assert (found.repeat_low, found.repeat_high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


@given(times)
def test_intervals_hold_the_median_and_the_wider_one_holds_the_narrower(starts):
    found = known(starts)
    assert found.value == float(np.median(np.concatenate(starts)))
    if found.low is not None:
        assert found.repeat_low <= found.low <= found.value <= found.high <= found.repeat_high
    else:
        assert sum(map(len, starts)) == 1


def test_one_round_has_no_interval_and_no_side():
    found = known([[2.0]])
    assert (found.low, found.high, found.repeat_low, found.repeat_high) == (None, None, None, None)
    assert (found.side, found.width) == (0, math.inf)


@pytest.mark.slow
def test_median_of_another_measurement_lies_where_it_is_expected_though_starts_differ_more_than_their_rounds():
    rng = np.random.default_rng(3)

    def measurement():
        """Starts that differ by 5 %, rounds by 1 %."""
        return known([10 * rng.lognormal(0, 0.05) * rng.lognormal(0, 0.01, 20) for _ in range(5)])

    pairs = [(measurement(), measurement()) for _ in range(600)]
    held = np.mean([one.repeat_low <= other.value <= one.repeat_high for one, other in pairs])
    # four standard errors of 0.95 in 600 draws are 0.036
    assert 0.914 <= held <= 0.986


@pytest.mark.slow
def test_rounds_that_resemble_their_neighbours_do_not_make_one_start_look_surer_than_it_is():
    rng = np.random.default_rng(5)

    def drifting(rounds=400):
        noise = np.zeros(rounds)
        for i in range(1, rounds):
            noise[i] = 0.9 * noise[i - 1] + rng.normal(0, 0.01)
        return 10 * np.exp(noise)

    found = [known([drifting()]) for _ in range(200)]
    held = np.mean([each.low <= 10 <= each.high for each in found])
    naive = []
    for _ in range(200):
        each = np.log(drifting())
        half = 1.2533 * 1.96 * each.std() / math.sqrt(len(each))
        naive.append(abs(np.median(each) - math.log(10)) <= half)
    assert held >= 0.85 > np.mean(naive) + 0.1


def test_ratio_of_paired_rounds_is_not_moved_by_what_slows_both():
    rng = np.random.default_rng(7)
    first = [[10.0 * slow for slow in rng.lognormal(0, 0.5, 20)] for _ in range(5)]
    other = [[2 * each for each in start] for start in first]
    found = known(paired(other, first))
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))
    assert found.side == 1
    assert known(paired(first, other)).side == -1
