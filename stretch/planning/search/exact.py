"""Exact search: label setting over segments, and branch and bound if there are too many options to build.

*Label setting*: a label is a partial design; its state is the processor that holds the tensor, the number of branched segments so
far, and whether it contains a required option. Options lead from state to state (`stretch.planning.search.layers`).

*Branch and bound*: the range of multiply-accumulates is relaxed with a Lagrangian multiplier, so that an option costs its time minus
the multiplier times its MACs. The cheapest path plus the constraint's value is a lower bound on every makespan. Within a segment,
the slowest branch takes at least any weighted mean of the branches: a sum over branches, which bounds all combinations of scales
without building them. Options whose cheapest completion is within a slack of the bound are built and searched by label setting.
If the best design is slower than bound plus slack, the slack widens.
Invariant: a design with an option that was not built is slower than the lower bound plus the slack.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import accumulate, combinations
from math import inf, isclose, nan, prod
from operator import attrgetter
from typing import Any

import numpy as np

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import UsageError
from predictors.joins import join_of
from stretch.planning.cost.branch import Costs, Floats, Ints, Mask, SegmentOptions
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import memoised
from stretch.planning.search.layers import TIE, Layer, costs_to_end, maximize_concave, remaining_costs, shortest_path
from stretch.planning.search.space import SAMPLE, DesignSpace, LazyOptions, Thinning, Totals

#: Options and the index of the chosen option, per segment.
Picks = Sequence[tuple[SegmentOptions, int]]


def with_input_holders(space: DesignSpace, picks: Picks) -> tuple[list[tuple[SegmentOptions, int, str]], str]:
    """Return each pick with the processor that holds its input, and the processor that holds the network's output."""
    holder, rows = space.costs.host, []
    for options, index in picks:
        rows.append((options, index, holder))
        holder = options.holder(space.costs.host)
    return rows, holder


def processors_used(space: DesignSpace, picks: Picks) -> tuple[str, ...]:
    """Return the processors that run a part of a design, in the space's order."""
    names = {name for options, _ in picks for name in options.processors_used(space.costs.host)}
    return tuple(name for name in space.processors if name in names)


@dataclass(frozen=True)
class Measure:
    """A cost that adds up over the segments of a design: time, multiply-accumulates, loss, energy, or a weighted sum of these."""

    #: Cost of each option of a segment, by holder of its input: an array that broadcasts to `SegmentOptions.ms`.
    per_option: Callable[[SegmentOptions], Floats]
    #: Cost added after the last segment, by the processor that holds the network's output.
    final_cost: Callable[[DesignSpace, str], float] = lambda space, holder: 0.0
    energy: float = 0.0  # Weight of the energy, mJ, which depends on the set of processors with work.
    power: "ProcessorPowers | None" = None  # Power of the processors; required if `energy` is not 0.

    @memoised
    def of(self, processors: tuple[str, ...]) -> "Measure":
        """Return the measure for designs that give work to exactly these processors."""
        if self.power is None:
            return self
        return weighted_sum((1.0, replace(self, energy=0.0, power=None)), (self.energy, self.power.energy(processors)))

    def value(self, space: DesignSpace, picks: Picks) -> float:
        """Return the cost of a whole design."""
        if self.power is not None:
            return self.of(processors_used(space, picks)).value(space, picks)
        rows, last = with_input_holders(space, picks)
        total = sum(float(np.broadcast_to(self.per_option(o), o.ms.shape)[space.holders.index(holder), index]) for o, index, holder in rows)
        return total + self.final_cost(space, last)


#: The makespan, ms.
LATENCY = Measure(lambda options: options.ms, lambda space, holder: space.finish_ms(holder))
#: Total multiply-accumulates, and total parameters.
MACS, PARAMS = Measure(lambda options: options.macs.astype(float)), Measure(lambda options: options.params.astype(float))


def weighted_sum(*parts: tuple[float, Measure]) -> Measure:
    """Return the weighted sum of measures."""
    terms = [(weight, measure) for weight, measure in parts if weight]

    @cache
    def per_option(options: SegmentOptions) -> Floats:
        return np.asarray(sum(weight * measure.per_option(options) for weight, measure in terms), dtype=np.float64)

    return Measure(
        per_option,
        lambda space, holder: sum(weight * measure.final_cost(space, holder) for weight, measure in terms),
        sum(weight * measure.energy for weight, measure in terms),
        next((measure.power for _, measure in terms if measure.power), None),
    )


def measure_of(weights: Mapping[str, float], device: DeviceProfile, processors: Sequence[str]) -> Measure:
    """Return the measure of an objective with these weights; latency for an objective that is not additive."""
    energy = weights.get("energy", 0.0)
    if not energy:
        return LATENCY
    base = weighted_sum((weights.get("latency", 0.0), LATENCY))
    return replace(base, energy=energy, power=ProcessorPowers(device, processors))


class ProcessorPowers:
    """Energy of designs by `EnergyModel.plan_mj`, mJ; the constructor refuses processors without a stated power."""

    def __init__(self, device: DeviceProfile, processors: Sequence[str]) -> None:
        self._model = model = EnergyModel(device)
        for name in processors:
            if model.mj(name, 1.0) is None:
                problem = f"the profile of {device.id} states no power of the {name}, so nothing can be planned for energy"
                raise UsageError(problem, "name other processors, or add `power_w` to the profile")
        # a waiting processor may need another power than an idle one, so the energy depends on the set of processors with work
        same_waiting_power = all(isclose(self._mj({name: 0.0}), self._mj({})) for name in processors)
        subsets = (subset for count in range(len(processors), 0, -1) for subset in combinations(processors, count))
        #: Sets of processors that need separate searches.
        self.groups: list[tuple[str, ...]] = [tuple(processors)] if same_waiting_power else list(subsets)

    def energy(self, processors: Sequence[str]) -> Measure:
        """Return the energy of designs that use exactly these processors, mJ; a lower bound if one has no work."""
        idle = dict.fromkeys(processors, 0.0)
        waiting_mj = self._mj(idle)
        extra_mj = {name: self._mj({**idle, name: 1.0}) - waiting_mj for name in processors}

        @cache
        def of(options: SegmentOptions) -> Floats:
            return np.asarray(waiting_mj * options.ms + sum(extra_mj[name] * ms for name, ms in options.busy().items()), dtype=np.float64)

        return Measure(of, lambda space, holder: waiting_mj * space.finish_ms(holder))

    def _mj(self, busy: dict[str, float]) -> float:
        mj = self._model.plan_mj(busy, 1.0)
        assert mj is not None
        return mj


def restrict_processors(space: DesignSpace, processors: Sequence[str]) -> DesignSpace:
    """Return the designs of a space that use only these processors."""
    if set(processors) >= set(space.processors):
        return space
    return space.replace_options(
        [[o for o in options if o.processors_used(space.costs.host) <= set(processors)] for options in space.options]
    )


#: Returns whether options are of the required kind.
OptionFilter = Callable[[SegmentOptions], bool]
#: A bound on a second measure: the measure, and its maximum over a whole design.
LossBound = tuple[Measure, float]


@dataclass(frozen=True)
class SearchResult:
    """A design found by a search."""

    picks: tuple[tuple[SegmentOptions, int], ...]  # Per segment, its options and the index of the chosen option.
    ms: float  # Predicted makespan, ms.
    macs: int  # Multiply-accumulates.
    optimal: bool  # Whether the design is proved to be the best of the space.
    gap: float  # Largest possible excess over the best design, as a fraction.
    evaluated: int  # Options whose cost was computed.
    value: float  # Value of the objective.

    @classmethod
    def unproved(cls, space: DesignSpace, picks: Picks, evaluated: int) -> "SearchResult":
        """Return a design that another search found, without proof."""
        macs, ms = sum(int(options.macs[index]) for options, index in picks), LATENCY.value(space, picks)
        return cls(tuple(picks), ms, macs, False, nan, evaluated, ms)

    @property
    def n_meet(self) -> int:
        """Number of meeting points, where branches join."""
        return sum(options.branched for options, _ in self.picks)

    @property
    def params(self) -> int:
        """Number of parameters."""
        return sum(int(options.params[index]) for options, index in self.picks)

    def segments(self, costs: Costs) -> tuple[SegmentDesign, ...]:
        """Return the designs of the segments."""
        return tuple(design for options, index in self.picks for design in options.designs(index, costs))


def search_exact(
    space: DesignSpace,
    totals: Totals,
    cost: Measure = LATENCY,
    loss_bound: LossBound | None = None,
    required: OptionFilter | None = None,
) -> SearchResult | None:
    """Return the design that minimises a measure within the totals and has at least one `required` option; None if none is found."""
    states, layers = _States(space, totals.n_meet, required), []
    for groups in space.options:
        # an option of infinite time is never valid, for any objective
        keep = np.concatenate([(group.allowed & np.isfinite(group.ms)).T for group in groups])
        loss = np.concatenate(_per_holder(groups, loss_bound[0])) if loss_bound else None
        layers.append(states.layer(groups, _per_holder(groups, cost), loss, keep))
    final = states.final(cost)
    if loss_bound is not None:
        # the last transfer counts against the bound, so it becomes a separate layer
        ends = np.flatnonzero(np.isfinite(final))
        zeros, loss = np.zeros(len(ends), np.int64), states.final(loss_bound[0])[ends]
        layers.append(Layer(ends, ends, zeros, final[ends], zeros, loss, zeros + 1))
        final = np.where(np.isfinite(final), 0.0, np.inf)
    path = shortest_path(layers, states.start, final, totals.low, totals.high, inf if loss_bound is None else loss_bound[1])
    if path is None:
        return None
    picks: list[tuple[SegmentOptions, int]] = []
    for number in path.options:
        at = sum(options.span for options, _ in picks)
        if at < len(space.options):
            starts = list(accumulate((len(options.macs) for options in space.options[at]), initial=0))
            group = bisect_right(starts, number) - 1
            picks.append((space.options[at][group], number - starts[group]))
    ms = path.ms if cost is LATENCY else LATENCY.value(space, picks)
    proved = path.optimal and not space.thinned
    gap = path.gap if proved or (path.bound > 0 and not space.thinned) else float("nan")
    evaluated = sum(len(o.macs) for options in space.options for o in options)
    return SearchResult(tuple(picks), ms, path.macs, proved, gap, evaluated, path.ms)


class _States:
    """Numbering of states: holder, number of branched segments so far, and whether a required option was used."""

    def __init__(self, space: DesignSpace, n_meet: int, required: OptionFilter | None = None) -> None:
        self.space, self.n_meet, self.required = space, n_meet, required
        self.uses = 1 if required is None else 2
        self.holders = {name: i for i, name in enumerate(space.holders)}
        self.start = self.number(self.holders[space.costs.host], 0)

    def number(self, holder: Any, level: Any, used: Any = 0) -> Any:
        return (used * len(self.holders) + holder) * (self.n_meet + 1) + level

    def final(self, cost: Measure) -> Floats:
        """Return the cost of finishing from every state."""
        final = np.full(self.uses * len(self.holders) * (self.n_meet + 1), inf)
        for name, holder in self.holders.items():
            final[self.number(holder, self.n_meet, self.uses - 1)] = cost.final_cost(self.space, name)
        return final

    def layer(
        self, groups: Sequence[SegmentOptions | LazyOptions], costs: Sequence[Floats], loss: Floats | None = None, keep: Mask | None = None
    ) -> Layer:
        """Return options that begin at one segment, from every state.

        Args:
            costs: Costs of the options of each group (options × holders). A group may have one row for all its options.
            loss: Losses of all options (options × holders); zero if None.
            keep: Mask of valid options (options × holders). If None, all are valid, and their multiply-accumulates count as zero.
        """
        host, sizes, ms = self.space.costs.host, [len(cost) for cost in costs], np.concatenate(costs)
        uses = [self.required is not None and isinstance(o, SegmentOptions) and self.required(o) for o in groups]
        ends = [self.holders[group.holder(host)] for group in groups]
        option, holder = np.nonzero(np.ones(ms.shape, bool) if keep is None else keep)
        group = np.repeat(np.arange(len(groups)), sizes)[option]
        span, branched, end, use = (
            np.array(column)[group] for column in ([o.span for o in groups], [o.branched for o in groups], ends, uses)
        )
        macs = np.zeros(len(ms), np.int64) if keep is None else np.concatenate([o.macs for o in groups if isinstance(o, SegmentOptions)])
        level, used = np.indices((self.n_meet + 1, self.uses)).reshape(2, -1)
        source = self.number(holder[:, None], level, used)
        target = self.number(end[:, None], np.minimum(level + branched[:, None], self.n_meet), np.maximum(used, use[:, None]))
        lost = np.zeros(len(option)) if loss is None else loss[option, holder]
        columns = macs[option], ms[option, holder], option, lost, span
        return Layer(source.ravel(), target.ravel(), *(np.repeat(column, len(level)) for column in columns))


def _per_holder(groups: Sequence[SegmentOptions], measure: Measure) -> list[Floats]:
    """Return a measure of the options of each group (options × holders)."""
    return [np.broadcast_to(measure.per_option(group), group.ms.shape).T for group in groups]


def _reduced_cost(options: SegmentOptions, multiplier: float) -> Floats:
    """Return the lowest reduced cost of allowed options, ms (1 × holders)."""
    lowest: Floats = np.where(options.allowed, options.ms - multiplier * options.macs, inf).min(axis=1)[None]
    return lowest


# Search with `concat` joins, whose widths change the next segment's input. The search fixes the input widths, finds the best
# design for them exactly, adopts the widths of this design, and repeats; a design only counts with the costs of its own
# widths. The result meets every rule; it is not proved optimal.

#: Maximum rounds of the search, and rounds after which any found design is accepted.
MAX_ROUNDS, SUFFICIENT_ROUNDS = 12, 4


def search_concat(build: Callable[[Sequence[int] | None], DesignSpace], totals: Totals) -> SearchResult | None:
    """Return the fastest design of all rounds; `build` returns the space for given input widths."""
    space = build(None)
    best: SearchResult | None = None
    shift, evaluated = 0, 0
    seen: list[tuple[int, ...]] = []
    for round_number in range(MAX_ROUNDS):
        search_result = search_exact(space, totals._replace(low=totals.low - shift, high=totals.high - shift))
        if search_result is None:
            break
        evaluated += search_result.evaluated
        # a segment reads all channels of the segment before it
        picked = search_result.picks
        widths = (sum(b.width for b in o.branches_of(i)) if join_of(o.join).widens else o.segment.width for o, i in picked[:-1])
        input_widths = (picked[0][0].segment.in_width, *widths)
        space = build(input_widths)
        # the same picks at the costs of their own widths; they only count if they still meet every rule
        picks = [
            (next(candidate for candidate in segment_options if candidate.processors == options.processors), index)
            for segment_options, (options, index) in zip(space.options, search_result.picks, strict=True)
        ]
        candidate_result = SearchResult.unproved(space, picks, 0)
        held = [(options, (space.holders.index(holder), index)) for options, index, holder in with_input_holders(space, picks)[0]]
        allowed = all(options.allowed[at] and np.isfinite(options.ms[at]) for options, at in held)
        if allowed and totals.low <= candidate_result.macs <= totals.high and (best is None or candidate_result.ms < best.ms):
            best = candidate_result
        converged = bool(seen) and input_widths == seen[-1]
        if best is not None and (converged or round_number + 1 >= SUFFICIENT_ROUNDS):
            break
        # If the widths oscillate, shift the next round's range by half of this round's error.
        shift = (candidate_result.macs - search_result.macs) // 2 if input_widths in seen else 0
        seen.append(input_widths)
    return None if best is None else replace(best, evaluated=evaluated)


# Branch and bound: finds the fastest design among millions of options and builds few of them.

#: Maximum combinations up to which the search builds the whole space.
MAX_ENUMERATED = 20_000
#: Thinnings of a branch's scales used to find the multiplier, coarsest first; the next is tried if one has no design.
COARSE_THINNINGS: tuple[Thinning, ...] = (SAMPLE, (6, 6))
#: First slack, as a share of the design's time, and its growth factor.
INITIAL_SLACK, SLACK_GROWTH = 0.004, 3.0
#: Maximum number of options to build.
MAX_OPTIONS = 2_000_000
#: Combinations per chunk, and maximum chunks if few combinations meet the rules.
CHUNK, MAX_CHUNKS = 100_000, 12
#: Steps of the golden-section search for the multiplier.
STEPS = 24


def search_pruned(space: DesignSpace, totals: Totals) -> tuple[SearchResult | None, DesignSpace]:
    """Return the fastest design of a space with all scales of its offers, and a smaller space that holds all equally fast designs."""
    offers = _full_offers(space)
    if sum(offer.count for segment_offers in offers for offer in segment_offers) <= MAX_ENUMERATED:
        full = replace(space, offers=offers, thinned=False)
        return search_exact(full, totals), full
    coarse, incumbent = _search_coarse(space, offers, totals)
    if incumbent is None:
        return search_exact(space, totals), space
    result, reduced_space = _branch_and_bound(space, offers, totals, _best_multiplier(coarse, totals), incumbent)
    if result.optimal:
        return result, reduced_space
    # the bound is too weak: build all options, for runs of segments perhaps with a few scales
    exhaustive = search_exact(space, totals)
    if exhaustive is None or (space.thinned and result.ms <= exhaustive.ms):
        return result, reduced_space
    return (replace(exhaustive, gap=(1 + result.gap) * exhaustive.ms / result.ms - 1) if space.thinned else exhaustive), space


def search_coarse(space: DesignSpace, totals: Totals) -> SearchResult | None:
    """Return a design of a space, found with few scales of its offers, or with more if these have no design."""
    return _search_coarse(space, _full_offers(space), totals)[1] or search_exact(space, totals)


def _full_offers(space: DesignSpace) -> list[list[LazyOptions]]:
    return [[offer.full for offer in segment_offers if offer.full.count] for segment_offers in space.offers]


def _search_coarse(space: DesignSpace, offers: Sequence[Sequence[LazyOptions]], totals: Totals) -> tuple[DesignSpace, SearchResult | None]:
    """Return a space with few scales of its offers, and its best design; None after the finest thinning."""
    for thinning in COARSE_THINNINGS:
        coarse = replace(space, offers=[[offer.thinned(thinning) for offer in segment_offers] for segment_offers in offers], thinned=False)
        search_result = search_exact(coarse, totals)
        if search_result is not None:
            break
    return coarse, search_result


def _best_multiplier(space: DesignSpace, totals: Totals) -> float:
    """Return the Lagrangian multiplier of multiply-accumulates, ms per MAC, with the highest lower bound on a space."""
    states = _States(space, totals.n_meet)
    final = states.final(LATENCY)

    def lagrangian_bound(multiplier: float) -> float:
        layers = [states.layer(groups, [_reduced_cost(o, multiplier) for o in groups]) for groups in space.options]
        return float(costs_to_end(layers, final, attrgetter("ms"))[0, states.start]) + totals.value(multiplier)

    scale = 4 * lagrangian_bound(0.0) / max(totals.low, 1)
    return maximize_concave(lagrangian_bound, -scale, scale, STEPS)[0]


def _branch_and_bound(
    space: DesignSpace,
    offers: Sequence[Sequence[LazyOptions]],
    totals: Totals,
    multiplier: float,
    incumbent: SearchResult,
) -> tuple[SearchResult, DesignSpace]:
    """Return the fastest design and its reduced space, which holds all equally fast designs if the result is optimal."""
    states, constraint_value = _States(space, totals.n_meet), totals.value(multiplier)
    tables = [[_ReducedCostTable(offer, space.holders, multiplier) for offer in segment_offers] for segment_offers in offers]
    # the offers come first
    layers = [
        states.layer([*offered, *built], [t.lower_bound(space)[None] for t in offer_tables] + [_reduced_cost(o, multiplier) for o in built])
        for offered, offer_tables, built in zip(offers, tables, space.built, strict=True)
    ]
    final = states.final(LATENCY)
    # the slack is a share of a design's time, because the bound itself may be zero or negative
    lower_bound = float(costs_to_end(layers, final, attrgetter("ms"))[0, states.start]) + constraint_value
    remaining = [
        cost.reshape(-1, len(states.holders), states.n_meet + 1).min(axis=2)
        for cost in remaining_costs(layers, states.start, final, attrgetter("ms"))
    ]
    best, slack = incumbent, min(incumbent.ms - lower_bound, INITIAL_SLACK * incumbent.ms)
    while True:
        # options of offers whose cheapest completion is within the slack, and whether all of them are built
        candidates: list[list[SegmentOptions]] = []
        count, complete = 0, True
        for segment_tables, segment_costs in zip(tables, remaining, strict=True):
            candidates.append([])
            for table, rest in zip(segment_tables, segment_costs, strict=False):
                numbers = table.combinations_within(lower_bound + slack - constraint_value - rest + TIE, MAX_OPTIONS - count)
                if numbers is None:
                    complete = False
                elif len(numbers):
                    count += len(numbers)
                    candidates[-1].append(space.apply_rules(table.offer.options(space.holders, numbers)))
        options = [[*built, *added] for built, added in zip(space.built, candidates, strict=True)]
        reduced_space = space.replace_options(options, thinned=False)
        result = search_exact(reduced_space, totals)
        if result is not None and result.ms <= best.ms:
            best = result
        if best.ms <= lower_bound + slack + TIE or not complete:
            proved = result if complete else None
            best_bound = lower_bound if proved is None else max(lower_bound, proved.ms / (1 + proved.gap))
            optimal = proved is not None and proved.optimal
            gap = 0.0 if optimal else best.ms / best_bound - 1 if best_bound > 0 else nan
            return replace(best, optimal=optimal, gap=gap), reduced_space
        slack = min(best.ms - lower_bound, SLACK_GROWTH * slack)


class _ReducedCostTable:
    """Reduced costs of an offer's combinations at a multiplier of MACs, by the branches' widths."""

    def __init__(self, offer: LazyOptions, holders: Sequence[str], multiplier: float) -> None:
        self.offer, joins = offer, offer.joins
        self._multiplier = multiplier
        self._sizes = [(len(widths), len(depths)) for widths, depths in offer.scales]
        self._width_index = np.indices([widths for widths, _ in self._sizes]).reshape(len(self._sizes), -1)
        self._ms = [offer.loaded_ms(i).reshape(self._sizes[i]) for i in range(len(self._sizes))]
        self._macs_value = [multiplier * offer.column(i, "macs").astype(float).reshape(size) for i, size in enumerate(self._sizes)]
        self._end_ms: list[Floats] = [joins.ms[i] + joins.out_ms[i] for i in range(len(self._sizes))]
        self._join: Floats = joins.join_ms - multiplier * joins.macs.sum(axis=0)
        self._input_ms = [[offer.costs.transfer(holder, p, offer.elements) for p in offer.subset] for holder in holders]
        self._bounds = self._lower_bounds()

    def _lower_bounds(self) -> list[Floats]:
        # weight each branch by the value of its MACs per ms
        rates = np.array([(worth / np.maximum(ms, TIE)).mean() for ms, worth in zip(self._ms, self._macs_value, strict=True)])
        weights = np.maximum(rates, 0.0) / rates.sum() if rates.sum() > 0 else np.full(len(rates), 1 / len(rates))
        bounds = []
        for input_ms in self._input_ms:
            total = self._join.copy()
            for i, weight in enumerate(weights.tolist()):
                least = (weight * self._ms[i] - self._macs_value[i]).min(axis=1)[self._width_index[i]]
                total += weight * (self._end_ms[i] + input_ms[i]) + least
            # a combination of unknown time gets no bound, so that it is never dropped
            bounds.append(np.where(np.isnan(total), -inf, total))
        return bounds

    def lower_bound(self, space: DesignSpace) -> Floats:
        """Return a lower bound on the cost of combinations that meet the rules, per holder; exact unless too many need evaluation."""
        lowest, bounds = np.full(len(self._input_ms), inf), np.min(self._bounds, axis=0)
        order = np.argsort(bounds, kind="stable")
        depths = prod(size for _, size in self._sizes)
        step = max(1, CHUNK // depths // 4)
        begins = range(0, min(len(order), MAX_CHUNKS * step), step)
        for begin in begins:
            if bounds[order[begin]] >= lowest.max():
                return lowest
            rows = order[begin : begin + step]
            depth_index = np.unravel_index(np.tile(np.arange(depths), len(rows)), [size for _, size in self._sizes])
            numbers = np.sort(self._flat_index(np.repeat(rows, depths), depth_index))
            options = space.apply_rules(self.offer.options(space.holders, numbers))
            lowest = np.minimum(lowest, _reduced_cost(options, self._multiplier)[0])
        remaining = order[len(begins) * step :]
        return np.minimum(lowest, bounds[remaining[0]]) if len(remaining) else lowest

    def _costs(self, rows: Ints, holder: int) -> Floats:
        """Return the costs of all depths at some combinations of widths (combinations of widths × combinations of depths)."""
        branches, slowest, worth = len(self._sizes), np.full((), -inf), np.zeros(())
        for i, (entering, at) in enumerate(zip(self._input_ms[holder], self._width_index, strict=True)):
            axes = (len(rows), *(size[1] if j == i else 1 for j, size in enumerate(self._sizes)))
            ends = (self._end_ms[i][rows] + entering).reshape(-1, *[1] * branches)
            slowest = np.maximum(slowest, self._ms[i][at[rows]].reshape(axes) + ends)
            worth = worth + self._macs_value[i][at[rows]].reshape(axes)
        return (slowest - worth + self._join[rows].reshape(-1, *[1] * branches)).reshape(len(rows), -1)

    def combinations_within(self, max_costs: Floats, count: int) -> Ints | None:
        """Return the numbers of combinations within `max_costs` of at least one holder, ascending; None for more than `count`."""
        rows = np.flatnonzero((np.array(self._bounds) <= max_costs[:, None]).any(axis=0))
        depths = [size for _, size in self._sizes]
        step = max(1, CHUNK // prod(depths))
        result = [np.zeros(0, np.int64)]
        for begin in range(0, len(rows), step):
            chunk = rows[begin : begin + step]
            limits = ((holder, limit) for holder, limit in enumerate(max_costs.tolist()) if limit > -inf)
            row, depth = np.nonzero(reduce(np.logical_or, (self._costs(chunk, holder) <= limit for holder, limit in limits)))
            count -= len(row)
            if count < 0:
                return None
            result.append(self._flat_index(chunk[row], np.unravel_index(depth, depths)))
        return np.sort(np.concatenate(result))

    def _flat_index(self, rows: Ints, depths: Sequence[Ints]) -> Ints:
        """Return the indices of combinations among all combinations of the offer."""
        coordinates = [part for i, depth in enumerate(depths) for part in (self._width_index[i][rows], depth)]
        return np.ravel_multi_index(coordinates, [size for pair in self._sizes for size in pair]).astype(np.int64)
