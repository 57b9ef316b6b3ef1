"""All legal designs of one network on one device, as arrays of options per segment.

Options with scaled copies of a segment start as offers, which are built on demand: their number is a power of the
scales and may be millions, and some searches only build a few of them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import combinations
from math import ceil, floor, log10, prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors.devices import SlowdownFactors
from predictors.graph import OpGraph
from predictors.joins import DEFAULT, JoinKind, join_of
from predictors.predictor import KernelsTime
from predictors.shapes import pixels
from stretch.planning.config import PlanConfig
from stretch.planning.constraints import Constraint, constraints
from stretch.planning.cost.branch import BranchCost, Costs, Floats, Ints, Mask, SegmentOptions
from stretch.planning.design.scale import each_partitions, legal_widths
from stretch.planning.network.segments import Segment, join_kinds, memoised

T = TypeVar("T")

#: Number of width-ratio steps; the search tries the legal widths nearest to multiples of 1/32.
WIDTH_STEPS = 32


@dataclass(frozen=True)
class Rules:
    """The constraints of one request."""

    values: Mapping[str, Any]  # Requested values by option name; rules without a value are left out.

    @classmethod
    def of(cls, request: PlanConfig) -> "Rules":
        """Return the rules of a checked request."""
        return cls({name: value for name in constraints if (value := getattr(request, name)) is not None})

    @cached_property
    def active(self) -> list[tuple[Constraint, Any]]:
        """The requested constraints, each with its value."""
        return [(item, self.values[name]) for name, item in constraints.items() if name in self.values]

    @cached_property
    def floors(self) -> dict[str, Any]:
        """Values of the constraints that limit the offered depths and widths, by option name."""
        return {item.option.name: value for item, value in self.active if item.floor_of}

    def depths(self, segment: Segment) -> list[int]:
        """Return the allowed depths of a branch, ascending."""
        return [depth for depth in range(max(1, segment.min_depth), segment.depth + 1) if self.offers(segment, "depth", depth)]

    def offers(self, segment: Segment, dimension: str, count: float) -> bool:
        """Return whether a branch may have `count` blocks (`dimension` is ``depth``) or channels (``width``)."""
        return all(item.offers_scale(value, segment, dimension, count) for item, value in self.active)

    def widths(self, segment: Segment, legal: Sequence[int]) -> list[int]:
        """Return the widths to try for a branch, ascending: the legal widths nearest to an even grid of ratios."""
        allowed = [width for width in legal if self.offers(segment, "width", width)]
        if len(allowed) <= WIDTH_STEPS // 2 + 1:
            return allowed
        targets = [segment.width * i / WIDTH_STEPS for i in range(1, int(segment.widest * WIDTH_STEPS) + 1)]
        distances = np.abs(np.subtract.outer([target for target in targets if self.offers(segment, "width", target)], allowed))
        return sorted({allowed[i] for i in distances.argmin(axis=1)} | {allowed[0]})

    def allowed(self, options: SegmentOptions, segment_ms: float) -> Mask:
        """Return a mask of the combinations that meet every rule, by holder of the input (as `options.ms`)."""
        allowed = np.ones(options.ms.shape, bool)
        for constraint, value in self.active:
            if options.exact and not constraint.exact:
                continue
            if (options.branched or constraint.whole) and (mask := constraint.mask(value, options, segment_ms)) is not None:
                allowed &= mask
        return allowed


class Totals(NamedTuple):
    """Limits on a whole design."""

    low: int  # Minimum multiply-accumulates.
    high: int  # Maximum multiply-accumulates.
    n_meet: int  # Minimum number of branched segments.

    @classmethod
    def of(cls, request: PlanConfig, graph: OpGraph) -> "Totals":
        """Return the limits of a request on designs of a graph."""
        low, high = request.macs
        return cls(ceil(low * graph.macs), floor(high * graph.macs), request.n_meet)

    def value(self, multiplier: float) -> float:
        """Return the value of the range of multiply-accumulates in a Lagrangian relaxation, ms."""
        return multiplier * (self.low if multiplier >= 0 else self.high)


#: Widths of a branch, and its depths or the sets of blocks that it may lack.
Scales = tuple[Sequence[int], Sequence[int | tuple[int, ...]]]
#: Maximum number of a branch's widths and of its depths.
Thinning = tuple[int, int]


@dataclass(frozen=True)
class Joins:
    """Costs of the ends of branches, per combination of widths: 1×1 convolutions, transfers, the join."""

    macs: Ints  # Multiply-accumulates (branches × combinations).
    params: Ints  # Parameters (branches × combinations).
    ms: Floats  # Time while other branches compute (branches × combinations).
    out_ms: Floats  # Transfer to the host (branches × combinations).
    join_ms: Floats  # Time of the join (combinations).


@dataclass(frozen=True)
class LazyOptions:
    """All options of a segment with scaled copies on one subset of the processors, built on demand."""

    segment: Segment  # The original segment.
    subset: tuple[str, ...]  # Processors of the branches, in order.
    join: JoinKind  # Join of the branches.
    in_channels: int  # Channels of the input.
    costs: Costs  # Costs on the device.
    rules: Rules  # Constraints, which also limit depths and widths.
    span: int = 1  # Number of the space's segments that it covers.
    thinning: Thinning | None = None  # Maximum scales of a branch; None for all.
    fixed_scales: tuple[Scales, ...] = ()  # Scales of each branch; empty for all scales that the rules allow.

    @property
    def branched(self) -> bool:
        """Whether several branches run side by side; always true for scaled copies."""
        return True

    def holder(self, host: str) -> str:
        """Return the processor that holds the output: the host, where scaled copies meet."""
        return host

    @cached_property
    def scales(self) -> tuple[Scales, ...]:
        """Widths of each branch, ascending, and its depths, ascending, or the sets of blocks that it may lack."""
        if self.fixed_scales:
            return self.fixed_scales
        thinning, depths = self.thinning, self.rules.depths(self.segment)
        rewritten = [(self.costs.rewritten(self.segment, processor), self.costs.align(processor)) for processor in self.subset]
        each = [(self.rules.widths(segment, legal_widths(segment, align, ceiling=segment.widest)), depths) for segment, align in rewritten]
        return tuple(each if thinning is None else [(evenly_spaced(w, thinning[0]), evenly_spaced(d, thinning[1])) for w, d in each])

    @property
    def full(self) -> "LazyOptions":
        """The same with all scales."""
        # memoising itself would create a cycle that keeps the object and its device's costs until garbage collection
        return self if self.thinning is None else self.thinned(None)

    @memoised
    def thinned(self, thinning: Thinning | None) -> "LazyOptions":
        """Return the same options with fewer scales, memoised."""
        return replace(self, thinning=thinning)

    @property
    def count(self) -> int:
        """Number of combinations of the scales."""
        return prod(len(widths) * len(depths) for widths, depths in self.scales)

    @cached_property
    def candidates(self) -> tuple[tuple[BranchCost, ...], ...]:
        """Costs of each branch's scales, ordered by width and then by depth."""
        result = []
        for processor, (widths, depths) in zip(self.subset, self.scales, strict=True):
            rewritten = self.costs.rewritten(self.segment, processor)
            self.costs.prepare(rewritten, processor, widths, (self.in_channels,))
            scales = ((self.segment.depth - len(d), w, d) if isinstance(d, tuple) else (d, w, ()) for w in widths for d in depths)
            result.append(tuple(self.costs.branch(rewritten, processor, d, w, self.in_channels, removed) for d, w, removed in scales))
        return tuple(result)

    @memoised
    def column(self, branch: int, name: str) -> NDArray[Any]:
        """Return one field of `BranchCost` for each scale of a branch, in the order of `candidates`."""
        return np.array([getattr(candidate, name) for candidate in self.candidates[branch]])

    def slowing(self, branch: int) -> SlowdownFactors:
        """Return the slowdown factors of one branch while the others compute."""
        return self.costs.slowing(self.subset[branch], {*self.subset} - {self.subset[branch]})

    @memoised
    def loaded_ms(self, branch: int) -> Floats:
        """Return the time of each scale of a branch while the others compute, ms."""
        columns: list[Any] = [self.column(branch, name).astype(float) for name in KernelsTime._fields]
        return np.asarray(KernelsTime(*columns).slowed(self.slowing(branch)), dtype=np.float64)

    @property
    def elements(self) -> int:
        """Number of elements of the input tensor."""
        return pixels(self.segment.graph.input.shape) * self.in_channels

    @cached_property
    def joins(self) -> Joins:
        """Costs of the ends of the branches, for each combination of their widths, in the order of `numpy.indices`."""
        widths = [widths_of_branch for widths_of_branch, _ in self.scales]
        shape = [len(w) for w in widths]
        combos = np.stack([np.array(w)[at] for w, at in zip(widths, np.indices(shape).reshape(len(shape), -1), strict=True)])
        # channels that each branch hands to the join
        join, width = join_of(self.join), self.segment.width
        align = max(self.costs.align(processor) for processor in self.subset)
        parts = combos if join.widens else each_partitions(width, combos, align) if join.divides else np.full_like(combos, width)
        macs, params = np.zeros(combos.shape, np.int64), np.zeros(combos.shape, np.int64)
        ms, out_ms = np.zeros(combos.shape), np.zeros(combos.shape)
        positions = pixels(self.segment.graph.by_name[self.segment.end].shape)
        for i, processor in enumerate(self.subset):
            if not join.widens:
                # encode a pair of channels as one number, because sorting pairs is slow
                step = int(parts[i].max()) + 1
                ends, inverse = np.unique(combos[i] * step + parts[i], return_inverse=True)
                pairs = zip((ends // step).tolist(), (ends % step).tolist(), strict=True)
                values = np.array(self.costs.join_convs(self.segment, processor, list(pairs), self.slowing(i)), float)
                macs[i], ms[i], params[i] = values.reshape(-1, 3)[inverse].T
            out_ms[i] = _evaluate_distinct(positions * parts[i], partial(self.costs.transfer, processor, self.costs.host))
        channels = combos.sum(axis=0) if join.widens else np.full(combos.shape[1], width)
        join_ms = _evaluate_distinct(channels, lambda count: self.costs.join(self.segment, self.join, count, len(self.subset)))
        return Joins(macs, params, ms, out_ms, join_ms)

    def options(self, holders: Sequence[str], numbers: Ints | None = None) -> SegmentOptions:
        """Return all options of the segment, or only those with the given numbers, without applying the rules."""
        joins, branches = self.joins, range(len(self.subset))
        sizes = [(len(widths), len(depths)) for widths, depths in self.scales]
        combinations = np.arange(self.count) if numbers is None else numbers
        at = np.unravel_index(combinations, [size for pair in sizes for size in pair])
        scale = [at[2 * i] * sizes[i][1] + at[2 * i + 1] for i in branches]
        width = np.ravel_multi_index(at[::2], [widths for widths, _ in sizes])

        def total(name: str, ends: Ints) -> Ints:
            return sum((self.column(i, name)[scale[i]] for i in branches), ends)

        computed = [self.loaded_ms(i)[scale[i]] + joins.ms[i][width] for i in branches]
        out, join = [joins.out_ms[i][width] for i in branches], joins.join_ms[width]
        ms, exchange = (np.empty((len(holders), len(combinations))) for _ in range(2))
        for row, holder in enumerate(holders):
            moved = [self.costs.transfer(holder, p, self.elements) + out[i] for i, p in enumerate(self.subset)]
            ms[row] = reduce(np.maximum, [current + move for current, move in zip(computed, moved, strict=True)]) + join
            exchange[row] = reduce(np.maximum, moved) + join
        return SegmentOptions(
            self.segment,
            self.join,
            self.candidates,
            macs=total("macs", joins.macs.sum(axis=0)[width]),
            params=total("params", joins.params.sum(axis=0)[width]),
            ms=ms,
            exchange_ms=exchange,
            slowest_ms=reduce(np.maximum, computed),
            fastest_ms=reduce(np.minimum, computed),
            peak_bytes=total("peak_bytes", np.zeros_like(width)),
            span=self.span,
            busy=lambda: dict(zip(self.subset, computed, strict=True)),
            numbers=numbers,
        )


def _evaluate_distinct(numbers: Ints, function: Callable[[int], float]) -> Floats:
    """Return a function's value for each number, with one call per distinct number."""
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return np.array([function(number) for number in distinct.tolist()])[inverse]


def evenly_spaced(values: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of the values, evenly spaced, with the first and the last included."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / max(count - 1, 1))] for i in range(count)]


#: First thinning to try if any design suffices.
SAMPLE: Thinning = (4, 3)
#: Maximum combinations of scales in runs of segments up to which all are built.
MAX_COMBINATIONS = 400_000
#: Thinnings of a branch's scales in larger runs, by the number of processors (`SAMPLE` for more than three): the number of combinations is
#: a power of it. The search for the lowest latency (`stretch.planning.search.exact`) still covers all scales.
RUN_THINNINGS: dict[int, Thinning] = {2: (9, 8), 3: (6, 6)}


@dataclass(frozen=True, eq=False)
class DesignSpace:
    """Every combination of processors, depths and widths of every segment.

    Most joins keep the width of the backbone, so segments are independent of each other. A widening join couples them: then costs hold
    for the channels that `arriving` states per segment, and `project` replaces the join before a segment that cannot read other widths.
    """

    segments: tuple[Segment, ...]  # In order.
    processors: tuple[str, ...]  # Processors that branches may use.
    costs: Costs  # On the device.
    rules: Rules  # Constraints of the request.
    join: JoinKind  # Join of scaled copies.
    arriving: tuple[int, ...]  # Channels that each segment reads.
    kept: frozenset[str]  # Names of segments that do not become scaled copies.
    built: Sequence[Sequence[SegmentOptions]] = ()  # Built options, by first segment.
    offers: Sequence[Sequence[LazyOptions]] = ()  # Options to build on demand, by first segment.
    thinned: bool = False  # Whether `options` lacks some of the space's scales.

    @classmethod
    def of(
        cls,
        segments: Sequence[Segment],
        processors: Sequence[str],
        costs: Costs,
        rules: Rules,
        join: JoinKind = DEFAULT,
        arriving: Sequence[int] | None = None,
        kept: Collection[str] = (),
    ) -> "DesignSpace":
        """Return all designs of some segments; `arriving` defaults to the original's channels."""
        widths = tuple(s.in_width for s in segments) if arriving is None else tuple(arriving)
        space = cls(tuple(segments), tuple(processors), costs, rules, join, widths, frozenset(kept))
        stretched = [segment.branchable and segment.name not in kept for segment in segments]
        return replace(
            space,
            built=[[space.undivided(s, p, width) for p in processors] for s, width in zip(segments, widths, strict=True)],
            offers=[space.stretched_offers(segment, i, 1) if stretched[i] else [] for i, segment in enumerate(segments)],
        )

    @cached_property
    def holders(self) -> tuple[str, ...]:
        """Processors that may hold a tensor between segments; the host joins branches even if it runs none."""
        return tuple(dict.fromkeys((self.costs.host, *self.costs.precision)))

    @cached_property
    def options(self) -> list[list[SegmentOptions]]:
        """All options, by first segment."""
        built = [[self.apply_rules(offer.options(self.holders)) for offer in offers if offer.count] for offers in self.offers]
        return [[*ready, *extra] for ready, extra in zip(self.built, built, strict=True)]

    @property
    def size_log10(self) -> float:
        """Decimal logarithm of the number of designs, without regard to constraints."""
        # count from the end: designs of all segments from one on; Python integers do not overflow
        counts_from = [1]
        for ready, offers in zip(reversed(self.built), reversed(self.offers), strict=True):
            counts = [(len(options.macs), options.span) for options in ready] + [(offer.full.count, offer.span) for offer in offers]
            counts_from.insert(0, sum(count * counts_from[span - 1] for count, span in counts))
        return log10(counts_from[0])

    @property
    def max_meetings(self) -> int:
        """Maximum number of branched segments in one design, with the rules checked per segment."""
        most_from = [0]
        for ready, offers in zip(reversed(self.built), reversed(self.offers), strict=True):
            candidates = [1 + most_from[o.span - 1] for o in ready if o.branched and o.allowed.any()]
            for offer in (offer for offer in offers if offer.count):
                # try few scales first, which usually suffice
                thinnings = (offer.full.thinned(SAMPLE), offer)
                candidates += [1 + most_from[offer.span - 1]] * any(
                    self.apply_rules(item.options(self.holders)).allowed.any() for item in thinnings
                )
            most_from.insert(0, max([most_from[0], *candidates]))
        return most_from[0]

    @property
    def longest_span(self) -> int:
        """Number of segments in the longest run that may be merged; 1 if none may."""
        return max([o.span for options in self.built for o in options] + [offer.span for offers in self.offers for offer in offers])

    def alone_ms(self, options: SegmentOptions) -> float:
        """Return the time of the original segment on the fastest processor of its options, ms: the reference of the rules."""
        if options.alone_ms is not None:
            return options.alone_ms
        return min(self.costs.whole(options.segment, p).ms for p in options.processors)

    def finish_ms(self, holder: str) -> float:
        """Return the time of the output's transfer from its holder to the host plus the host's constant per inference, ms."""
        last, host = self.segments[-1], self.costs.host
        moved_ms: float = self.costs.transfer(holder, host, prod(last.graph.by_name[last.end].shape))
        return moved_ms + self.costs.handover(host).ms

    def undivided(self, segment: Segment, processor: str, arriving: int, dropped: tuple[int, ...] = ()) -> SegmentOptions:
        """Return the option of an undivided segment on one processor, without `dropped` blocks, whose MACs still count."""
        cost = self.costs.branch(segment, processor, segment.depth - len(dropped), segment.width, arriving, dropped)
        # the range of multiply-accumulates is for networks that are trained; a segment without blocks is bounded by its loss
        cost_macs = segment.graph.macs if dropped else cost.macs
        elements = pixels(segment.graph.input.shape) * arriving
        entering = np.array([[self.costs.transfer(h, processor, elements)] for h in self.holders])
        macs, params, ms, peak = (np.array([value]) for value in (cost_macs, cost.params, cost.ms, cost.peak_bytes))
        times = entering + ms, entering, ms, ms
        return self.apply_rules(SegmentOptions(segment, "none", ((cost,),), macs, params, *times, peak, busy=lambda: {processor: ms}))

    def stretched_offers(self, segment: Segment, first: int, span: int) -> list[LazyOptions]:
        """Return the offers of a segment in scaled copies, one per subset of the processors."""
        following = self.segments[first + span] if first + span < len(self.segments) else None
        kind: JoinKind = self.join if self.join in join_kinds(segment, following) else DEFAULT
        counts = range(2, min(len(self.processors), segment.width) + 1)
        subsets = (subset for count in counts for subset in combinations(self.processors, count))
        return [LazyOptions(segment, subset, kind, self.arriving[first], self.costs, self.rules, span) for subset in subsets]

    def add_runs(self, runs: Sequence[Sequence[LazyOptions]]) -> "DesignSpace":
        """Return the space with offers of runs; beyond `MAX_COMBINATIONS`, scales are thinned, first for the most branches."""
        thinned = self.thinned
        for branches in range(len(self.processors), 1, -1):
            if sum(offer.count for extra in runs for offer in extra) <= MAX_COMBINATIONS:
                break
            thinning = RUN_THINNINGS.get(len(self.processors), SAMPLE)
            runs = [[offer.thinned(thinning) if len(offer.subset) == branches else offer for offer in extra] for extra in runs]
            thinned = True
        return replace(self, offers=[[*offers, *extra] for offers, extra in zip(self.offers, runs, strict=True)], thinned=thinned)

    def apply_rules(self, options: SegmentOptions) -> SegmentOptions:
        """Return the options with the mask of the rules."""
        return replace(options, allowed=self.rules.allowed(options, self.alone_ms(options)))

    def replace_rules(self, rules: Rules) -> "DesignSpace":
        """Return the same designs under other rules, which must have the same floors on depth and width."""
        space = replace(self, rules=rules)
        return space.replace_options([[space.apply_rules(o) for o in options] for options in self.options])

    def replace_options(self, options: Sequence[Sequence[SegmentOptions]], *, thinned: bool | None = None) -> "DesignSpace":
        """Return the space with other options; `thinned` states whether these lack some scales, None for no change."""
        return replace(self, built=options, offers=[()] * len(options), thinned=self.thinned if thinned is None else thinned)
