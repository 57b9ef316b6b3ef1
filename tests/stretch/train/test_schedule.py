import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.train.loop import learning_rate


@given(st.integers(1, 1000), st.integers(0, 50), st.floats(1e-3, 10))
def test_rate_rises_to_its_peak_then_falls_towards_zero(steps, warmup, peak):
    rates = [learning_rate(s, steps + warmup, warmup, peak) for s in range(steps + warmup)]
    assert max(rates) == pytest.approx(peak)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rates[: warmup + 1]))
    assert all(a >= b for a, b in itertools.pairwise(rates[warmup:]))
    assert min(rates) >= 0


def test_half_of_the_cosine_is_half_of_the_peak():
    assert learning_rate(50, 100, 0, 0.2) == pytest.approx(0.1)
