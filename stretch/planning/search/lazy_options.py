"""Ways to run a segment in scaled copies, worked out when they are asked for: their number is a power of the scales, and may be millions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors.joins import JoinKind, join_of
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.options import Ints, SegmentOptions
from stretch.planning.design.scale import each_partitions, legal_widths
from stretch.planning.network.segments import Segment
from stretch.planning.search.rules import Rules

Floats = NDArray[np.float64]
T = TypeVar("T")
#: A number of each scale of a branch, told for the number of the branch and the name of what is asked for.
Column = Callable[[int, str], NDArray[Any]]


@dataclass(frozen=True)
class Thinning:
    """How many of a branch's scales are worked out."""

    widths: int  # Most widths.
    depths: int  # Most depths.


@dataclass(frozen=True)
class Joins:
    """Costs of what ends the branches, per combination of widths: 1×1 convolutions, transfers, the join."""

    macs: Ints  # Multiply-accumulates (branches × combinations).
    params: Ints  # Learned numbers, as `macs`.
    ms: Floats  # Time beside other branches, as `macs`.
    out_ms: Floats  # Transfer to the host, as `macs`.
    join_ms: Floats  # Time of the join.


@dataclass(frozen=True)
class LazyOptions:
    """A segment in scaled copies on one subset of the processors."""

    segment: Segment  # The original segment.
    subset: tuple[str, ...]  # Processors of the branches, in order.
    join: JoinKind  # How they meet.
    arriving: int  # Channels that arrive.
    costs: Costs  # Costs on the device.
    rules: Rules  # Which depths and widths there are.
    span: int = 1  # Segments of the space that it takes the place of.
    thinning: Thinning | None = None  # How many scales of a branch there are; None for all.

    @cached_property
    def scales(self) -> tuple[tuple[list[int], list[int]], ...]:
        """Widths and depths of each branch, ascending."""
        most, depths = self.thinning, self.rules.depths(self.segment)
        result = []
        for processor in self.subset:
            rewritten = self.costs.rewritten(self.segment, processor)
            widths = self.costs.built(OptionsCache).widths(rewritten, self.costs.align(processor), self.rules)
            result.append((widths, depths) if most is None else (_spread(widths, most.widths), _spread(depths, most.depths)))
        return tuple(result)

    @property
    def full(self) -> "LazyOptions":
        """The same with all scales."""
        # one that remembered itself would be kept until garbage is collected, and all that is known of its device with it
        return self if self.thinning is None else self._full

    @cached_property
    def _full(self) -> "LazyOptions":
        return replace(self, thinning=None)

    def thinned(self, thinning: Thinning) -> "LazyOptions":
        """The same with fewer scales, and the same one each time."""
        if thinning not in self._thinned:
            self._thinned[thinning] = replace(self, thinning=thinning)
        return self._thinned[thinning]

    @cached_property
    def _thinned(self) -> dict[Thinning, "LazyOptions"]:
        return {}

    @property
    def count(self) -> int:
        """Combinations of the scales."""
        return prod(len(widths) * len(depths) for widths, depths in self.scales)

    @cached_property
    def candidates(self) -> tuple[tuple[BranchCost, ...], ...]:
        """Per branch, its scales: widths, and for each the depths."""
        result = []
        for processor, (widths, depths) in zip(self.subset, self.scales, strict=True):
            rewritten = self.costs.rewritten(self.segment, processor)
            self.costs.prepare(rewritten, processor, widths, (self.arriving,))
            result.append(tuple(self.costs.branch(rewritten, processor, d, w, self.arriving) for w in widths for d in depths))
        return tuple(result)

    def column(self, branch: int, name: str) -> NDArray[Any]:
        """A number of each of one branch's scales, in the order of `candidates`."""
        known = self._columns.get((branch, name))
        if known is None:
            known = self._columns[branch, name] = np.array([getattr(candidate, name) for candidate in self.candidates[branch]])
        return known

    @cached_property
    def _columns(self) -> dict[tuple[int, str], NDArray[Any]]:
        return {}

    @property
    def elements(self) -> int:
        """Of the tensor that arrives."""
        return pixels(self.segment, self.segment.start) * self.arriving

    @cached_property
    def joins(self) -> Joins:
        """What ends the branches, for each combination of their widths, in the order of `numpy.indices`."""
        widths = [some for some, _ in self.scales]
        shape = [len(w) for w in widths]
        combos = np.stack([np.array(w)[at] for w, at in zip(widths, np.indices(shape).reshape(len(shape), -1), strict=True)])
        parts = self._parts(combos)
        macs, params = np.zeros(combos.shape, np.int64), np.zeros(combos.shape, np.int64)
        ms, out_ms = np.zeros(combos.shape), np.zeros(combos.shape)
        positions = pixels(self.segment, self.segment.end)
        widens = join_of(self.join).widens
        for i, processor in enumerate(self.subset):
            if not widens:
                # one number for a pair of channels: pairs themselves take long to sort
                step = int(parts[i].max()) + 1
                ends, which = np.unique(combos[i] * step + parts[i], return_inverse=True)
                pairs = zip((ends // step).tolist(), (ends % step).tolist(), strict=True)
                values = np.array(self.costs.join_convs(self.segment, processor, list(pairs)), float)
                macs[i], ms[i], params[i] = values.reshape(-1, 3)[which].T
            out_ms[i] = _each(parts[i], lambda part, value=processor: self.costs.transfer(value, self.costs.host, positions * part))
        channels = combos.sum(axis=0) if widens else np.full(combos.shape[1], self.segment.width)
        join_ms = _each(channels, lambda count: self.costs.join(self.segment, self.join, count, len(self.subset)))
        return Joins(macs, params, ms, out_ms, join_ms)

    def _parts(self, widths: Ints) -> Ints:
        """Channels each branch hands to the join (branches × combinations)."""
        if join_of(self.join).widens:
            return widths
        align = max(self.costs.align(p) for p in self.subset)
        whole = self.segment.width
        return each_partitions(whole, widths, align) if join_of(self.join).divides else np.full_like(widths, whole)

    def options(self, holders: Sequence[str], numbers: Ints | None = None) -> SegmentOptions:
        """The ways to run the segment, every rule met or not."""
        joins, branches = self.joins, range(len(self.subset))
        sizes = [(len(widths), len(depths)) for widths, depths in self.scales]
        grid: _Combinations = _Grid(self.column, sizes) if numbers is None else _Some(self.column, sizes, numbers)
        computed = [grid.column(i, "contended_ms") + grid.joined(joins.ms[i]) for i in branches]
        ms, exchange = (np.empty((len(holders), grid.count)) for _ in range(2))
        for at, holder in enumerate(holders):
            entering = [self.costs.transfer(holder, p, self.elements) for p in self.subset]
            moved = [into + grid.joined(joins.out_ms[i]) for i, into in enumerate(entering)]
            total = reduce(np.maximum, [current + move for current, move in zip(computed, moved, strict=True)])
            np.add(total, grid.joined(joins.join_ms), out=grid.folded(ms[at]))
            grid.folded(exchange[at])[...] = reduce(np.maximum, moved) + grid.joined(joins.join_ms)
        return SegmentOptions(
            self.segment,
            self.join,
            self.candidates,
            macs=grid.total("macs", joins.macs.sum(axis=0)),
            params=grid.total("params", joins.params.sum(axis=0)),
            ms=ms,
            allowed=np.ones((len(holders), grid.count), bool),
            depth=grid.flat(sum(grid.column(i, "depth") / self.segment.depth for i in branches)),
            exchange_ms=exchange,
            slowest_ms=grid.flat(reduce(np.maximum, computed)),
            fastest_ms=grid.flat(reduce(np.minimum, computed)),
            peak_bytes=grid.total("peak_bytes"),
            span=self.span,
            busy=lambda: {name: grid.flat(item) for name, item in zip(self.subset, computed, strict=True)},
            numbers=numbers,
        )


class OptionsCache:
    """Offers, and widths that branches may have, of each segment: spaces on the same costs that differ in their processors share them."""

    def __init__(self) -> None:
        self._widths: dict[tuple[int, int, str], tuple[Segment, list[int]]] = {}
        self._offers: dict[tuple[object, ...], LazyOptions] = {}

    def shared(self, offer: LazyOptions) -> LazyOptions:
        """The same offer, or the one that was there first, with all that is worked out of it."""
        key = id(offer.segment), offer.subset, offer.join, offer.arriving, repr(offer.rules.floors), offer.span, offer.thinning
        return self._offers.setdefault(key, offer)

    def widths(self, segment: Segment, align: int, rules: Rules) -> list[int]:
        """Those of one segment."""
        key = id(segment), align, repr(rules.floors)
        if key not in self._widths:
            self._widths[key] = segment, rules.widths(segment, legal_widths(segment, align))
        return self._widths[key][1]


class _Combinations(Protocol):
    """Combinations of branches' scales."""

    count: int

    def column(self, branch: int, name: str) -> NDArray[Any]:
        """A number of one branch's scales, which broadcasts to all combinations."""

    def joined(self, values: NDArray[Any]) -> NDArray[Any]:
        """A number of the join for each combination of widths, which broadcasts so, too."""

    def flat(self, values: NDArray[Any]) -> NDArray[Any]:
        """One entry for each combination."""

    def folded(self, flat: NDArray[Any]) -> NDArray[Any]:
        """A view of an array with one entry for each combination, of the shape that the others broadcast to."""

    def total(self, name: str, joins: Ints | None = None) -> Ints:
        """A whole number summed over the branches, and over what ends them."""


class _Grid:
    """All combinations, with an axis for the width of each branch and one for its depth.

    What depends on few of the axes is not repeated for the others.

    Args:
        scales: A number of each scale of a branch: widths, and for each the depths.
    """

    def __init__(self, scales: Column, sizes: Sequence[tuple[int, int]]) -> None:
        self._scales, self._shape = scales, [size for pair in sizes for size in pair]
        self.count = prod(self._shape)

    def column(self, branch: int, name: str) -> NDArray[Any]:
        axes = [size if axis // 2 == branch else 1 for axis, size in enumerate(self._shape)]
        return self._scales(branch, name).reshape(axes)

    def joined(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape([1 if axis % 2 else size for axis, size in enumerate(self._shape)])

    def flat(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(values, self._shape).reshape(-1)

    def folded(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(self._shape)

    def total(self, name: str, joins: Ints | None = None) -> Ints:
        return _total(self, len(self._shape) // 2, name, joins)


class _Some:
    """Some of the combinations.

    Args:
        scales: A number of each scale of a branch: widths, and for each the depths.
        numbers: Which, in the order of `_Grid`.
    """

    def __init__(self, scales: Column, sizes: Sequence[tuple[int, int]], numbers: Ints) -> None:
        self._scales, self._branches, self.count = scales, len(sizes), len(numbers)
        at = np.unravel_index(numbers, [size for pair in sizes for size in pair])
        self._scale = [at[2 * i] * depths + at[2 * i + 1] for i, (_, depths) in enumerate(sizes)]
        self._widths = np.ravel_multi_index(at[::2], [widths for widths, _ in sizes])

    def column(self, branch: int, name: str) -> NDArray[Any]:
        return self._scales(branch, name)[self._scale[branch]]

    def joined(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[self._widths]

    def flat(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(values, (self.count,))

    def folded(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat

    def total(self, name: str, joins: Ints | None = None) -> Ints:
        return _total(self, self._branches, name, joins)


def _total(grid: _Combinations, branches: int, name: str, joins: Ints | None) -> Ints:
    start = 0 if joins is None else grid.joined(joins)
    return grid.flat(sum((grid.column(i, name) for i in range(branches)), start))


def pixels(segment: Segment, name: str) -> int:
    """Positions of a feature map, batch included."""
    shape = segment.graph.by_name[name].shape
    return shape[0] * prod(shape[2:])


def _each(numbers: Ints, ms: Callable[[int], float]) -> Floats:
    """What a function tells of each number; it is asked once for equal ones."""
    different, which = np.unique(numbers, return_inverse=True)
    return np.array([ms(number) for number in different.tolist()])[which]


def _spread(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of the values, evenly spread, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
