"""All legal designs of one network on one device, as arrays of options per segment."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations
from math import log10, prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors.joins import DEFAULT, JoinKind, join_of
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.ways import Ints, Mask, Ways
from stretch.planning.design.widths import legal_widths, partitions
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
                for count in range(2, len(self.processors) + 1):
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
            np.ones(1), entering, ms, ms, np.array([cost.peak_bytes]),
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
        subsets = combinations(self.processors, branches)
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
            widths = self.rules.widths(segment, legal_widths(segment, self.costs.align(processor)))
            if thinning is not None:
                depths, widths = _spread(depths, thinning.depths), _spread(widths, thinning.widths)
            self.costs.prepare(segment, processor, widths, (arriving,))
            candidates.append(tuple(self.costs.branch(segment, processor, d, w, arriving) for w in widths for d in depths))
        shape = [len(c) for c in candidates]
        grid = np.indices(shape).reshape(len(subset), -1)

        def column(i: int, name: str) -> NDArray[np.generic]:
            return np.array([getattr(c, name) for c in candidates[i]])[grid[i]]

        joins = self._join_costs(segment, subset, candidates, join)
        macs = np.zeros(grid.shape[1], np.int64)
        params, peak, depth = np.zeros_like(macs), np.zeros_like(macs), np.zeros(grid.shape[1])
        branch_ms, out_ms = [], []
        at = joins.index([np.searchsorted(joins.widths[i], [c.width for c in candidates[i]])[grid[i]] for i in range(len(subset))])
        for i in range(len(subset)):
            macs += column(i, "macs") + joins.macs[i][at]
            params += column(i, "params") + joins.params[i][at]
            peak += column(i, "peak_bytes")
            depth += column(i, "depth") / segment.depth
            branch_ms.append(column(i, "contended_ms" if len(subset) > 1 else "ms") + joins.ms[i][at])
            out_ms.append(joins.out_ms[i][at])
        computed = np.stack(branch_ms)
        slowest, fastest = computed.max(axis=0), computed.min(axis=0)
        join_ms = joins.join_ms[at]
        elements = _pixels(segment, segment.start) * arriving
        ms, exchange = [], []
        for holder in self.holders:
            entering = np.array([self.costs.transfer(holder, p, elements) for p in subset])[:, None]
            moved = entering + np.stack(out_ms)
            ms.append((computed + moved).max(axis=0) + join_ms)
            exchange.append(moved.max(axis=0) + join_ms)
        options = Ways(
            segment, join, tuple(candidates), macs, params, np.stack(ms), np.ones((len(self.holders), len(macs)), bool), depth,
            np.stack(exchange), slowest, fastest, peak,
        )  # fmt: skip
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
        size = int(np.prod(shape))
        macs = np.zeros((len(subset), size), np.int64)
        params = np.zeros_like(macs)
        ms, out_ms = np.zeros((len(subset), size)), np.zeros((len(subset), size))
        join_ms = np.zeros(size)
        pixels = _pixels(segment, segment.end)
        align = max(self.costs.align(p) for p in subset)
        widens = join_of(join).widens
        combos = [[w[i] for w, i in zip(widths, chosen, strict=True)] for chosen in np.ndindex(*shape)]
        divided = [self._parts(segment, combo, align, join) for combo in combos]
        if not widens:
            for i, processor in enumerate(subset):
                ends = [(combo[i], parts[i]) for combo, parts in zip(combos, divided, strict=True)]
                self.costs.prepare_joins(segment, processor, ends)
        for at, (combo, parts) in enumerate(zip(combos, divided, strict=True)):
            join_ms[at] = self.costs.join(segment, join, sum(combo) if widens else segment.width, len(subset))
            for i, (processor, width, part) in enumerate(zip(subset, combo, parts, strict=True)):
                if not widens:
                    macs[i, at], ms[i, at], params[i, at] = self.costs.join_conv(segment, processor, width, part)
                out_ms[i, at] = self.costs.transfer(processor, self.costs.host, pixels * part)
        return _Joins(widths, shape, macs, params, ms, out_ms, join_ms)

    @staticmethod
    def _parts(segment: Segment, widths: list[int], align: int, join: JoinKind) -> list[int]:
        """Channels each branch hands to the join."""
        if join_of(join).widens:
            return widths
        return partitions(segment.width, widths, align) if join_of(join).divides else [segment.width] * len(widths)


@dataclass(frozen=True)
class _Joins:
    """Costs of what ends the branches, per combination of widths: 1×1 convolutions, transfers, the join."""

    widths: list[list[int]]
    shape: list[int]
    macs: Ints
    params: Ints
    ms: Floats
    out_ms: Floats
    join_ms: Floats

    def index(self, columns: Sequence[Ints]) -> Ints:
        """Flat index of a combination of width numbers."""
        return np.ravel_multi_index(tuple(columns), self.shape)


def _pixels(segment: Segment, name: str) -> int:
    """Positions of a feature map, batch included."""
    shape = segment.graph.by_name[name].shape
    return shape[0] * prod(shape[2:])


def _spread(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of the values, evenly spread, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
