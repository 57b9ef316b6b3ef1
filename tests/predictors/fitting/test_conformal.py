"""Intervals hold what they promise on what they have not seen."""

import numpy as np
import pytest
from hypothesis import strategies as st

from predictors.fitting.conformal import covered, ends, family_ends, family_interval, interval

ratios = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=60)


def test_a_new_ratio_of_the_same_distribution_is_inside_as_often_as_stated():
    """Exchangeable ratios: the guarantee of conformal prediction, checked on 4 000 draws."""
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(4000):
        some = np.exp(0.3 * draw.standard_normal(80))
        low, high = ends(list(some[:-1]))
        inside += low <= some[-1] <= high
    # Three standard errors of a share of 4 000 are 1.4 %; rounding to whole ranks adds up to 2.5 %.
    assert 0.885 <= inside / 4000 <= 0.94


def test_coverage_is_counted_without_the_family():
    families = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    # Family b lies outside of all that a says, and a outside of b.
    assert covered({"a1": 1.0, "a2": 1.1, "b1": 3.0, "b2": 3.1}, families) == pytest.approx(0.5)
    assert covered({"a1": 1.0, "a2": 1.0, "b1": 1.0, "b2": 1.0}, families) == 1.0


def test_interval_names_its_method_and_coverage():
    for made in (interval([0.9, 1.0, 1.2]), family_interval({"a": 0.9, "b": 1.0, "c": 1.2}, {"a": "a", "b": "b", "c": "c"})):
        assert (made.coverage, made.low, made.high) == (0.9, 0.9, 1.2)
        assert "Barber" in made.method


@pytest.mark.slow
def test_families_that_err_alike_are_covered_as_often_as_stated():
    """Twelve families whose networks share an error: a thirteenth is covered about as often as stated, and more often than by plain ranks."""
    draw = np.random.default_rng(0)
    families = {f"{family}.{network}": str(family) for family in range(12) for network in range(6)}
    plain, raised = [], []
    for _ in range(60):
        shared = {family: 0.1 * draw.standard_normal() for family in [*families.values(), "new"]}
        ratios = {name: float(np.exp(shared[family] + 0.02 * draw.standard_normal())) for name, family in families.items()}
        new = np.exp(shared["new"] + 0.02 * draw.standard_normal(50))
        for found, (low, high) in ((plain, ends(list(ratios.values()))), (raised, family_ends(ratios, families))):
            found.append(np.mean((low <= new) & (new <= high)))
    assert np.mean(plain) <= np.mean(raised)
    assert np.mean(raised) >= 0.83
