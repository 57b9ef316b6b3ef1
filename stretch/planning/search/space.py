"""All legal designs of one network on one device, as arrays of options per segment.

Scaled copies of a segment are offers until all options are built: their number is a power of the
scales and may be millions; some searches build the few that they need.
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
from stretch.planning.constraints import Constraint, all_constraints
from stretch.planning.cost.branch import BranchCost, Costs, Floats, Ints, Mask, SegmentOptions
from stretch.planning.design.scale import each_partitions, legal_widths
from stretch.planning.network.segments import Segment, join_kinds, memoised

T = TypeVar("T")

#: Width ratios are offered in steps of 1/32; legal widths nearest to them are tried.
WIDTH_STEPS = 32


@dataclass(frozen=True)
class Rules:
    """The constraints of one request."""

    values: Mapping[str, Any]  # Requested values, by the name of the option; rules that are not asked for are left out.

    @classmethod
    def of(cls, request: PlanConfig) -> "Rules":
        """Return the rules of a checked request."""
        values = {constraint.option.name: getattr(request, constraint.option.name) for constraint in all_constraints()}
        return cls({name: value for name, value in values.items() if value is not None})

    @cached_property
    def active(self) -> list[tuple[Constraint, Any]]:
        """The constraints that are asked for, each with its value."""
        return [(item, self.values[item.option.name]) for item in all_constraints() if item.option.name in self.values]

    @cached_property
    def floors(self) -> dict[str, Any]:
        """Return the settings that decide which depths and widths exist."""
        return {item.option.name: value for item, value in self.active if item.offers}

    def depths(self, segment: Segment) -> list[int]:
        """Return the depths a branch may have, ascending."""
        return [depth for depth in range(max(1, segment.min_depth), segment.depth + 1) if self.offers(segment, "depth", depth)]

    def offers(self, segment: Segment, dimension: str, count: float) -> bool:
        """Return whether a branch may have this number of blocks (``depth``), or channels (``width``)."""
        return all(item.offers_scale(value, segment, dimension, count) for item, value in self.active)

    def widths(self, segment: Segment, legal: Sequence[int]) -> list[int]:
        """Return the widths a branch may have, ascending: of the legal ones, those nearest to an even grid of ratios."""
        allowed = [width for width in legal if self.offers(segment, "width", width)]
        if len(allowed) <= WIDTH_STEPS // 2 + 1:
            return allowed
        targets = [segment.width * i / WIDTH_STEPS for i in range(1, int(segment.widest * WIDTH_STEPS) + 1)]
        distances = np.abs(np.subtract.outer([target for target in targets if self.offers(segment, "width", target)], allowed))
        return sorted({allowed[i] for i in distances.argmin(axis=1)} | {allowed[0]})

    def allowed(self, options: SegmentOptions, segment_ms: float) -> Mask:
        """Return which combinations keep to every rule, per processor that may hold the tensor before."""
        allowed = np.ones(options.ms.shape, bool)
        for constraint, value in self.active:
            if options.exact and not constraint.exact:
                continue
            if (options.branched or constraint.whole) and (mask := constraint.mask(value, options, segment_ms)) is not None:
                allowed &= mask
        return allowed


class Totals(NamedTuple):
    """Limits on a whole design."""

    low: int  # Fewest multiply-accumulates.
    high: int  # Most multiply-accumulates.
    n_meet: int  # Branched segments, at least.

    @classmethod
    def of(cls, request: PlanConfig, graph: OpGraph) -> "Totals":
        """Return the limits that a request states for designs of a graph."""
        low, high = request.macs
        return cls(ceil(low * graph.macs), floor(high * graph.macs), request.n_meet)

    def value(self, multiplier: float) -> float:
        """Return the value of the range of multiply-accumulates in a Lagrangian relaxation, ms."""
        return multiplier * (self.low if multiplier >= 0 else self.high)


#: Widths of a branch, and its depths or the numbers of the blocks that it does without.
Scales = tuple[Sequence[int], Sequence[int | tuple[int, ...]]]
#: How many of a branch's scales are worked out: most widths, and most depths.
Thinning = tuple[int, int]


@dataclass(frozen=True)
class Joins:
    """Costs of what ends the branches, per combination of widths: 1×1 convolutions, transfers, the join."""

    macs: Ints  # Multiply-accumulates (branches × combinations).
    params: Ints  # Learned numbers, as `macs`.
    ms: Floats  # Time while other branches compute, as `macs`.
    out_ms: Floats  # Transfer to the host, as `macs`.
    join_ms: Floats  # Time of the join.


@dataclass(frozen=True)
class LazyOptions:
    """A segment in scaled copies on one subset of the processors."""

    segment: Segment  # The original segment.
    subset: tuple[str, ...]  # Processors of the branches, in order.
    join: JoinKind  # How they meet.
    in_channels: int  # Channels that arrive.
    costs: Costs  # Costs on the device.
    rules: Rules  # Which depths and widths there are.
    span: int = 1  # Segments of the space that it takes the place of.
    thinning: Thinning | None = None  # How many scales of a branch there are; None for all.
    fixed_scales: tuple[Scales, ...] = ()  # The scales of each branch, in place of all that the rules offer.

    @property
    def branched(self) -> bool:
        """Whether several branches run next to each other, as in all scaled copies."""
        return True

    def holder(self, host: str) -> str:
        """Return the processor that holds the output: the host, where scaled copies meet."""
        return host

    @cached_property
    def scales(self) -> tuple[Scales, ...]:
        """Widths of each branch, ascending, and its depths, ascending, or the sets of blocks that it may do without."""
        if self.fixed_scales:
            return self.fixed_scales
        thinning, depths = self.thinning, self.rules.depths(self.segment)
        rewritten = [(self.costs.rewritten(self.segment, processor), self.costs.align(processor)) for processor in self.subset]
        each = [(self.rules.widths(segment, legal_widths(segment, align, ceiling=segment.widest)), depths) for segment, align in rewritten]
        return tuple(each if thinning is None else [(evenly_spaced(w, thinning[0]), evenly_spaced(d, thinning[1])) for w, d in each])

    @property
    def full(self) -> "LazyOptions":
        """The same with all scales."""
        # one that remembered itself would be kept until garbage is collected, and all that is known of its device with it
        return self if self.thinning is None else self.thinned(None)

    @memoised
    def thinned(self, thinning: Thinning | None) -> "LazyOptions":
        """Return the same with fewer scales, cached."""
        return replace(self, thinning=thinning)

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
            self.costs.prepare(rewritten, processor, widths, (self.in_channels,))
            scales = ((self.segment.depth - len(d), w, d) if isinstance(d, tuple) else (d, w, ()) for w in widths for d in depths)
            result.append(tuple(self.costs.branch(rewritten, processor, d, w, self.in_channels, removed) for d, w, removed in scales))
        return tuple(result)

    @memoised
    def column(self, branch: int, name: str) -> NDArray[Any]:
        """Return a number of each of one branch's scales, in the order of `candidates`."""
        return np.array([getattr(candidate, name) for candidate in self.candidates[branch]])

    def slowing(self, branch: int) -> SlowdownFactors:
        """Return the factors on the times of one branch while the others compute."""
        return self.costs.slowing(self.subset[branch], {*self.subset} - {self.subset[branch]})

    @memoised
    def loaded_ms(self, branch: int) -> Floats:
        """Return the time of each of one branch's scales while the others compute, ms."""
        columns: list[Any] = [self.column(branch, name).astype(float) for name in KernelsTime._fields]
        return np.asarray(KernelsTime(*columns).slowed(self.slowing(branch)), dtype=np.float64)

    @property
    def elements(self) -> int:
        """Of the tensor that arrives."""
        return pixels(self.segment.graph.input.shape) * self.in_channels

    @cached_property
    def joins(self) -> Joins:
        """Return the operators that end the branches, for each combination of their widths, in the order of `numpy.indices`."""
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
                # one number for a pair of channels: pairs themselves take long to sort
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
        """Return all options of the segment, or those of the given numbers, whether they meet the rules or not."""
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
    """Return a function's value for each number; it is called once for equal numbers."""
    distinct, inverse = np.unique(numbers, return_inverse=True)
    return np.array([function(number) for number in distinct.tolist()])[inverse]


def evenly_spaced(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of the values, evenly spread, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / max(count - 1, 1))] for i in range(count)]


#: Scales of a branch that are looked at first where any will do.
SAMPLE: Thinning = (4, 3)
#: Combinations of scales in runs of segments up to which all of them are worked out.
MAX_COMBINATIONS = 400_000
#: Scales of a branch in a run where there are more, by the number of processors (of more than three `SAMPLE`): combinations are a power of
#: it. The search for the least latency (`stretch.planning.search.exact`) has all of them nevertheless.
RUN_THINNINGS: dict[int, Thinning] = {2: (9, 8), 3: (6, 6)}


@dataclass(frozen=True, eq=False)
class DesignSpace:
    """Every combination of processors, depths and widths of every segment.

    Most joins keep the width of the backbone, so segments are independent of each other. One that widens it couples them: then costs hold
    for the channels that `arriving` states per segment, and before a segment that cannot read other widths `project` takes its place.
    """

    segments: tuple[Segment, ...]  # In order.
    processors: tuple[str, ...]  # That branches may use.
    costs: Costs  # On the device.
    rules: Rules  # The constraints.
    join: JoinKind  # How branches of scaled copies meet.
    arriving: tuple[int, ...]  # Channels that each segment reads.
    kept: frozenset[str]  # Names of segments that do not become scaled copies.
    built: Sequence[Sequence[SegmentOptions]] = ()  # Options that are built, by the segment at which they start.
    offers: Sequence[Sequence[LazyOptions]] = ()  # Options that are built on demand, likewise.
    thinned: bool = False  # Whether `options` lacks some scales of segments that the space has.

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
        """Return all designs of some segments; `arriving` are the original's channels if None."""
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
        """Return the processors that may hold a tensor between segments; the host joins even where no branch uses it."""
        return tuple(dict.fromkeys((self.costs.host, *self.costs.precision)))

    @cached_property
    def options(self) -> list[list[SegmentOptions]]:
        """All options of each segment, by the segment at which they start."""
        built = [[self.apply_rules(offer.options(self.holders)) for offer in offers if offer.count] for offers in self.offers]
        return [[*ready, *extra] for ready, extra in zip(self.built, built, strict=True)]

    @property
    def size_log10(self) -> float:
        """Decimal logarithm of the number of designs, constraints aside."""
        # from the end: designs of everything behind a segment; an integer has no upper limit
        counts_from = [1]
        for ready, offers in zip(reversed(self.built), reversed(self.offers), strict=True):
            counts = [(len(options.macs), options.span) for options in ready] + [(offer.full.count, offer.span) for offer in offers]
            counts_from.insert(0, sum(count * counts_from[span - 1] for count, span in counts))
        return log10(counts_from[0])

    @property
    def max_meetings(self) -> int:
        """Most segments that can branch in one design, each by itself within the rules."""
        most_from = [0]
        for ready, offers in zip(reversed(self.built), reversed(self.offers), strict=True):
            candidates = [1 + most_from[o.span - 1] for o in ready if o.branched and o.allowed.any()]
            for offer in (offer for offer in offers if offer.count):
                # few of its scales usually suffice
                thinnings = (offer.full.thinned(SAMPLE), offer)
                candidates += [1 + most_from[offer.span - 1]] * any(
                    self.apply_rules(item.options(self.holders)).allowed.any() for item in thinnings
                )
            most_from.insert(0, max([most_from[0], *candidates]))
        return most_from[0]

    @property
    def longest_span(self) -> int:
        """Segments in the longest run that may be merged; 1 where none may."""
        return max([o.span for options in self.built for o in options] + [offer.span for offers in self.offers for offer in offers])

    def alone_ms(self, options: SegmentOptions) -> float:
        """Return the original segment on the fastest of the processors that its options use, whichever others there are, ms: rules compare with it."""
        if options.alone_ms is not None:
            return options.alone_ms
        return min(self.costs.whole(options.segment, p).ms for p in options.processors)

    def output_moves(self, holder: str) -> dict[str, float]:
        """Transfer of the network's output to the host, from the processor that holds it, ms by link."""
        last = self.segments[-1]
        return self.costs.moves(holder, self.costs.host, prod(last.graph.by_name[last.end].shape))

    def finish_ms(self, holder: str) -> float:
        """Transfer of the output, plus the host's constant that every design has once, ms."""
        return sum(self.output_moves(holder).values()) + self.costs.handover(self.costs.host).ms

    def undivided(self, segment: Segment, processor: str, arriving: int, dropped: tuple[int, ...] = ()) -> SegmentOptions:
        """Return a segment undivided on one processor, with `arriving` input channels and without some blocks, which count as computed."""
        cost = self.costs.branch(segment, processor, segment.depth - len(dropped), segment.width, arriving, dropped)
        # the range of multiply-accumulates is for networks that are trained; these are bounded by their loss
        cost_macs = segment.graph.macs if dropped else cost.macs
        elements = pixels(segment.graph.input.shape) * arriving
        entering = np.array([[self.costs.transfer(h, processor, elements)] for h in self.holders])
        macs, params, ms, peak = (np.array([value]) for value in (cost_macs, cost.params, cost.ms, cost.peak_bytes))
        times = entering + ms, entering, ms, ms
        return self.apply_rules(SegmentOptions(segment, "none", ((cost,),), macs, params, *times, peak, busy=lambda: {processor: ms}))

    def stretched_offers(self, segment: Segment, first: int, span: int) -> list[LazyOptions]:
        """Return a segment in scaled copies, on every subset of the processors."""
        following = self.segments[first + span] if first + span < len(self.segments) else None
        kind: JoinKind = self.join if self.join in join_kinds(segment, following) else DEFAULT
        counts = range(2, min(len(self.processors), segment.width) + 1)
        subsets = (subset for count in counts for subset in combinations(self.processors, count))
        return [LazyOptions(segment, subset, kind, self.arriving[first], self.costs, self.rules, span) for subset in subsets]

    def add_runs(self, runs: Sequence[Sequence[LazyOptions]]) -> "DesignSpace":
        """Return the same with offers of runs of segments; of more than `MAX_COMBINATIONS`, `options` has a few scales, of many branches first."""
        thinned = self.thinned
        for branches in range(len(self.processors), 1, -1):
            if sum(offer.count for extra in runs for offer in extra) <= MAX_COMBINATIONS:
                break
            thinning = RUN_THINNINGS.get(len(self.processors), SAMPLE)
            runs = [[offer.thinned(thinning) if len(offer.subset) == branches else offer for offer in extra] for extra in runs]
            thinned = True
        return replace(self, offers=[[*offers, *extra] for offers, extra in zip(self.offers, runs, strict=True)], thinned=thinned)

    def apply_rules(self, options: SegmentOptions) -> SegmentOptions:
        """Return the options with the rules applied."""
        return replace(options, allowed=self.rules.allowed(options, self.alone_ms(options)))

    def replace_rules(self, rules: Rules) -> "DesignSpace":
        """Return the same designs under other rules; the floors on depth and width do not change."""
        space = replace(self, rules=rules)
        return space.replace_options([[space.apply_rules(o) for o in options] for options in self.options])

    def replace_options(self, options: Sequence[Sequence[SegmentOptions]], *, thinned: bool | None = None) -> "DesignSpace":
        """Return the space with other options; `thinned` says whether these lack some scales, None for as before."""
        return replace(self, built=options, offers=[()] * len(options), thinned=self.thinned if thinned is None else thinned)
