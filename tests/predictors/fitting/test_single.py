"""Fits to single kernels find what the times were made of."""

import numpy as np
import pytest

from predictors.fitting.design import grain_of
from predictors.fitting.formula import load_formula
from predictors.fitting.single import Timed, correction, fit_kernels, time_kernels
from tests.predictors.fitting.worlds import kernel_world, processor


@pytest.fixture(scope="module")
def fitted():
    rows = [Timed(row.network, row.cost, row.ms) for row in kernel_world().kernels]
    grain = grain_of(processor("gpu"), "fp16")
    return rows, fit_kernels(rows, load_formula("tflite_gpu_adreno"), grain), grain


def test_measured_kernels_take_their_times(fitted):
    rows, groups, grain = fitted
    known = [row for row in rows if row.cost.kind in ("conv", "conv1x1", "depthwise")]
    found = time_kernels(groups, [row.cost for row in known], grain)
    assert np.median(np.abs(found / np.array([row.ms for row in known]) - 1)) < 0.02


def test_terms_are_never_negative_and_say_how_many_kernels_they_are_from(fitted):
    rows, groups, _ = fitted
    assert all(size > 0 for group in groups.values() for size in group.terms.values())
    assert groups["depthwise"].kernels == sum(row.cost.kind == "depthwise" for row in rows)


def test_group_with_hardly_a_kernel_is_left_to_the_roofline(fitted):
    rows, _, grain = fitted
    few = fit_kernels(rows[:2], load_formula("tflite_gpu_adreno"), grain)
    assert few == {}
    assert np.isnan(time_kernels(few, [rows[0].cost], grain)).all()


def test_correction_finds_scale_share_of_a_kernel_and_of_a_weight_and_fixed_time():
    draw = np.random.default_rng(0)
    sums, kernels, weights = draw.uniform(1, 50, 30), draw.integers(10, 100, 30).astype(float), draw.uniform(1e6, 2e7, 30)
    found = correction(sums, kernels, weights, 1.2 * sums + 0.01 * kernels + 1e-7 * weights + 0.8)
    assert (found.scale, found.per_kernel_ms, found.fixed_ms) == (pytest.approx(1.2), pytest.approx(0.01), pytest.approx(0.8))
    assert found.per_weight_ms == pytest.approx(1e-7)
