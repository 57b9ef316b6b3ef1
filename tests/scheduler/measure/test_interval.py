import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.measure.interval import BATCHES, T_975, ratio_interval

positive = st.floats(0.01, 100.0)


def test_quantiles_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    assert len(T_975) == BATCHES - 1
    assert [round(float(stats.t.ppf(0.975, df)), 6) for df in range(1, BATCHES)] == list(T_975)


def test_interval_of_one_number_a_batch_is_students_on_logarithms():
    stats = pytest.importorskip("scipy.stats")
    times, others = [3.0, 3.1, 2.9, 3.3, 3.2, 2.8, 3.0, 3.05], [2.0, 2.2, 2.1, 1.9, 2.0, 2.3, 2.1, 2.05]
    logs = np.log(np.array(times) / np.array(others))
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    found = ratio_interval(times, others)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


def covered(draw, truth, trials=300, rounds=40):
    rng = np.random.default_rng(7)
    found = [ratio_interval(*draw(rng, rounds)) for _ in range(trials)]
    return np.mean([each.low <= truth <= each.high for each in found])


def test_interval_holds_the_true_ratio_of_independent_rounds():
    def draw(rng, rounds):
        return 2.0 * rng.lognormal(0, 0.1, rounds), rng.lognormal(0, 0.1, rounds)

    assert covered(draw, 2.0) >= 0.92


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=60))
def test_interval_holds_its_ratio_and_turns_round_with_the_contestants(pairs):
    a, b = zip(*pairs, strict=True)
    one, other = ratio_interval(a, b), ratio_interval(b, a)
    assert one.low <= one.value <= one.high
    assert one.low == pytest.approx(1 / other.high, rel=1e-9)
    assert one.side == -other.side
