"""Non-negative least squares on the relative error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from predictors.fitting.nnls import solve, solve_robustly
from tests.effort import examples


def problem(seed, rows=12, terms=3):
    draw = np.random.default_rng(seed)
    matrix = draw.uniform(0.5, 2.0, (rows, terms)) * np.array([1e9, 1e3, 1.0])[:terms]
    sizes = draw.uniform(0.5, 2.0, terms) / np.array([1e9, 1e3, 1.0])[:terms]
    return matrix, sizes


@given(st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_sizes_that_explain_every_time_are_found(seed):
    matrix, sizes = problem(seed)
    assert solve(matrix, matrix @ sizes) == pytest.approx(sizes, rel=1e-6)


@given(st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_no_size_is_negative(seed):
    matrix, sizes = problem(seed)
    assert (solve(matrix, matrix @ (sizes * np.array([1, -0.3, 1])) + 1.0) >= 0).all()


def test_solution_with_a_prior_is_the_least_of_its_sum_of_squares():
    matrix, sizes = problem(3)
    times = matrix @ sizes * np.random.default_rng(1).uniform(0.8, 1.2, 12)
    prior = sizes * np.array([0.5, 2.0, 1.0])
    found = solve(matrix, times, prior, spread=0.3, noise=0.1)

    def cost(relative):
        c = relative * prior
        return np.sum((matrix @ c / times - 1) ** 2) + 0.1**2 * np.sum(((c - prior) / (0.3 * prior)) ** 2)

    best = minimize(cost, np.ones(3), bounds=[(0, None)] * 3, tol=1e-12)
    assert found / prior == pytest.approx(best.x, rel=1e-3)


def test_one_time_that_is_wrong_by_far_hardly_counts():
    matrix, sizes = problem(7, rows=30)
    times = matrix @ sizes
    times[4] *= 0.3
    plain, robust = solve(matrix, times, sizes, 10.0), solve_robustly(matrix, times, sizes, 10.0)
    others = np.arange(30) != 4
    worst = [np.abs(matrix[others] @ found / times[others] - 1).max() for found in (plain, robust)]
    assert worst[1] < 0.3 * worst[0]


@given(st.integers(0, 1000))
@settings(max_examples=examples(25))
def test_no_size_is_below_its_least(seed):
    matrix, sizes = problem(seed)
    least = sizes * np.array([0.9, 1.5, 0.0])
    found = solve_robustly(matrix, matrix @ sizes, sizes, 0.5, least=least)
    assert (found >= least * (1 - 1e-9)).all()
    assert solve_robustly(matrix, matrix @ sizes, sizes, 0.5, least=0.5 * sizes) == pytest.approx(sizes, rel=1e-6)
