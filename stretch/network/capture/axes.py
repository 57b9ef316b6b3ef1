"""Tensors seen as axes over the images, channels and pixels of a feature map.

Tokens, windows and heads are a feature map in another order. N×P×C has its channels
last, a window is some rows and some columns, a head is some channels. So each axis
of a tensor is a product of *factors*, each of which steps through images,
channels or pixels of the map. Reshaping splits and merges factors, permuting moves
axes, and nothing is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Literal, TypeVar, get_args

from predictors.shapes import Shape

T = TypeVar("T")


class Unsupported(Exception):
    """The effect of a call on axes cannot be followed to single channels; the call is computed on the plain tensors."""


def require(value: T | None) -> T:
    """Return a value; raise `Unsupported` if it is None."""
    if value is None:
        raise Unsupported
    return value


def require_that(condition: bool) -> None:
    """Raise `Unsupported` unless a condition holds."""
    if not condition:
        raise Unsupported


#: Things that a factor steps through; the scores of attention also have queries and keys.
FactorKind = Literal["image", "channel", "pixel", "query", "key"]


@dataclass(frozen=True)
class Factor:
    """A range of a map's images, channels or pixels, in equal steps."""

    of: FactorKind  # Kind of thing that the factor steps through.
    size: int  # Number of steps.
    step: int  # Distance from one to the next; pixels are counted row by row.

    def split(self, inner: int) -> tuple["Factor", "Factor"]:
        """Split the factor into two, the inner one with the size `inner`."""
        return Factor(self.of, self.size // inner, self.step * inner), Factor(self.of, inner, self.step)


Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class Axes:
    """The factors of every axis of a tensor."""

    axes: tuple[Axis, ...]  # Factors of each axis, the outermost first; none for an axis of one element.
    first: int = 0  # Channel of the map at which the tensor starts.

    @property
    def shape(self) -> Shape:
        """Shape of the tensor."""
        return tuple(_size(axis) for axis in self.axes)

    def factors(self, of: FactorKind) -> tuple[Factor, ...]:
        """Return the factors that step through channels, pixels or images, in order."""
        return tuple(factor for axis in self.axes for factor in axis if factor.of == of)

    def channels(self) -> list[int]:
        """Return the indices of the map's channels, in the tensor's order."""
        result = [self.first]
        for factor in self.factors("channel"):
            result = [offset + i * factor.step for offset in result for i in range(factor.size)]
        return result

    def reshape(self, shape: Shape) -> "Axes | None":
        """Return the axes of the same elements in another shape; None if an axis would begin within a factor."""
        remaining = [factor for axis in self.axes for factor in axis][::-1]
        axes: list[Axis] = []
        for size in shape:
            axis: list[Factor] = []
            while _size(axis) < size:
                if not remaining:
                    return None
                factor, missing = remaining.pop(), size // _size(axis)
                if factor.size > missing:
                    if size % _size(axis) or factor.size % missing:
                        return None
                    factor, rest = factor.split(factor.size // missing)
                    remaining.append(rest)
                axis.append(factor)
            if _size(axis) != size:
                return None
            axes.append(_merge_factors(axis))
        return None if remaining else replace(self, axes=tuple(axes))

    def permute(self, order: Sequence[int]) -> "Axes":
        """Return the axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def cut(self, axis: int, start: int, size: int) -> "Axes | None":
        """Cut a range out of an axis over channels; None if the axis runs over something else or a cut is within an inner factor."""
        factors = self.axes[axis]
        if start == 0 and size == _size(factors):
            return self
        if not factors or factors[0].of != "channel":
            return None
        inner = _size(factors[1:])
        if start % inner or size % inner:
            return None
        outer = factors[0]
        channels = Factor("channel", size // inner, outer.step)
        axes = (*self.axes[:axis], _merge_factors([channels, *factors[1:]]), *self.axes[axis + 1 :])
        return replace(self, axes=axes, first=self.first + start // inner * outer.step)

    def drop_axis(self, axis: int) -> "Axes":
        """Return the axes without one axis, which has one element."""
        return replace(self, axes=(*self.axes[:axis], *self.axes[axis + 1 :]))

    def sort_factors(self) -> "Axes":
        """Return the same axes over a map whose images, channels and pixels are stored in the tensor's order."""
        strides = {of: prod(factor.size for factor in self.factors(of)) for of in get_args(FactorKind)}
        axes = []
        for axis in self.axes:
            factors = []
            for factor in axis:
                strides[factor.of] //= factor.size
                factors.append(replace(factor, step=strides[factor.of]))
            axes.append(tuple(factors))
        return Axes(tuple(axes))

    def merge(self) -> "Axes":
        """Merge factors that continue each other."""
        return replace(self, axes=tuple(map(_merge_factors, self.axes)))


def map_axes(shape: Shape) -> Axes:
    """Return the axes of a feature map N×C×H×W in its own order."""
    n, c, h, w = shape
    factors = (Factor("image", n, 1), Factor("channel", c, 1), Factor("pixel", h, w), Factor("pixel", w, 1))
    return Axes(tuple(_merge_factors([factor]) for factor in factors))


def common_factors(a: Axis, b: Axis) -> list[tuple[Factor, Factor]]:
    """Split the factors of two axes of one size so that they pair up, both factors of a pair having one size."""
    left, right, pairs = list(a)[::-1], list(b)[::-1], []
    while left and right:
        first, second = left.pop(), right.pop()
        size = min(first.size, second.size)
        require_that(max(first.size, second.size) % size == 0)
        if first.size > size:
            first, rest = first.split(first.size // size)
            left.append(rest)
        elif second.size > size:
            second, rest = second.split(second.size // size)
            right.append(rest)
        pairs.append((first, second))
    require_that(not left and not right)
    return pairs


def _size(axis: Sequence[Factor]) -> int:
    return prod(factor.size for factor in axis)


def _merge_factors(axis: Sequence[Factor]) -> Axis:
    """Drop factors of one element, and merge neighbours that continue each other."""
    merged: list[Factor] = []
    for factor in axis:
        if factor.size == 1:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.of == factor.of and last.step == factor.step * factor.size:
            merged[-1] = Factor(factor.of, last.size * factor.size, factor.step)
        else:
            merged.append(factor)
    return tuple(merged)


def rearrangement(pairs: Sequence[tuple[Factor, Factor]]) -> tuple[Shape, Shape]:
    """Return the sizes and the permutation that move pixels from the steps of each pair's first factor to those of its second."""
    before = sorted(range(len(pairs)), key=lambda i: -pairs[i][0].step)
    after = sorted(range(len(pairs)), key=lambda i: -pairs[i][1].step)
    for order, side in ((before, 0), (after, 1)):
        factors = [pairs[i][side] for i in order]
        require_that(not factors or factors[-1].step == 1)
        require_that(all(outer.step == inner.step * inner.size for outer, inner in pairwise(factors)))
    return tuple(pairs[i][0].size for i in before), tuple(before.index(i) for i in after)
