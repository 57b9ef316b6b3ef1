import numpy as np
import pytest

from tests.effort import examples

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.transform.calibrate.regression import Products, Regression  # noqa: E402

pytestmark = pytest.mark.torch


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=examples(10))
@given(groups=st.integers(1, 4), inputs=st.integers(1, 6), outputs=st.integers(1, 4), cut=st.integers(1, 79), seed=st.integers(0, 99))
def test_each_group_is_the_least_squares_solution_with_intercept(groups, inputs, outputs, cut, seed):
    x, y = numbers(80, groups * inputs, seed=seed), numbers(80, groups * outputs, seed=seed + 1)
    sums = Regression(groups, inputs, outputs, torch.device("cpu"))
    sums.add(x[:cut], y[:cut])
    sums.add(x[cut:], y[cut:])
    weight, bias = sums.solve(0.0, torch.zeros(groups * outputs, inputs))
    for g in range(groups):
        own = slice(g * outputs, (g + 1) * outputs)
        rows = torch.cat([x[:, g * inputs : (g + 1) * inputs], torch.ones(80, 1)], 1).double()
        expected = torch.linalg.lstsq(rows, y[:, own].double()).solution
        torch.testing.assert_close(torch.cat([weight[own].T, bias[None, own]]).double(), expected, rtol=1e-3, atol=1e-4)


def test_products_of_more_inputs_than_one_block_are_those_of_numpy():
    x, y = numbers(900, 2 * 200), numbers(900, 2 * 3, seed=1)
    sums = Products(2, 200, torch.device("cpu"), 3)
    sums.add(x[:500], y[:500])
    sums.add(x[500:], y[500:])
    for group, found in enumerate(sums.covariance()):
        rows = np.concatenate([x[:, group * 200 : (group + 1) * 200], y[:, group * 3 : (group + 1) * 3]], 1)
        np.testing.assert_allclose(found.numpy(), np.cov(rows.T, bias=True)[:200], atol=1e-5)


def test_without_intercept_the_line_passes_through_zero():
    x, y = numbers(50, 3), numbers(50, 2, seed=1) + 5
    sums = Regression(1, 3, 2, torch.device("cpu"))
    sums.add(x, y)
    weight, bias = sums.solve(0.0, torch.zeros(2, 3), intercept=False)
    assert torch.equal(bias, torch.zeros(2))
    torch.testing.assert_close(weight.T, torch.linalg.lstsq(x, y).solution, rtol=1e-3, atol=1e-4)


def test_prior_that_fits_already_is_the_solution_at_any_ridge():
    x, prior = numbers(40, 5), numbers(3, 5, seed=1)
    sums = Regression(1, 5, 3, torch.device("cpu"))
    sums.add(x, x @ prior.T + 2)
    weight, bias = sums.solve(10.0, prior)
    torch.testing.assert_close(weight, prior, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, torch.full((3,), 2.0), rtol=1e-5, atol=1e-5)


def test_fewer_rows_than_inputs_leave_the_prior_where_rows_say_nothing():
    prior = numbers(1, 30, seed=2)
    x = torch.zeros(6, 30)
    x[:, :2] = numbers(6, 2)
    sums = Regression(1, 30, 1, torch.device("cpu"))
    sums.add(x, numbers(6, 1, seed=3))
    weight, _ = sums.solve(1e-4, prior)
    torch.testing.assert_close(weight[:, 2:], prior[:, 2:])
    assert not torch.allclose(weight[:, :2], prior[:, :2])
