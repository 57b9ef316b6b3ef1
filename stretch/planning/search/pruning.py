"""The fastest design among millions of ways to run a segment, few of which are worked out.

Scaled copies on three processors have the cube of one branch's scales as combinations. At
a price of a multiply-accumulate each of them costs its time less what its work is worth,
and the least of that over a segment is found by branch and bound: the slowest branch takes
at least any weighted mean of the branches, which is a sum over branches. What is least
over whole designs at that price bounds the makespan of every design from below, and an
option is worked out only where the best design around it stays within a slack of that
bound. A fastest design within the slack is the fastest of all: one that uses an option
which was left out takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan, prod

import numpy as np
from numpy.typing import NDArray

from stretch.planning.cost.branch import Ints, SegmentOptions
from stretch.planning.search.exact import SearchResult, search_exact
from stretch.planning.search.layers import TIE, highest
from stretch.planning.search.space import SAMPLE, DesignSpace, Floats, LazyOptions, Thinning

#: Combinations of a space below which all of them are worked out.
FEW = 20_000
#: Scales of a branch that a price is found with, the fewest first; where no design has these, more are tried.
COARSE = (SAMPLE, Thinning(6, 6))
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
    result, near = _Priced(space, offers, low, high, n_meet, _price(coarse, low, high, n_meet)).search(guide)
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


@dataclass(frozen=True)
class _Move:
    """A way past some segments, whatever it costs: where it begins, how many it covers, whether they branch, and who holds the end."""

    first: int
    span: int
    branched: bool
    end: int


class _Distances:
    """The least cost from the start to each segment and from there to the end, by holder and number of branched segments."""

    def __init__(self, space: DesignSpace, n_meet: int, moves: Sequence[tuple[_Move, Floats]]) -> None:
        count, holders = len(space.segments), len(space.holders)
        self._n_meet = n_meet
        self.reached = np.full((count + 1, holders, n_meet + 1), inf)
        self.to_end = np.full((count + 1, holders, n_meet + 1), inf)
        self.reached[0, space.holders.index(space.costs.host), 0] = 0.0
        self.to_end[count, :, n_meet] = [space.leaving_ms(holder) for holder in space.holders]
        for move, cost in sorted(moves, key=lambda one: one[0].first):
            here = self.reached[move.first] + cost[:, None]
            to = self.reached[move.first + move.span, move.end]
            np.minimum(to, self._after(here.min(axis=0), move), out=to)
        for move, cost in sorted(moves, key=lambda one: -one[0].first):
            here = self.to_end[move.first]
            np.minimum(here, cost[:, None] + self._before(move)[None, :], out=here)

    def _after(self, costs: Floats, move: _Move) -> Floats:
        """Costs by the number of branched segments before a move, by the number behind it."""
        if not move.branched:
            return costs
        full = np.full(len(costs), inf)
        full[1:] = costs[:-1]
        full[-1] = min(full[-1], costs[-1])
        return full

    def _before(self, move: _Move) -> Floats:
        """The least cost behind a move, by the number of branched segments before it."""
        behind: Floats = self.to_end[move.first + move.span, move.end]
        return behind[np.minimum(np.arange(len(behind)) + 1, self._n_meet)] if move.branched else behind

    def around(self, move: _Move) -> Floats:
        """The least cost of everything but a move, by who holds what arrives at it."""
        smallest: Floats = (self.reached[move.first] + self._before(move)[None, :]).min(axis=1)
        return smallest


def _price(space: DesignSpace, low: int, high: int, n_meet: int) -> float:
    """What a multiply-accumulate is worth, ms: the price at which the bound on the designs of a space is highest."""
    groups = []
    for first, options in enumerate(space.options):
        for segment_options in options:
            move = _Move(
                first, segment_options.span, segment_options.branched, space.holders.index(segment_options.holder(space.costs.host))
            )
            groups.append((move, np.where(segment_options.allowed, segment_options.ms, inf), segment_options.macs))
    start = space.holders.index(space.costs.host)

    def bound(price: float) -> float:
        moves = [(move, (ms - price * macs).min(axis=1)) for move, ms, macs in groups]
        return float(_Distances(space, n_meet, moves).to_end[0, start, 0]) + price * (low if price >= 0 else high)

    scale = 4 * bound(0.0) / max(low, 1)
    return highest(bound, -scale, scale, STEPS)[0]


class _Priced:
    """A space and all scales of its offers at a price of a multiply-accumulate, ms."""

    def __init__(self, space: DesignSpace, offers: Sequence[Sequence[LazyOptions]], low: int, high: int, n_meet: int, price: float) -> None:
        self._space, self._low, self._high, self._n_meet = space, low, high, n_meet
        host = space.holders.index(space.costs.host)
        self._tables = [[_PriceTable(offer, space.holders, price) for offer in some] for some in offers]
        self._moves = [[_Move(first, offer.span, True, host) for offer in some] for first, some in enumerate(offers)]
        self._ready = []
        for first, ready in enumerate(space.ready):
            for options in ready:
                end = space.holders.index(options.holder(space.costs.host))
                cost = np.where(options.allowed, options.ms - price * options.macs, inf).min(axis=1)
                self._ready.append((_Move(first, options.span, options.branched, end), cost))
        self._refund = price * (low if price >= 0 else high)
        self._bound([[table.least for table in tables] for tables in self._tables])

    def _bound(self, least: Sequence[Sequence[Floats]]) -> None:
        offered = [item for moves, some in zip(self._moves, least, strict=True) for item in zip(moves, some, strict=True)]
        self._distances = _Distances(self._space, self._n_meet, [*self._ready, *offered])
        #: No design is faster than this, ms.
        self.bound = float(self._distances.to_end[0, self._space.holders.index(self._space.costs.host), 0]) + self._refund

    def search(self, guide: SearchResult) -> tuple[SearchResult, DesignSpace]:
        """The fastest design, and the space it was found in, which has every design as fast where it is optimal."""
        # a share of a design's time: the bound itself may be nothing, or less
        best, slack = guide, min(guide.ms - self.bound, NEAR * guide.ms)
        if guide.ms > self.bound + slack:
            # a higher bound leaves out what breaks the rules where a segment costs least
            self._bound([[table.allowed_least(self._space) for table in tables] for tables in self._tables])
        while True:
            more, complete = self._within(slack)
            near = _with(self._space, more)
            search_result = search_exact(near, self._low, self._high, self._n_meet)
            if search_result is not None and search_result.ms <= best.ms:
                best = search_result
            reached = best.ms <= self.bound + slack + TIE
            if reached or not complete:
                bound = max(
                    self.bound, search_result.ms / (1 + search_result.gap) if complete and search_result is not None else self.bound
                )
                optimal = complete and search_result is not None and search_result.optimal
                return replace(best, optimal=optimal, gap=0.0 if optimal else best.ms / bound - 1 if bound > 0 else nan), near
            slack = min(best.ms - self.bound, WIDER * slack)

    def _within(self, slack: float) -> tuple[list[list[SegmentOptions]], bool]:
        """The options of offers around which a design may stay within a slack of the bound, and whether these are all of them."""
        within: list[list[SegmentOptions]] = []
        count, complete = 0, True
        for moves, tables in zip(self._moves, self._tables, strict=True):
            within.append([])
            for move, table in zip(moves, tables, strict=True):
                most = self.bound + slack - self._refund - self._distances.around(move) + TIE
                numbers = table.within(most, MOST - count)
                if numbers is None:
                    complete = False
                elif len(numbers):
                    count += len(numbers)
                    within[-1].append(self._space.checked(table.offer.options(self._space.holders, numbers)))
        return within, complete


class _PriceTable:
    """What the combinations of an offer cost at a price of a multiply-accumulate, worked out by the widths of the branches."""

    def __init__(self, offer: LazyOptions, holders: Sequence[str], price: float) -> None:
        self.offer, joins = offer, offer.joins
        self._price = price
        self._sizes = [(len(widths), len(depths)) for widths, depths in offer.scales]
        self._at = np.indices([widths for widths, _ in self._sizes]).reshape(len(self._sizes), -1)
        self._ms = [self._column(i, "contended_ms") for i in range(len(self._sizes))]
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

    @cached_property
    def least(self) -> Floats:
        """The least of all combinations, for each holder."""
        full = np.full(len(self._entering), inf)
        step = max(1, CHUNK // prod(depths for _, depths in self._sizes) // 4)
        for holder, bound in enumerate(self._bounds):
            order = np.argsort(bound, kind="stable")
            for begin in range(0, len(order), step):
                if bound[order[begin]] >= full[holder]:
                    break
                full[holder] = min(full[holder], self._costs(order[begin : begin + step], holder).min())
        return full

    def allowed_least(self, space: DesignSpace) -> Floats:
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
        branches = len(self._sizes)
        slowest: Floats | None = None
        worth: Floats | float = 0.0
        for i, (entering, at) in enumerate(zip(self._entering[holder], self._at, strict=True)):
            axes = (len(rows), *(size[1] if j == i else 1 for j, size in enumerate(self._sizes)))
            ends = (self._ends[i][rows] + entering).reshape(-1, *[1] * branches)
            times = self._ms[i][at[rows]].reshape(axes) + ends
            slowest = times if slowest is None else np.maximum(slowest, times)
            worth = worth + self._worth[i][at[rows]].reshape(axes)
        assert slowest is not None
        values: Floats = slowest - worth + self._join[rows].reshape(-1, *[1] * branches)
        return values.reshape(len(rows), -1)

    def within(self, most: Floats, count: int) -> Ints | None:
        """Numbers of the combinations that cost no more than is told for one of the holders, ascending; None where they are too many."""
        near = np.zeros(len(self._join), bool)
        for bound, limit in zip(self._bounds, most.tolist(), strict=True):
            near |= bound <= limit
        rows = np.flatnonzero(near)
        depths = [size for _, size in self._sizes]
        step = max(1, CHUNK // prod(depths))
        result: list[Ints] = []
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step]
            kept: NDArray[np.bool_] = np.zeros((len(some), prod(depths)), bool)
            for holder, limit in enumerate(most.tolist()):
                if limit > -inf:
                    kept |= self._costs(some, holder) <= limit
            row, depth = np.nonzero(kept)
            count -= len(row)
            if count < 0:
                return None
            result.append(self._numbers(some[row], np.unravel_index(depth, depths)))
        return np.sort(np.concatenate(result)) if result else np.zeros(0, np.int64)

    def _numbers(self, rows: Ints, depths: Sequence[Ints]) -> Ints:
        """Numbers of combinations among all of the offer's."""
        places = [part for i, depth in enumerate(depths) for part in (self._at[i][rows], depth)]
        return np.ravel_multi_index(places, [size for pair in self._sizes for size in pair]).astype(np.int64)
