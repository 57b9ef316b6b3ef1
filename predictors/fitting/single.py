"""Fits to the times of single kernels; the rest of an inference's time comes from whole networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from predictors.fits.fit import Correction, KernelGroup, Trees
from predictors.fitting.design import Formula, find_group
from predictors.fitting.regression import Vector, rounded, solve
from predictors.fusion import KernelCost
from predictors.models.fitted import Grain, TreeModel, columns, features, terms

#: Minimum number of measured kernels for trees.
MIN_KERNELS = 100

#: Maximum correction by trees, as a logarithm.
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
    """Grow trees on the residuals of a group's terms (Friedman 2001; histograms as LightGBM, Ke et al. 2017)."""
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
    return _flatten([trees[0].nodes for trees in model._predictors], float(model._baseline_prediction.ravel()[0]))


def _flatten(predictors: Sequence[NDArray[np.void]], base: float) -> Trees:
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
            threshold.append(0.0 if leaf else _rounded_threshold(float(node["num_threshold"])))
            left.append(start + (number if leaf else int(node["left"])))
            right.append(start + (number if leaf else int(node["right"])))
            value.append(round(float(node["value"]), 5) if leaf else 0.0)
    return Trees(FEATURES, tuple(roots), tuple(feature), tuple(threshold), tuple(left), tuple(right), tuple(value), round(base, 6), BOUND)


def _rounded_threshold(threshold: float) -> float:
    """A bound between two values of a feature, in few digits: whole features are separated halfway."""
    return floor(threshold) + 0.5 if threshold >= 64 else round(threshold, 6)


def evaluate(trees: Trees, costs: Sequence[KernelCost]) -> NDArray[np.float64]:
    """Return the trees' predictions for kernels, as fits are evaluated."""
    return TreeModel(trees)(columns(costs))


#: Minimum number of kernels for the terms of a group.
MIN_GROUP = 5

#: Lower bound of a kernel's time in ms, so that its logarithm exists.
MIN_MS = 1e-4


@dataclass(frozen=True)
class TimedKernel:
    """A measured kernel."""

    network: str  # That it is part of.
    cost: KernelCost  # Facts that its time depends on.
    ms: float  # Its time.


def fit_kernels(rows: Sequence[TimedKernel], formula: Formula, grain: Grain) -> dict[str, KernelGroup]:
    """A formula and, where there are enough kernels, trees for each group."""
    rows_by_group: dict[str, list[TimedKernel]] = {}
    for row in rows:
        group = find_group(row.cost, tuple(formula.kernels))
        if group is not None:
            rows_by_group.setdefault(group, []).append(row)
    groups = {
        name: _group(rows_by_group[name], formula.kernels[name], grain)
        for name in formula.kernels
        if len(rows_by_group.get(name, ())) >= MIN_GROUP
    }
    for kind, reference_group in formula.like.items():
        if reference_group in groups:
            groups[kind] = _unmeasured(groups[reference_group])
    return groups


def _unmeasured(group: KernelGroup) -> KernelGroup:
    """Return the memory terms of a measured group, for kernels that no table has.

    Without its trees, which know its shapes, and without the launch: whole networks show that kernels without products, which
    tables leave out, hardly cost one (`correction` finds what they do).
    """
    return KernelGroup({name: size for name, size in group.terms.items() if terms.get(name).part == "memory"})


def _group(rows: Sequence[TimedKernel], names: Sequence[str], grain: Grain) -> KernelGroup:
    costs = [row.cost for row in rows]
    times = np.array([row.ms for row in rows])
    table = columns(costs)
    units = np.stack([np.broadcast_to(np.asarray(terms.get(name).units(table, grain), dtype=float), len(rows)) for name in names], axis=1)
    sizes = [rounded(float(size)) for size in solve(units, times)]
    summed = np.maximum(units @ np.array(sizes), MIN_MS)
    trees = None
    if len(rows) >= MIN_KERNELS:
        # Long kernels count more: a network's time is their sum.
        weights = np.sqrt(times / times.mean())
        trees = grow(costs, np.log(times / summed), weights)
    return KernelGroup({name: size for name, size in zip(names, sizes, strict=True) if size > 0}, trees, len(rows))


def time_kernels(groups: dict[str, KernelGroup], costs: Sequence[KernelCost], grain: Grain) -> Vector:
    """Times of kernels by groups, ms; NaN where none has them."""
    times = np.full(len(costs), np.nan)
    members: dict[str, list[int]] = {}
    for index, cost in enumerate(costs):
        group = find_group(cost, tuple(groups))
        if group is not None:
            members.setdefault(group, []).append(index)
    for name, indices in members.items():
        table = columns([costs[i] for i in indices])
        ms = sum(
            size * np.broadcast_to(np.asarray(terms.get(term).units(table, grain), dtype=float), len(indices))
            for term, size in groups[name].terms.items()
        )
        trees = groups[name].trees
        if trees is not None:
            ms = ms * np.exp(evaluate(trees, [costs[i] for i in indices]))
        times[indices] = ms
    return times


def correction(sums: Vector, kernels: Vector, weights: Vector, elements: Vector, times: Vector) -> Correction:
    """From sums of kernels to whole networks, on the relative error: see `Correction`.

    Args:
        elements: Of inputs and outputs; where all networks have as many, their time is part of the constant.
    """
    moved = elements if np.ptp(elements) else np.zeros(len(sums))
    sizes = solve(np.stack([sums, kernels, weights, moved, np.ones(len(sums))], axis=1), times)
    scale, per_kernel, per_weight, per_io_element, fixed = (rounded(float(size)) for size in sizes)
    return Correction(scale, per_kernel, fixed, per_weight, per_io_element)
