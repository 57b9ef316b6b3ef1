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
    """Trees ready for evaluation.

    Args:
        trees: The trees.

    Raises:
        UnknownNameError: If one of their features is not known.
    """

    def __init__(self, trees: Trees) -> None:
        self._features = [features.get(name) for name in trees.features]
        self._roots = np.array(trees.roots, dtype=np.intp)
        self._feature = np.array(trees.feature, dtype=np.intp)
        self._threshold = np.array(trees.threshold)
        self._left = np.array(trees.left, dtype=np.intp)
        self._right = np.array(trees.right, dtype=np.intp)
        self._value = np.array(trees.value)
        self._base, self._bound = trees.base, trees.bound

    def __call__(self, costs: Any) -> NDArray[np.float64]:
        """What the trees predict for each kernel.

        Args:
            costs: Columns of costs, arrays of n numbers each.
        """
        table = np.stack([np.asarray(feature(costs), dtype=np.float64) for feature in self._features], axis=1)
        rows = np.arange(len(table))[:, None]
        at = np.repeat(self._roots[None, :], len(table), axis=0)
        while True:
            goes = table[rows, self._feature[at]] <= self._threshold[at]
            following = np.where(goes, self._left[at], self._right[at])
            if np.array_equal(following, at):
                break
            at = following
        found: NDArray[np.float64] = np.clip(self._base + self._value[at].sum(axis=1), -self._bound, self._bound)
        return found
