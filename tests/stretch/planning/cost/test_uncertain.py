"""Numbers that predictions rest on: their intervals, and what each takes of a run."""

import numpy as np
import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.cost.uncertain import Unknown, added, drawn, interval, kernels, link, ms, slowest
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified

MI9 = specified("mi9")


def test_kinds_of_kernels_without_a_fit_err_each_for_itself():
    estimate = LatencyPredictor(MI9).predict(small_resnet(), "dsp")
    found = kernels(estimate, MI9)
    assert sum(found.values()) == pytest.approx(estimate.computing_ms)
    assert {key.what for key in found} == {f"{kernel.kernel.cost.kind} kernels on dsp" for kernel in estimate.kernels}
    off = 1 + MI9.processors["dsp"].uncertainty.value
    assert all((key.low, key.high) == (1 / off, off) for key in found)


def test_times_of_a_fit_err_together_by_its_interval():
    estimate = LatencyPredictor(MI9).predict(small_resnet(), "dsp")
    fitted = type(estimate)(**{**vars(estimate), "origin": "fit", "low_ms": 0.9 * estimate.ms, "high_ms": 1.2 * estimate.ms})
    [(key, value)] = kernels(fitted, MI9).items()
    assert (key.low, key.high, value) == pytest.approx((0.9, 1.2, estimate.computing_ms))


def test_nine_in_ten_draws_lie_in_the_interval_of_a_number():
    for key, factors in drawn([Unknown("a", 0.7, 1.4), Unknown("skewed", 0.9, 2.0), link("gpu")]).items():
        inside = (key.low <= factors) & (factors <= key.high)
        assert inside.mean() == pytest.approx(0.9, abs=0.03)
        assert interval(factors) == pytest.approx((key.low, key.high), rel=0.1)


def test_parts_add_up_number_by_number():
    a, b = Unknown("a", 0.5, 2.0), Unknown("b", 0.5, 2.0)
    total = added({a: 1.0, b: 2.0}, {b: 3.0}, {})
    assert total == {a: 1.0, b: 5.0}
    assert ms(total, {}) == 6.0
    assert ms(total, {b: 2.0}) == 11.0


def test_slowest_is_taken_draw_by_draw():
    assert list(slowest([np.array([1.0, 5.0]), np.array([2.0, 3.0])])) == [2.0, 5.0]
    assert slowest([3.0, 2.0]) == 3.0


def test_what_takes_no_time_has_nothing_that_could_be_off():
    estimate = LatencyPredictor(MI9).predict(small_resnet(), "dsp")
    nothing = type(estimate)(
        **{**vars(estimate), "origin": "fit", "ms": 0.0, "low_ms": 0.0, "high_ms": 0.0, "contended_ms": 0.0, "fixed_ms": 0.0}
    )
    assert kernels(nothing, MI9) == {}
