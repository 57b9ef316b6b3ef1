"""Intervals of medians over starts, against scipy and against draws of which the truth is known."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from scheduler.measure.bench.interval import MOST_STARTS, known

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


def test_one_round_has_no_interval_and_no_side():
    found = known([[2.0]])
    assert (found.low, found.high, found.repeat_low, found.repeat_high) == (None, None, None, None)
    assert (found.side, found.width) == (0, math.inf)


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
