"""Trees in flat lists say what scikit-learn says."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from predictors.fitting import single as boosting
from predictors.fitting.single import FEATURES, evaluate, grow
from predictors.models.fitted import columns
from predictors.models.trees import features
from tests.predictors.models.test_fitted import conv


def kernels(count=160):
    draw = np.random.default_rng(0)
    return [conv(int(cin), int(cout), int(pixels)) for cin, cout, pixels in draw.integers(1, 300, (count, 3))]


def targets(costs):
    return np.array([0.4 * np.log(cost.out_channels / cost.in_channels) + 0.1 * (cost.pixels > 150) for cost in costs])


@pytest.fixture(scope="module")
def grown():
    costs = kernels()
    return costs, grow(costs, targets(costs), np.ones(len(costs)))


@pytest.mark.slow
def test_flat_trees_give_the_predictions_of_scikit_learn(grown):
    costs, trees = grown
    rows = np.stack([np.asarray(features.get(name)(columns(costs)), dtype=float) for name in FEATURES], axis=1)
    model = HistGradientBoostingRegressor(
        max_iter=boosting.ITERATIONS,
        max_leaf_nodes=boosting.LEAVES,
        learning_rate=boosting.RATE,
        min_samples_leaf=boosting.MIN_LEAF,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    ).fit(rows, targets(costs))
    # Leaves have five decimals.
    assert evaluate(trees, costs) == pytest.approx(np.clip(model.predict(rows), -trees.bound, trees.bound), abs=1e-5 * boosting.ITERATIONS)


def test_trees_learn_what_they_are_given(grown):
    costs, trees = grown
    assert np.abs(evaluate(trees, costs) - targets(costs)).mean() < 0.05


def test_trees_grown_again_are_the_same(grown):
    costs, trees = grown
    assert grow(costs, targets(costs) * (1 + 1e-15), np.ones(len(costs))) == trees
