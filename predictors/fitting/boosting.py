"""Boosted trees from scikit-learn as flat lists, small and the same on every machine."""

from collections.abc import Sequence
from math import floor

import numpy as np
from numpy.typing import NDArray

from predictors.fits.fit import Trees
from predictors.fusion import KernelCost
from predictors.models.fitted import columns
from predictors.models.trees import TreeModel, features

#: Fewest measured kernels that trees are grown from.
MIN_KERNELS = 100

#: No tree knows better than by this factor, as a logarithm.
BOUND = 1.5

ITERATIONS, LEAVES, RATE, MIN_LEAF = 200, 8, 0.08, 5

FEATURES = (
    "in_channels",
    "out_channels",
    "groups",
    "taps",
    "pixels",
    "stride",
    "macs",
    "reads",
    "writes",
    "weights",
    "serial",
    "slices",
    "slice_outputs",
    "slice_share",
    "slice_edge",
    "edge_2",
    "edge_4",
    "traffic",
)


def grow(costs: Sequence[KernelCost], targets: NDArray[np.float64], weights: NDArray[np.float64]) -> Trees:
    """Trees on what the terms of a group leave (Friedman 2001; histograms as LightGBM, Ke et al. 2017).

    Args:
        targets: Logarithm of measured ÷ terms, one a kernel.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    table = columns(costs)
    rows = np.stack([np.asarray(features.get(name)(table), dtype=np.float64) for name in FEATURES], axis=1)
    model = HistGradientBoostingRegressor(
        max_iter=ITERATIONS,
        max_leaf_nodes=LEAVES,
        learning_rate=RATE,
        min_samples_leaf=MIN_LEAF,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    # A last digit that two processors round differently must not turn a split around.
    model.fit(np.round(rows, 9), np.round(targets, 9), sample_weight=np.round(weights, 9))
    return _flat([trees[0].nodes for trees in model._predictors], float(model._baseline_prediction.ravel()[0]))


def _flat(predictors: Sequence[NDArray[np.void]], base: float) -> Trees:
    """The trees of scikit-learn as flat lists."""
    roots: list[int] = []
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[float] = []
    for nodes in predictors:
        start = len(feature)
        roots.append(start)
        for number, node in enumerate(nodes):
            leaf = bool(node["is_leaf"])
            feature.append(0 if leaf else int(node["feature_idx"]))
            threshold.append(0.0 if leaf else _between(float(node["num_threshold"])))
            left.append(start + (number if leaf else int(node["left"])))
            right.append(start + (number if leaf else int(node["right"])))
            value.append(round(float(node["value"]), 5) if leaf else 0.0)
    return Trees(FEATURES, tuple(roots), tuple(feature), tuple(threshold), tuple(left), tuple(right), tuple(value), round(base, 6), BOUND)


def _between(threshold: float) -> float:
    """A bound between two values of a feature, in few digits: whole features are told apart halfway."""
    return floor(threshold) + 0.5 if threshold >= 64 else round(threshold, 6)


def evaluate(trees: Trees, costs: Sequence[KernelCost]) -> NDArray[np.float64]:
    """What trees say of kernels, as fits are evaluated."""
    return TreeModel(trees)(columns(costs))
