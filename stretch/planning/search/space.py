"""All legal designs of one network on one device, as arrays of options per segment."""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from math import log10, prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors.joins import DEFAULT, JoinKind, join_of
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.ways import Ints, Mask, Ways
from stretch.planning.design.widths import each_partitions, legal_widths
from stretch.planning.network.segments import Segment, join_kinds
from stretch.planning.search.rules import Rules

Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Thinning:
    """How many of a branch's scales are offered.

    Args:
        widths: Most widths.
        depths: Most depths.
    """

    widths: int
    depths: int


class DesignSpace:
    """Every combination of processors, depths and widths of every segment.

    Most joins keep the width of the trunk, so segments are independent of each
    other. One that widens it, such as `concat`, couples them: then costs hold
    for the number of channels that `arriving` states per segment. Where what
    follows cannot read other widths, `project` takes its place.

    Args:
        segments: The segments of the network, in order.
        processors: Processors that branches may use.
        costs: Costs on the device.
        rules: The constraints.
        join: How branches meet.
        arriving: Channels that arrive at each segment; the original's if None.
        stretched: Whether segments may become scaled copies; else all stay whole.
        kept: Names of those that may not.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        processors: Sequence[str],
        costs: Costs,
        rules: Rules,
        join: JoinKind = DEFAULT,
        arriving: Sequence[int] | None = None,
        *,
        stretched: bool = True,
        kept: Collection[str] = (),
    ) -> None:
        self.segments = tuple(segments)
        self.processors = tuple(processors)
        #: Processors that may hold a tensor between segments; the host joins even where no branch uses it.
        self.holders = tuple(dict.fromkeys((costs.host, *processors)))
        self.costs = costs
        self.rules = rules
        self.join = join
        self.kept = frozenset(kept)
        self.arriving = tuple(arriving) if arriving is not None else tuple(s.in_width for s in self.segments)
        self.options: list[list[Ways]] = []
        for i, segment in enumerate(self.segments):
            following = self.segments[i + 1] if i + 1 < len(self.segments) else None
            kind: JoinKind = join if join in join_kinds(segment, following) else DEFAULT
            here = [self.whole(segment, p, self.arriving[i]) for p in self.processors]
            if stretched and segment.branchable and segment.name not in self.kept:
                for count in range(2, min(len(self.processors), segment.width) + 1):
                    here += [self._branched(segment, subset, kind, self.arriving[i]) for subset in combinations(self.processors, count)]
            self.options.append([o for o in here if len(o.macs)])

    @property
    def size_log10(self) -> float:
        """Decimal logarithm of the number of designs, constraints aside."""
        # from the end: designs of everything behind a segment; an integer has no upper limit
        behind = [1]
        for options in reversed(self.options):
            behind.insert(0, sum(len(o.macs) * behind[o.span - 1] for o in options))
        return log10(behind[0])

    @property
    def most_meetings(self) -> int:
        """Most segments that can branch in one design, each by itself within the rules."""
        behind = [0]
        for options in reversed(self.options):
            able = [1 + behind[o.span - 1] for o in options if len(o.candidates) > 1 and o.allowed.any()]
            behind.insert(0, max([behind[0], *able]))
        return behind[0]

    @property
    def longest_span(self) -> int:
        """Segments in the longest run that may be merged; 1 where none may."""
        return max(o.span for options in self.options for o in options)

    def fastest(self, segment: Segment) -> float:
        """The original segment on the fastest allowed processor, ms."""
        return min(self.costs.whole(segment, p).ms for p in self.processors)

    def leaving_ms(self, holder: str) -> float:
        """Transfer of the network's output to the host, from the processor that holds it, ms."""
        last = self.segments[-1]
        return self.costs.transfer(holder, self.costs.host, prod(last.graph.by_name[last.end].shape))

    def whole(self, segment: Segment, processor: str, arriving: int) -> Ways:
        """The way to run a segment in one piece on a processor, where so many channels arrive."""
        cost = self.costs.branch(segment, processor, segment.depth, segment.width, arriving)
        elements = _pixels(segment, segment.start) * arriving
        entering = np.array([[self.costs.transfer(h, processor, elements)] for h in self.holders])
        ms = np.array([cost.ms])
        options = Ways(
            segment, "none", ((cost,),), np.array([cost.macs]), np.array([cost.params]), entering + ms, np.ones((len(self.holders), 1), bool),
            np.ones(1), entering, ms, ms, np.array([cost.peak_bytes]), busy=lambda: {processor: ms},
        )  # fmt: skip
        return replace(options, allowed=self.allowed(options))

    def merged(self, segment: Segment, first: int, span: int, branches: int, thinning: Thinning) -> list[Ways]:
        """Ways to run merged segments on every subset of a number of processors.

        Args:
            segment: The merged segment.
            first: Number of the first segment it consists of.
            span: How many these are.
            branches: Processors to use.
            thinning: How many scales each branch is offered at.
        """
        following = self.segments[first + span] if first + span < len(self.segments) else None
        kind: JoinKind = self.join if self.join in join_kinds(segment, following) else DEFAULT
        subsets = combinations(self.processors, branches) if branches <= segment.width else ()
        here = [self._branched(segment, subset, kind, self.arriving[first], thinning) for subset in subsets]
        return [replace(o, span=span) for o in here if len(o.macs)]

    def with_runs(self, more: Sequence[Sequence[Ways]]) -> "DesignSpace":
        """The same designs and those that use `more` options, listed by the segment at which they start."""
        other = copy(self)
        other.options = [[*options, *extra] for options, extra in zip(self.options, more, strict=True)]
        return other

    def _branched(self, segment: Segment, subset: tuple[str, ...], join: JoinKind, arriving: int, thinning: Thinning | None = None) -> Ways:
        candidates = []
        depths = self.rules.depths(segment)
        for processor in subset:
            own = self.costs.rewritten(segment, processor)
            widths = self.rules.widths(own, legal_widths(own, self.costs.align(processor)))
            if thinning is not None:
                depths, widths = _spread(depths, thinning.depths), _spread(widths, thinning.widths)
            self.costs.prepare(own, processor, widths, (arriving,))
            candidates.append(tuple(self.costs.branch(own, processor, d, w, arriving) for w in widths for d in depths))
        joins = self._join_costs(segment, subset, candidates, join)
        grid = _Grid(candidates, [(len(widths), len(depths)) for widths in joins.widths])
        computed = [grid.column(i, "contended_ms") + grid.joined(ms) for i, ms in enumerate(joins.ms)]
        elements = _pixels(segment, segment.start) * arriving
        ms, exchange = (np.empty((len(self.holders), grid.count)) for _ in range(2))
        for at, holder in enumerate(self.holders):
            moved = [self.costs.transfer(holder, p, elements) + grid.joined(out) for p, out in zip(subset, joins.out_ms, strict=True)]
            total = reduce(np.maximum, [own + move for own, move in zip(computed, moved, strict=True)])
            np.add(total, grid.joined(joins.join_ms), out=grid.folded(ms[at]))
            grid.folded(exchange[at])[...] = reduce(np.maximum, moved) + grid.joined(joins.join_ms)
        options = Ways(
            segment,
            join,
            tuple(candidates),
            macs=grid.total("macs", joins.macs.sum(axis=0)),
            params=grid.total("params", joins.params.sum(axis=0)),
            ms=ms,
            allowed=np.ones((len(self.holders), grid.count), bool),
            depth=grid.flat(sum(grid.column(i, "depth") / segment.depth for i in range(len(subset)))),
            exchange_ms=exchange,
            slowest_ms=grid.flat(reduce(np.maximum, computed)),
            fastest_ms=grid.flat(reduce(np.minimum, computed)),
            peak_bytes=grid.total("peak_bytes"),
            busy=lambda: {name: grid.flat(each) for name, each in zip(subset, computed, strict=True)},
        )
        return replace(options, allowed=self.allowed(options))

    def allowed(self, options: Ways) -> Mask:
        """Which combinations meet every rule, per holder."""
        alone = self.fastest(options.segment) if options.alone_ms is None else options.alone_ms
        return self.rules.allowed(options, alone)

    def under(self, rules: Rules) -> "DesignSpace":
        """The same designs under other rules; the floors on depth and width are taken as they are."""
        other = copy(self)
        other.rules = rules
        other.options = [[replace(o, allowed=other.allowed(o)) for o in options] for options in self.options]
        return other

    def _join_costs(
        self, segment: Segment, subset: tuple[str, ...], candidates: Sequence[Sequence[BranchCost]], join: JoinKind
    ) -> "_Joins":
        widths = [sorted({c.width for c in branch}) for branch in candidates]
        shape = [len(w) for w in widths]
        combos = np.stack([np.array(w)[at] for w, at in zip(widths, np.indices(shape).reshape(len(subset), -1), strict=True)])
        parts = self._parts(segment, combos, max(self.costs.align(p) for p in subset), join)
        macs, params = np.zeros(combos.shape, np.int64), np.zeros(combos.shape, np.int64)
        ms, out_ms = np.zeros(combos.shape), np.zeros(combos.shape)
        pixels = _pixels(segment, segment.end)
        widens = join_of(join).widens
        for i, processor in enumerate(subset):
            if not widens:
                ends, which = np.unique(np.stack([combos[i], parts[i]]), axis=1, return_inverse=True)
                found = np.array(self.costs.join_convs(segment, processor, list(zip(*ends.tolist(), strict=True))), float)
                macs[i], ms[i], params[i] = found.reshape(-1, 3)[which].T
            out_ms[i] = _each(parts[i], lambda part, own=processor: self.costs.transfer(own, self.costs.host, pixels * part))
        channels = combos.sum(axis=0) if widens else np.full(combos.shape[1], segment.width)
        join_ms = _each(channels, lambda count: self.costs.join(segment, join, count, len(subset)))
        return _Joins(widths, macs, params, ms, out_ms, join_ms)

    @staticmethod
    def _parts(segment: Segment, widths: Ints, align: int, join: JoinKind) -> Ints:
        """Channels each branch hands to the join (branches × combinations)."""
        if join_of(join).widens:
            return widths
        return each_partitions(segment.width, widths, align) if join_of(join).divides else np.full_like(widths, segment.width)


def _each(numbers: Ints, ms: Callable[[int], float]) -> Floats:
    """What a function tells of each number; it is asked once for equal ones."""
    different, which = np.unique(numbers, return_inverse=True)
    return np.array([ms(number) for number in different.tolist()])[which]


@dataclass(frozen=True)
class _Joins:
    """Costs of what ends the branches, per combination of widths: 1×1 convolutions, transfers, the join."""

    widths: list[list[int]]
    macs: Ints
    params: Ints
    ms: Floats
    out_ms: Floats
    join_ms: Floats


class _Grid:
    """Combinations of branches' scales, with an axis for the width of each branch and one for its depth.

    What depends on few of the axes is not repeated for the others: combinations are a power of the scales, and may be millions.

    Args:
        candidates: Per branch, its scales: widths, and for each the depths.
        sizes: Widths and depths of each branch.
    """

    def __init__(self, candidates: Sequence[Sequence[BranchCost]], sizes: Sequence[tuple[int, int]]) -> None:
        self._candidates, self._shape = candidates, [size for pair in sizes for size in pair]
        self.count = prod(self._shape)

    def column(self, branch: int, name: str) -> NDArray[Any]:
        """A number of one branch's scales, along its axes."""
        axes = [size if axis // 2 == branch else 1 for axis, size in enumerate(self._shape)]
        return np.array([getattr(each, name) for each in self._candidates[branch]]).reshape(axes)

    def joined(self, values: NDArray[Any]) -> NDArray[Any]:
        """A number of the join for each combination of widths, along the axes of the widths."""
        return values.reshape([1 if axis % 2 else size for axis, size in enumerate(self._shape)])

    def flat(self, values: NDArray[Any]) -> NDArray[Any]:
        """One entry for each combination."""
        return np.broadcast_to(values, self._shape).reshape(-1)

    def folded(self, flat: NDArray[Any]) -> NDArray[Any]:
        """A view along all axes of an array that has one entry for each combination."""
        return flat.reshape(self._shape)

    def total(self, name: str, joins: Ints | None = None) -> Ints:
        """A whole number summed over the branches, and over what ends them."""
        start = 0 if joins is None else self.joined(joins)
        return self.flat(sum((self.column(i, name) for i in range(len(self._candidates))), start))


def _pixels(segment: Segment, name: str) -> int:
    """Positions of a feature map, batch included."""
    shape = segment.graph.by_name[name].shape
    return shape[0] * prod(shape[2:])


def _spread(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of the values, evenly spread, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
