"""Evaluation of boosted trees with numpy alone, and the features they ask for."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.fits.fit import Trees
from predictors.registry import Registry

#: Features of a kernel by name, from its cost (numbers or arrays).
features: Registry[Callable[[Any], Any]] = Registry("feature")

for _name in ("in_channels", "out_channels", "groups", "taps", "pixels", "reads", "writes", "weights", "stride"):
    features.register(_name)(attrgetter(_name))
features.register("macs")(lambda cost: cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps)


def _slices(cost: Any) -> Any:
    """Slices of four output channels: what GPUs hand out as work."""
    return -(-cost.out_channels * cost.groups // 4)


def _evenly(number: Any) -> Any:
    """Greatest power of two up to 16 that divides a number: how well it is shared out to groups of threads."""
    return sum(1.0 * (number % power == 0) * power / 2 for power in (2, 4, 8, 16)) + 1


def _edge(tile: int) -> Callable[[Any], Any]:
    """Positions in whole square tiles ÷ positions, of a square image."""
    return lambda cost: (np.ceil(np.sqrt(cost.pixels) / tile) * tile) ** 2 / cost.pixels


features.register("serial")(lambda cost: -(-cost.in_channels // 4) * 4 * cost.taps)
features.register("slices")(_slices)
features.register("slice_outputs")(lambda cost: _slices(cost) * cost.pixels)
features.register("slice_share")(lambda cost: _evenly(_slices(cost)))
features.register("slice_edge")(lambda cost: -(-_slices(cost) // 4) * 4 / _slices(cost))
features.register("edge_2")(_edge(2))
features.register("edge_4")(_edge(4))
features.register("traffic")(lambda cost: cost.reads / cost.writes)


class TreeModel:
    """Trees ready for evaluation."""

    def __init__(self, trees: Trees) -> None:
        self._features = [features.get(name) for name in trees.features]
        self._roots = np.array(trees.roots, dtype=np.intp)
        self._feature = np.array(trees.feature, dtype=np.intp)
        self._threshold = np.array(trees.threshold)
        #: Two children a node, the right one first; a leaf is its own child.
        self._children = np.array([trees.right, trees.left], dtype=np.intp).T.ravel()
        self._depth = _depth(trees)
        self._value = np.array(trees.value)
        self._base, self._bound = trees.base, trees.bound

    def __call__(self, costs: Any) -> NDArray[np.float64]:
        """What the trees predict for each kernel."""
        table = np.stack([np.asarray(feature(costs), dtype=np.float64) for feature in self._features], axis=1)
        rows = np.arange(0, table.size, table.shape[1])[:, None]
        at = np.repeat(self._roots[None, :], len(table), axis=0)
        for _ in range(self._depth):
            left = table.take(rows + self._feature.take(at)) <= self._threshold.take(at)
            at = self._children.take(2 * at + left)
        correction: NDArray[np.float64] = np.clip(self._base + self._value[at].sum(axis=1), -self._bound, self._bound)
        return correction


def _depth(trees: Trees) -> int:
    """Steps from a root to the deepest leaf."""
    depth = [0] * len(trees.feature)
    # children come behind their parents
    for node in range(len(depth) - 1, -1, -1):
        if trees.left[node] != node:
            depth[node] = 1 + max(depth[trees.left[node]], depth[trees.right[node]])
    return max((depth[root] for root in trees.roots), default=0)
