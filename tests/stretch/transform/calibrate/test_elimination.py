from itertools import combinations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given as drawn  # noqa: E402 - torch may be missing
from hypothesis import settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stretch.transform.calibrate.channels import Elimination, conditional_covariance, keep_units  # noqa: E402
from tests.effort import examples  # noqa: E402

pytestmark = pytest.mark.torch


def rows(inputs, seed, count=200):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(inputs, inputs, generator=generator, dtype=torch.float64)
    x = torch.randn(count, inputs, generator=generator, dtype=torch.float64) @ mixing
    return x - x.mean(0)


def covariance(x):
    return x.T @ x / len(x)


def left(x, y, kept):
    """Squared error of least squares on some inputs, in the mean of rows: numpy's way."""
    fitted = torch.linalg.lstsq(x[:, kept], y).solution
    return float((x[:, kept] @ fitted - y).square().sum() / len(x))


@settings(max_examples=examples(15))
@drawn(units=st.integers(2, 5), per=st.integers(1, 3), outputs=st.integers(1, 4), seed=st.integers(0, 999))
def test_cost_of_a_unit_is_the_error_that_least_squares_on_the_others_leaves(units, per, outputs, seed):
    x = rows(units * per, seed)
    weight = torch.randn(outputs, units * per, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    y = x @ weight.T
    layer = Elimination(covariance(x), weight, 1e-12)
    places = torch.arange(units * per).reshape(units, per)
    alive = list(range(units))
    while len(alive) > 1:
        costs = layer.costs(places[alive])
        kept = [places[[other for other in alive if other != one]].flatten() for one in alive]
        expected = [left(x, y, others) for others in kept]
        assert float(costs.min()) >= -1e-9
        # each cost is what its removal adds to the error so far
        so_far = left(x, y, places[alive].flatten())
        size = float(y.square().sum() / len(x))
        assert (costs * size).tolist() == pytest.approx([each - so_far for each in expected], rel=1e-3, abs=1e-6 * size)
        gone = alive.pop(int(costs.argmin()))
        layer.remove(places[gone])


def test_units_that_the_others_can_stand_in_for_go_first():
    x = rows(6, 3)
    x[:, 4] = x[:, 0] - 2 * x[:, 1]
    x[:, 5] = 3 * x[:, 2]
    weight = torch.ones(1, 6, dtype=torch.float64)
    kept = keep_units(6, 4, [(Elimination(covariance(x), weight, 1e-9), torch.arange(6)[:, None])])
    assert left(x, x @ weight.T, kept) < 1e-6
    assert kept.tolist() == sorted(kept.tolist())


@settings(max_examples=examples(10))
@drawn(seed=st.integers(0, 999))
def test_choice_is_close_to_the_best_of_all_subsets_for_two_readers(seed):
    x = rows(6, seed)
    weights = [torch.randn(3, 6, generator=torch.Generator().manual_seed(seed + i), dtype=torch.float64) for i in range(2)]
    readers = [(Elimination(covariance(x), weight, 1e-9), torch.arange(6)[:, None]) for weight in weights]
    kept = keep_units(6, 3, readers)

    def cost(some):
        return sum(left(x, x @ w.T, list(some)) / float((x @ w.T).square().sum() / len(x)) for w in weights)

    every = sorted(cost(some) for some in combinations(range(6), 3))
    # greedy need not be the best, but among the better half
    assert cost(kept.tolist()) <= every[len(every) // 2] + 1e-9


def test_what_is_known_explains_itself_and_what_depends_on_it():
    x = rows(5, 1)
    x[:, 3] = x[:, 0] + x[:, 1]
    rest = conditional_covariance(covariance(x), torch.tensor([0, 1]), 1e-9)
    size = covariance(x).diagonal()
    assert (rest.diagonal()[[0, 1, 3]] < 1e-6 * size[[0, 1, 3]]).all()
    fitted = torch.linalg.lstsq(x[:, [0, 1]], x[:, [2, 4]]).solution
    expected = (x[:, [2, 4]] - x[:, [0, 1]] @ fitted).square().mean(0)
    torch.testing.assert_close(rest.diagonal()[[2, 4]], expected, rtol=1e-3, atol=1e-6)
    assert torch.equal(conditional_covariance(covariance(x), torch.tensor([], dtype=torch.int64), 1e-9), covariance(x))
