"""Tensors that a file rounds to bytes: which real number a byte stands for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import fx

from predictors.errors import StretchError
from stretch.models.builder import Builder

#: Operators that move or choose bytes, or compare them, whatever they stand for.
MOVING = frozenset(
    {
        *("ArgMax", "ArgMin", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Pad", "ReduceMax", "ReduceMin", "Reshape", "Resize", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze", "Upsample", "Where", "Clip"),
    }
)


@dataclass(frozen=True, eq=False)
class Steps:
    """Real numbers that bytes stand for: (byte − zero) · scale."""

    scale: np.ndarray  # One number, or one for each place along an axis.
    zero: np.ndarray  # The byte that stands for zero, of the element type of the bytes.

    def __post_init__(self) -> None:
        """Refuse numbers that are no steps."""
        if self.scale.dtype != np.float32 or not np.isfinite(self.scale).all():
            raise StretchError("its scale is no real number")
        if self.zero.dtype.kind not in "iu" or self.zero.size not in (1, self.scale.size):
            raise StretchError(f"its zero point has {self.zero.size} numbers of type {self.zero.dtype} for {self.scale.size} scales")

    def same(self, other: "Steps") -> bool:
        """Whether bytes stand for the same numbers in both."""
        return np.array_equal(self.scale.ravel(), other.scale.ravel()) and np.array_equal(self.zero.ravel(), other.zero.ravel())

    def reals(self, stored: np.ndarray, axis: int = 0) -> np.ndarray:
        """What stored bytes stand for; `axis` is the one along which scales differ."""
        zero, scale = self._along(self.zero, stored, axis), self._along(self.scale, stored, axis)
        return np.asarray((stored.astype(np.float32) - zero) * scale, np.float32)

    @staticmethod
    def _along(numbers: np.ndarray, stored: np.ndarray, axis: int) -> np.ndarray:
        numbers = numbers.astype(np.float32)
        if numbers.size == 1:
            return numbers.reshape(())
        if numbers.ndim == stored.ndim > 1 and all(n in (1, size) for n, size in zip(numbers.shape, stored.shape, strict=True)):
            return numbers
        if not -stored.ndim <= axis < stored.ndim or numbers.size != stored.shape[axis]:
            raise StretchError(f"it has {numbers.size} scales for the shape {list(stored.shape)}")
        return numbers.reshape([-1 if i == axis % stored.ndim else 1 for i in range(stored.ndim)])


@dataclass(frozen=True)
class Rounded:
    """What a rule makes where the file has bytes: their reals, and the steps between these."""

    node: fx.Node
    steps: Steps


def reread(builder: Builder, x: fx.Node, old: Steps, new: Steps) -> fx.Node:
    """Reals whose bytes, made with `old` steps, are read with `new` ones."""
    if old.same(new):
        return x
    if max(old.scale.size, new.scale.size, old.zero.size, new.zero.size) > 1 or old.scale.item() <= 0:
        raise StretchError("its bytes were rounded with other scales than it states")
    factor = new.scale.item() / old.scale.item()
    shift = (int(old.zero.item()) - int(new.zero.item())) * new.scale.item()
    x = builder.call(torch.mul, x, factor) if factor != 1 else x
    return builder.call(torch.add, x, shift) if shift else x


def common(op: str, steps: Sequence[Steps | None]) -> Steps | None:
    """The steps of what an operator makes that knows nothing of them; None if it reads no bytes."""
    result = [step for step in steps if step is not None]
    if not result:
        return None
    if op not in MOVING:
        raise StretchError("it computes with bytes, and not with the numbers that they stand for")
    if not all(item.same(result[0]) for item in result):
        raise StretchError("it reads bytes that were rounded with several scales")
    return result[0]
