"""Exact search: dynamic programming over segments.

The state between two segments is the processor that holds the tensor, how many
segments have been branched so far, and whether an option that is asked for was used.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import accumulate, combinations, product
from math import inf, isclose, nan, prod
from typing import Any, NamedTuple

import numpy as np

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import UsageError
from predictors.joins import join_of
from stretch.planning.cost.branch import Costs, Floats, Ints, SegmentOptions
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.search.layers import TIE, Layer, around, backward, highest, shortest_path
from stretch.planning.search.space import SAMPLE, DesignSpace, LazyOptions, Thinning

#: Options and the index of the chosen one, segment by segment.
Picks = Sequence[tuple[SegmentOptions, int]]


def held(space: DesignSpace, picks: Picks) -> tuple[list[tuple[SegmentOptions, int, str]], str]:
    """Each choice with the processor that holds what arrives at it, and the one that holds the network's output."""
    holder, rows = space.costs.host, []
    for options, index in picks:
        rows.append((options, index, holder))
        holder = options.holder(space.costs.host)
    return rows, holder


def keeps_rules(space: DesignSpace, picks: Picks) -> bool:
    """Return whether each choice is allowed for the holder of its input, and takes a finite time."""
    rows = ((options, space.holders.index(holder), index) for options, index, holder in held(space, picks)[0])
    return all(options.allowed[at, index] and np.isfinite(options.ms[at, index]) for options, at, index in rows)


def working(space: DesignSpace, picks: Picks) -> tuple[str, ...]:
    """Processors that a design gives work to."""
    names = {name for options, _ in picks for name in options.working(space.costs.host)}
    return tuple(name for name in space.processors if name in names)


@dataclass(frozen=True)
class Measure:
    """What adds up over the segments of a design: time, multiply-accumulates, what is lost, energy, and mixtures of them."""

    #: What each option of a segment adds, by holder of what arrives: an array that broadcasts to `SegmentOptions.ms`.
    of: Callable[[SegmentOptions], Floats]
    #: What it adds that a processor holds the network's output.
    leaving: Callable[[DesignSpace, str], float] = lambda space, holder: 0.0

    def total(self, space: DesignSpace, picks: Picks) -> float:
        """Of a whole design."""
        rows, last = held(space, picks)
        total = sum(float(np.broadcast_to(self.of(o), o.ms.shape)[space.holders.index(holder), index]) for o, index, holder in rows)
        return total + self.leaving(space, last)


#: The makespan, ms.
LATENCY = Measure(lambda options: options.ms, lambda space, holder: space.leaving_ms(holder))
#: Multiply-accumulates.
MACS = Measure(lambda options: options.macs.astype(float))


def weighed(*parts: tuple[float, Measure]) -> Measure:
    """A sum of measures with weights."""
    some = [(weight, measure) for weight, measure in parts if weight]

    @cache
    def of(options: SegmentOptions) -> Floats:
        return np.asarray(sum(weight * measure.of(options) for weight, measure in some), dtype=np.float64)

    return Measure(of, lambda space, holder: sum(weight * measure.leaving(space, holder) for weight, measure in some))


class ProcessorPowers:
    """What processors of a device take: energy of designs, mJ, as of `EnergyModel.plan_mj`; nothing where the profile does not state what one takes without work."""

    def __init__(self, device: DeviceProfile, processors: Sequence[str]) -> None:
        self._model = model = EnergyModel(device)
        for name in processors:
            if model.mj(name, 1.0) is None:
                why = f"the profile of {device.id} states no power of the {name}, so nothing can be planned for energy"
                raise UsageError(why, "name other processors, or add `power_w` to the profile")
        # one that takes other power while it waits than while it idles: what it costs is known where it is said which have work
        alike = all(isclose(model.plan_mj({name: 0.0}, 1.0), model.plan_mj({}, 1.0)) for name in processors)
        subsets = (some for count in range(len(processors), 0, -1) for some in combinations(processors, count))
        #: Sets of processors of which each has to be searched by itself.
        self.groups: list[tuple[str, ...]] = [tuple(processors)] if alike else list(subsets)

    def energy(self, processors: Sequence[str]) -> Measure:
        """Energy of designs all of whose processors are these; no less where one has no work."""
        still = dict.fromkeys(processors, 0.0)
        waits = self._model.plan_mj(still, 1.0)
        more = {name: self._model.plan_mj({**still, name: 1.0}, 1.0) - waits for name in processors}

        @cache
        def of(options: SegmentOptions) -> Floats:
            return np.asarray(waits * options.ms + sum(more[name] * ms for name, ms in options.busy().items()), dtype=np.float64)

        return Measure(of, lambda space, holder: waits * space.leaving_ms(holder))


def on_only(space: DesignSpace, processors: Sequence[str]) -> DesignSpace:
    """The designs of a space that give work to none but these processors."""
    if set(processors) >= set(space.processors):
        return space
    return space.having([[o for o in options if o.working(space.costs.host) <= set(processors)] for options in space.options])


#: Whether options are of a kind that is asked for.
Using = Callable[[SegmentOptions], bool]


@dataclass(frozen=True)
class SearchResult:
    """A design found by a search."""

    picks: tuple[tuple[SegmentOptions, int], ...]  # Per segment, the options and the index of the chosen one.
    ms: float  # Predicted makespan.
    macs: int  # Multiply-accumulates.
    optimal: bool  # Whether no design of the space is better in what was searched for.
    gap: float  # How much better one might be, as a fraction.
    evaluated: int  # Ways whose cost was computed.
    value: float | None = None  # What it was chosen by; None where that is its makespan, or was not worked out.

    @classmethod
    def unproved(cls, space: DesignSpace, picks: Picks, evaluated: int, value: float | None = None) -> "SearchResult":
        """A design that some other search came upon."""
        macs = sum(int(options.macs[index]) for options, index in picks)
        return cls(tuple(picks), LATENCY.total(space, picks), macs, False, float("nan"), evaluated, value)

    @property
    def n_meet(self) -> int:
        """Meeting points where branches join."""
        return sum(options.branched for options, _ in self.picks)

    @property
    def arriving(self) -> list[int]:
        """Channels that arrive at each segment."""
        behind = (sum(b.width for b in o.chosen(i)) if join_of(o.join).widens else o.segment.width for o, i in self.picks)
        return [self.picks[0][0].segment.in_width, *behind][:-1]

    @property
    def params(self) -> int:
        """Learned numbers."""
        return sum(int(options.params[index]) for options, index in self.picks)

    @property
    def peak_bytes(self) -> int:
        """Activation bytes alive at one time."""
        return max(int(options.peak_bytes[index]) for options, index in self.picks)

    def segments(self, costs: Costs) -> tuple[SegmentDesign, ...]:
        """The designs of the segments."""
        return tuple(design for options, index in self.picks for design in options.designs(index, costs))


#: A bound on designs in what they are not chosen by: what is bounded, and the most of a whole design.
Within = tuple[Measure, float]


def search_exact(
    space: DesignSpace, low: int, high: int, n_meet: int, cost: Measure = LATENCY, within: Within | None = None, using: Using | None = None
) -> SearchResult | None:
    """Return the design that minimises a measure, with MACs between `low` and `high`, and at least one option in `using`."""
    states = _States(space, n_meet, 1 if using is None else 2)
    layers = [_layer(space, options, states, cost, using, within) for options in space.options]
    final = states.final(cost)
    if within is not None:
        # what finishing takes of the bound is a step of its own
        ends = np.flatnonzero(np.isfinite(final))
        nothing, loss = np.zeros(len(ends), np.int64), states.final(within[0])[ends]
        layers.append(Layer(ends, ends, nothing, final[ends], nothing, loss))
        final = np.where(np.isfinite(final), 0.0, np.inf)
    path = shortest_path(layers, states.start, final, low, high, inf if within is None else within[1])
    if path is None:
        return None
    picks: list[tuple[SegmentOptions, int]] = []
    for number in path.options:
        at = sum(options.span for options, _ in picks)
        if at < len(space.options):
            starts = list(accumulate((len(options.macs) for options in space.options[at]), initial=0))
            group = bisect_right(starts, number) - 1
            picks.append((space.options[at][group], number - starts[group]))
    ms = path.ms if cost is LATENCY else LATENCY.total(space, picks)
    proved = path.optimal and not space.thinned
    gap = path.gap if proved or (path.bound > 0 and not space.thinned) else float("nan")
    evaluated = sum(len(o.macs) for options in space.options for o in options)
    return SearchResult(tuple(picks), ms, path.macs, proved, gap, evaluated, path.ms)


class _States:
    """Numbers of states: holder, branched segments so far, and whether a processor was used."""

    def __init__(self, space: DesignSpace, n_meet: int, uses: int = 1) -> None:
        self.space, self.n_meet, self.uses = space, n_meet, uses
        self.holders = {name: i for i, name in enumerate(space.holders)}
        self.start = self.number(self.holders[space.costs.host], 0)

    def number(self, holder: Any, level: Any, used: int = 0) -> Any:
        return (used * len(self.holders) + holder) * (self.n_meet + 1) + level

    def final(self, cost: Measure) -> Floats:
        """Return the cost of finishing from every state."""
        final = np.full(self.uses * len(self.holders) * (self.n_meet + 1), inf)
        for name, holder in self.holders.items():
            final[self.number(holder, self.n_meet, self.uses - 1)] = cost.leaving(self.space, name)
        return final

    def end(self, options: SegmentOptions) -> int:
        """Number of the holder of what options write."""
        return self.holders[options.holder(self.space.costs.host)]


def _layer(
    space: DesignSpace, options: list[SegmentOptions], states: _States, cost: Measure, using: Using | None, within: Within | None
) -> Layer:
    parts: list[Layer] = []
    offset = 0
    for group in options:
        wanted, end = using is not None and using(group), states.end(group)
        costs = np.broadcast_to(cost.of(group), group.ms.shape)
        losses = np.broadcast_to(0.0 if within is None else within[0].of(group), group.ms.shape)
        for holder in states.holders.values():
            # an option that takes endless time from a holder is none, whatever designs are chosen by
            index = np.flatnonzero(group.allowed[holder] & np.isfinite(group.ms[holder]))
            zeros = np.zeros(len(index), np.int64)
            columns = group.macs[index], costs[holder][index], index + offset, losses[holder][index]
            for level, used in product(range(states.n_meet + 1), range(states.uses)):
                after = states.number(end, min(level + group.branched, states.n_meet), max(used, wanted))
                ends = zeros + states.number(holder, level, used), zeros + after
                parts.append(Layer(*ends, *columns, zeros + group.span))
        offset += len(group.macs)
    return Layer(*(np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))


# Search with `concat` joins, whose widths change what the next segment reads.
#
# Segments are coupled by the backbone's width. The search fixes the widths that
# arrive, finds the best design for them exactly, takes over the widths that this
# design has, and repeats; designs count only with the costs of their own widths.
# The result meets every rule; it is not proved optimal.

#: Rounds in which a design must be found, and after which one that was found is taken.
ROUNDS, ENOUGH = 12, 4


def search_concat(build: Callable[[Sequence[int] | None], DesignSpace], low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design that the rounds come upon."""
    space = build(None)
    best: SearchResult | None = None
    shift = 0
    evaluated = 0
    seen: list[tuple[int, ...]] = []
    for turn in range(ROUNDS):
        search_result = search_exact(space, low - shift, high - shift, n_meet)
        if search_result is None:
            break
        evaluated += search_result.evaluated
        arriving = tuple(search_result.arriving)
        space = build(arriving)
        # the same picks at the costs of their own widths, where no rule is broken
        picks = [
            (next(other for other in some if other.processors == options.processors), index)
            for some, (options, index) in zip(space.options, search_result.picks, strict=True)
        ]
        real = SearchResult.unproved(space, picks, 0)
        if keeps_rules(space, picks) and low <= real.macs <= high and (best is None or real.ms < best.ms):
            best = real
        settled = bool(seen) and arriving == seen[-1]
        if best is not None and (settled or turn + 1 >= ENOUGH):
            break
        # Where widths swing to and fro, the next round aims off by half of what this one was wrong.
        shift = (real.macs - search_result.macs) // 2 if arriving in seen else 0
        seen.append(arriving)
    return None if best is None else replace(best, evaluated=evaluated)


# The fastest design among millions of ways to run a segment, few of which are worked out.
#
# Scaled copies on three processors have the cube of one branch's scales as combinations. At
# a price of a multiply-accumulate each of them costs its time less what its work is worth,
# and the least of that over a segment is found by branch and bound: the slowest branch takes
# at least any weighted mean of the branches, which is a sum over branches. What is least
# over whole designs at that price bounds the makespan of every design from below, and an
# option is worked out only where the best design around it stays within a slack of that
# bound. A fastest design within the slack is the fastest of all: one that uses an option
# which was left out takes longer.

#: Combinations of a space below which all of them are worked out.
FEW = 20_000
#: Scales of a branch that a price is found with, the fewest first; where no design has these, more are tried.
COARSE: tuple[Thinning, ...] = (SAMPLE, (6, 6))
#: Slack that is tried first, as a share of a design's time, and by what it grows.
NEAR, WIDER = 0.004, 3.0
#: Options that are worked out, at most.
MOST = 2_000_000
#: Combinations that are looked at together, and how many times some are where few keep to the rules.
CHUNK, LOOKS = 100_000, 12
#: Steps of a golden section for the price.
STEPS = 24


def pruned(space: DesignSpace, low: int, high: int, n_meet: int) -> tuple[SearchResult | None, DesignSpace]:
    """The fastest design of a space with all scales of its offers, and a smaller space that has every design as fast."""
    offers = [[offer.full for offer in some if offer.full.count] for some in space.offers]
    if sum(offer.count for some in offers for offer in some) <= FEW:
        full = _full(space, offers)
        return search_exact(full, low, high, n_meet), full
    coarse, guide = _coarse(space, offers, low, high, n_meet)
    if guide is None:
        return search_exact(space, low, high, n_meet), space
    result, near = _priced(space, offers, low, high, n_meet, _price(coarse, low, high, n_meet), guide)
    if result.optimal:
        return result, near
    # the bound says too little: all options are worked out, of runs of segments perhaps those of a few scales
    other = search_exact(space, low, high, n_meet)
    if other is None or (space.thinned and result.ms <= other.ms):
        return result, near
    return (replace(other, gap=(1 + result.gap) * other.ms / result.ms - 1) if space.thinned else other), space


def search_some(space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """Some design of a space, found with few scales of its offers; with all of them where these have none."""
    offers = [[offer.full for offer in some if offer.full.count] for some in space.offers]
    _, result = _coarse(space, offers, low, high, n_meet)
    return result or search_exact(space, low, high, n_meet)


def _coarse(
    space: DesignSpace, offers: Sequence[Sequence[LazyOptions]], low: int, high: int, n_meet: int
) -> tuple[DesignSpace, SearchResult | None]:
    """A space with few scales of its offers that has a design, or with the most that are tried, and its best one."""
    for thinning in COARSE:
        coarse = _full(space, [[offer.thinned(thinning) for offer in some] for some in offers])
        search_result = search_exact(coarse, low, high, n_meet)
        if search_result is not None:
            break
    return coarse, search_result


def _full(space: DesignSpace, offers: Sequence[Sequence[LazyOptions]]) -> DesignSpace:
    return _with(space, [[space.checked(offer.options(space.holders)) for offer in some] for some in offers])


def _with(space: DesignSpace, more: Sequence[Sequence[SegmentOptions]]) -> DesignSpace:
    return space.having([[*ready, *built] for ready, built in zip(space.ready, more, strict=True)], thinned=False)


class _Move(NamedTuple):
    """A way past some segments: how many it covers, whether they branch, who holds the end, and what it costs from each holder."""

    span: int
    branched: bool
    end: int
    cost: Floats


class _Moves:
    """Ways past the segments of a space, whatever multiply-accumulates they have: for each segment those that begin at it."""

    def __init__(self, states: _States, moves: Sequence[Sequence[_Move]]) -> None:
        self.states, self.layers = states, []
        for some in moves:
            span, branched, end, cost = (np.array(column) for column in zip(*some, strict=True))
            move, holder, level = np.indices((len(some), len(states.holders), states.n_meet + 1)).reshape(3, -1)
            after = states.number(end[move], np.minimum(level + branched[move], states.n_meet))
            self.layers.append(Layer(states.number(holder, level), after, move, cost[move, holder], move, None, span[move]))

    @property
    def least(self) -> float:
        """Return the cost of the cheapest design."""
        return float(backward(self.layers, self.states.final(LATENCY), lambda layer: layer.ms)[0, self.states.start])

    def around(self) -> list[Floats]:
        """The least cost of everything but each move, by who holds what arrives at it (moves × holders)."""
        rest = around(self.layers, self.states.start, self.states.final(LATENCY), lambda layer: layer.ms)
        shape = len(self.states.holders), self.states.n_meet + 1
        return [some.reshape(-1, *shape).min(axis=2) for some in rest]


def _price(space: DesignSpace, low: int, high: int, n_meet: int) -> float:
    """What a multiply-accumulate is worth, ms: the price at which the bound on the designs of a space is highest."""
    states = _States(space, n_meet)
    times = [[np.where(o.allowed, o.ms, inf) for o in options] for options in space.options]

    def bound(price: float) -> float:
        moves = [
            [_Move(o.span, o.branched, states.end(o), (ms - price * o.macs).min(axis=1)) for o, ms in zip(options, some, strict=True)]
            for options, some in zip(space.options, times, strict=True)
        ]
        return _Moves(states, moves).least + price * (low if price >= 0 else high)

    scale = 4 * bound(0.0) / max(low, 1)
    return highest(bound, -scale, scale, STEPS)[0]


def _priced(
    space: DesignSpace, offers: Sequence[Sequence[LazyOptions]], low: int, high: int, n_meet: int, price: float, guide: SearchResult
) -> tuple[SearchResult, DesignSpace]:
    """The fastest design, by a price of a multiply-accumulate, ms; and the space it was found in, which has every design as fast where it is optimal."""
    states, refund = _States(space, n_meet), price * (low if price >= 0 else high)
    tables = [[_PriceTable(offer, space.holders, price) for offer in some] for some in offers]
    every = [
        # the offers come first among the moves
        [_Move(table.offer.span, True, states.holders[space.costs.host], table.least(space)) for table in some]
        + [_Move(o.span, o.branched, states.end(o), np.where(o.allowed, o.ms - price * o.macs, inf).min(axis=1)) for o in ready]
        for some, ready in zip(tables, space.ready, strict=True)
    ]
    moves = _Moves(states, every)
    # no design is faster than this, ms; the slack is a share of a design's time, for the bound itself may be nothing, or less
    bound, around_each = moves.least + refund, moves.around()
    best, slack = guide, min(guide.ms - bound, NEAR * guide.ms)
    while True:
        # options of offers around which a design may stay within the slack of the bound, and whether these are all of them
        more: list[list[SegmentOptions]] = []
        count, complete = 0, True
        for some, rests in zip(tables, around_each, strict=True):
            more.append([])
            for table, rest in zip(some, rests, strict=False):
                numbers = table.within(bound + slack - refund - rest + TIE, MOST - count)
                if numbers is None:
                    complete = False
                elif len(numbers):
                    count += len(numbers)
                    more[-1].append(space.checked(table.offer.options(space.holders, numbers)))
        near = _with(space, more)
        result = search_exact(near, low, high, n_meet)
        if result is not None and result.ms <= best.ms:
            best = result
        if best.ms <= bound + slack + TIE or not complete:
            proved = complete and result is not None
            least = max(bound, result.ms / (1 + result.gap)) if proved else bound
            optimal = proved and result.optimal
            return replace(best, optimal=optimal, gap=0.0 if optimal else best.ms / least - 1 if least > 0 else nan), near
        slack = min(best.ms - bound, WIDER * slack)


class _PriceTable:
    """What the combinations of an offer cost at a price of a multiply-accumulate, worked out by the widths of the branches."""

    def __init__(self, offer: LazyOptions, holders: Sequence[str], price: float) -> None:
        self.offer, joins = offer, offer.joins
        self._price = price
        self._sizes = [(len(widths), len(depths)) for widths, depths in offer.scales]
        self._at = np.indices([widths for widths, _ in self._sizes]).reshape(len(self._sizes), -1)
        self._ms = [offer.beside(i).reshape(self._sizes[i]) for i in range(len(self._sizes))]
        self._worth = [price * self._column(i, "macs") for i in range(len(self._sizes))]
        self._ends: list[Floats] = [joins.ms[i] + joins.out_ms[i] for i in range(len(self._sizes))]
        self._join: Floats = joins.join_ms - price * joins.macs.sum(axis=0)
        self._entering = [[offer.costs.transfer(holder, p, offer.elements) for p in offer.subset] for holder in holders]
        self._bounds = self._bound()

    def _column(self, branch: int, name: str) -> Floats:
        return self.offer.column(branch, name).astype(float).reshape(self._sizes[branch])

    def _bound(self) -> list[Floats]:
        # branches that end together share a price in proportion to what they do in a ms
        rates = np.array([(worth / np.maximum(ms, TIE)).mean() for ms, worth in zip(self._ms, self._worth, strict=True)])
        weights = np.maximum(rates, 0.0) / rates.sum() if rates.sum() > 0 else np.full(len(rates), 1 / len(rates))
        bound = []
        for entering in self._entering:
            total = self._join.copy()
            for i, weight in enumerate(weights.tolist()):
                total += weight * (self._ends[i] + entering[i]) + (weight * self._ms[i] - self._worth[i]).min(axis=1)[self._at[i]]
            # of what takes endless time nothing is told, and nothing left out
            bound.append(np.where(np.isnan(total), -inf, total))
        return bound

    def least(self, space: DesignSpace) -> Floats:
        """The least of all combinations that keep to the rules, for each holder, or less where too many would have to be looked at."""
        full, bounds = np.full(len(self._entering), inf), np.min(self._bounds, axis=0)
        order = np.argsort(bounds, kind="stable")
        depths = prod(size for _, size in self._sizes)
        step = max(1, CHUNK // depths // 4)
        ends = range(0, min(len(order), LOOKS * step), step)
        for begin in ends:
            if bounds[order[begin]] >= full.max():
                return full
            rows = order[begin : begin + step]
            every = np.unravel_index(np.tile(np.arange(depths), len(rows)), [size for _, size in self._sizes])
            numbers = np.sort(self._numbers(np.repeat(rows, depths), every))
            options = space.checked(self.offer.options(space.holders, numbers))
            full = np.minimum(full, np.where(options.allowed, options.ms - self._price * options.macs, inf).min(axis=1))
        rest = order[len(ends) * step :]
        return np.minimum(full, bounds[rest[0]]) if len(rest) else full

    def _costs(self, rows: Ints, holder: int) -> Floats:
        """Of some combinations of widths, what those of depths cost (combinations of widths × depths of each branch)."""
        branches, slowest, worth = len(self._sizes), -inf, 0.0
        for i, (entering, at) in enumerate(zip(self._entering[holder], self._at, strict=True)):
            axes = (len(rows), *(size[1] if j == i else 1 for j, size in enumerate(self._sizes)))
            ends = (self._ends[i][rows] + entering).reshape(-1, *[1] * branches)
            slowest = np.maximum(slowest, self._ms[i][at[rows]].reshape(axes) + ends)
            worth = worth + self._worth[i][at[rows]].reshape(axes)
        return (slowest - worth + self._join[rows].reshape(-1, *[1] * branches)).reshape(len(rows), -1)

    def within(self, most: Floats, count: int) -> Ints | None:
        """Return the numbers of the combinations within the cost bound of one of the holders, ascending; None if there are too many."""
        rows = np.flatnonzero((np.array(self._bounds) <= most[:, None]).any(axis=0))
        depths = [size for _, size in self._sizes]
        step = max(1, CHUNK // prod(depths))
        result = [np.zeros(0, np.int64)]
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step]
            limits = ((holder, limit) for holder, limit in enumerate(most.tolist()) if limit > -inf)
            row, depth = np.nonzero(reduce(np.logical_or, (self._costs(some, holder) <= limit for holder, limit in limits)))
            count -= len(row)
            if count < 0:
                return None
            result.append(self._numbers(some[row], np.unravel_index(depth, depths)))
        return np.sort(np.concatenate(result))

    def _numbers(self, rows: Ints, depths: Sequence[Ints]) -> Ints:
        """Numbers of combinations among all of the offer's."""
        places = [part for i, depth in enumerate(depths) for part in (self._at[i][rows], depth)]
        return np.ravel_multi_index(places, [size for pair in self._sizes for size in pair]).astype(np.int64)
