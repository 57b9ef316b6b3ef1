"""Designs tried and varied, for what does not add up over the segments of a design: it proves nothing.

A population, of which a segment's option is exchanged (mutation) or the first segments are put before another's last (crossover).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise

import numpy as np

from stretch.planning.config import Objective
from stretch.planning.cost.branch import Floats, SegmentOptions
from stretch.planning.cost.compare import drawn, kept_ms, uncertain_run
from stretch.planning.cost.makespan import SegmentTime, occupied_ms, segment_time
from stretch.planning.design.scale import join_width, scale_branches
from stretch.planning.network.segments import memoised
from stretch.planning.search.exact import Picks, SearchResult, held, keeps_rules, on_only, search_exact
from stretch.planning.search.goal import Goal
from stretch.planning.search.space import DesignSpace

#: Designs that are judged, at most.
EVALUATIONS = 3000
#: Designs that are kept from one generation to the next, and made in each.
POPULATION = 24
#: Designs made for each that is judged, at most: most are known already, or break a constraint.
TRIES = 12
#: Ranges of multiply-accumulates from which a fastest design is taken to begin with.
LEVELS = 4
#: Share of designs made by crossover.
CROSSED = 0.3
#: Chance that a mutation is the last one of a design.
ONCE = 0.5
#: Options with about as many multiply-accumulates as the one they take the place of.
NEAR = 16
#: Ranges of multiply-accumulates of one way to divide a segment, and how many of the fastest options are offered in each.
BUCKETS, FASTEST = 64, 8
#: Segments whose options may change so that a design is back in the range of multiply-accumulates.
MENDED = 4

#: What a whole design is judged by; less is better.
Score = Callable[[Picks], float]
Keeps = Callable[[SearchResult], bool]
Pick = tuple[SegmentOptions, int]


def score_of(objective: Objective, goal: Goal, space: DesignSpace) -> Score:
    """Return the value by which an objective judges designs."""
    if not objective.tried:
        return partial(goal.value, space)
    return busiest(space) if objective.text == "throughput" else robust(space)


def _timed(space: DesignSpace) -> Callable[[SegmentOptions, int, str], list[SegmentTime]]:
    """Timelines of a segment, and its tail, where a processor holds what arrives, each worked out once."""

    @cache
    def rows(options: SegmentOptions, index: int, holder: str) -> list[SegmentTime]:
        channels, result = options.segment.in_width, []
        for segment, part in zip((options.segment, options.tail), options.designs(index, space.costs), strict=False):
            assert segment is not None
            scaled = scale_branches(segment, part, channels)
            row, holder = segment_time(segment, part, scaled, holder, channels, space.costs)
            channels = join_width(segment, part)
            result.append(row)
        return result

    return rows


def busiest(space: DesignSpace) -> Score:
    """How long an inference occupies the busiest processor, ms: with many in flight what lies between two results."""
    timed = _timed(space)

    def score(picks: Picks) -> float:
        rows, last = held(space, picks)
        times = [time for row in rows for time in timed(*row)]
        occupied = occupied_ms(times, space.costs.host, space.costs.handover(space.costs.host).ms)
        occupied[last] = occupied.get(last, 0.0) + space.output_ms(last)
        return max(occupied.values())

    return score


def robust(space: DesignSpace) -> Score:
    """Return the 90th percentile of the drawn makespans, ms."""
    timed, costs, device = _timed(space), space.costs, space.costs.predictor.device

    @cache
    def segment(options: SegmentOptions, index: int, holder: str) -> Floats:
        run = uncertain_run(timed(options, index, holder), device, {})
        return run.drawn_ms(drawn(run.unknowns))

    def score(picks: Picks) -> float:
        rows, holder = held(space, picks)
        total = sum((segment(*row) for row in rows), np.zeros(1))
        last = space.segments[-1]
        shape = last.graph.by_name[last.end].shape
        leaving = uncertain_run((), device, costs.moves(holder, costs.host, int(np.prod(shape))), costs.handover(costs.host))
        return kept_ms(total + leaving.drawn_ms(drawn(leaving.unknowns)))

    return score


def evolve(
    space: DesignSpace,
    low: int,
    high: int,
    n_meet: int,
    score: Score,
    starts: Sequence[SearchResult],
    *,
    keeps: Keeps = lambda result: True,
    evaluations: int = EVALUATIONS,
) -> SearchResult | None:
    """The best design that an evolutionary search comes upon, from some that it starts with; None if there was none."""
    return _Search(space, low, high, n_meet, score, keeps, np.random.default_rng(0), evaluations).run(starts)


def fastest_designs(space: DesignSpace, low: int, high: int, n_meet: int) -> list[SearchResult]:
    """Designs to begin with: the fastest in each of several ranges of multiply-accumulates, and without each processor."""
    ends = np.linspace(low, high, LEVELS + 1).astype(int).tolist()
    search_results = [search_exact(space, a, b, n_meet) for a, b in pairwise(ends)]
    for left_out in space.processors if len(space.processors) > 2 else ():
        part = on_only(space, [name for name in space.processors if name != left_out])
        if all(part.options):
            search_results.append(search_exact(part, low, high, n_meet))
    return [search_result for search_result in search_results if search_result is not None]


@dataclass(eq=False)
class _Search:
    """One search: what it is asked for and what it has seen."""

    space: DesignSpace
    low: int
    high: int
    n_meet: int
    score: Score
    keeps: Keeps
    rng: np.random.Generator
    left: int  # Evaluations.
    seen: set[tuple[tuple[int, int], ...]] = field(default_factory=set)

    def run(self, starts: Sequence[SearchResult]) -> SearchResult | None:
        evaluations = self.left
        # scores and designs
        population: list[tuple[float, Picks]] = []
        for start in starts:
            population += self._judged(start.picks)
        tries = 0
        while not population and tries < TRIES * POPULATION:
            tries += 1
            population += self._judged(self._mended(self._any(0, len(self.space.options)), -1))
        tries = TRIES * self.left
        while population and self.left > 0 and tries > 0:
            rows: list[tuple[float, Picks]] = []
            while len(rows) < POPULATION and self.left > 0 and tries > 0:
                tries -= 1
                picks: Picks | None = self._one(population)
                if len(population) > 1 and self.rng.random() < CROSSED:
                    picks = self._crossed(picks, self._one(population))
                else:
                    for _ in range(int(self.rng.geometric(ONCE))):
                        picks = self._mutated(picks)
                rows += self._judged(picks)
            # equal ones stay in the order in which they were found, so that a seed has one answer
            population = sorted([*population, *rows], key=lambda item: item[0])[:POPULATION]
        if not population:
            return None
        score, picks = min(population, key=lambda item: item[0])
        return SearchResult.unproved(self.space, picks, evaluations - self.left, score)

    def _one(self, population: Sequence[tuple[float, Picks]]) -> Picks:
        return population[int(self.rng.integers(len(population)))][1]

    def _judged(self, picks: Picks | None) -> list[tuple[float, Picks]]:
        """A design with its score; nothing where it breaks a constraint or was judged before."""
        if picks is None or self.left <= 0:
            return []
        key = tuple((id(options), index) for options, index in picks)
        if key in self.seen or not self._legal(picks):
            return []
        self.seen.add(key)
        self.left -= 1
        return [(self.score(picks), tuple(picks))]

    def _legal(self, picks: Picks) -> bool:
        space = self.space
        if not self.low <= _macs(picks) <= self.high or sum(options.branched for options, _ in picks) < self.n_meet:
            return False
        return keeps_rules(space, picks) and self.keeps(SearchResult.unproved(space, picks, 0))

    def _any(self, first: int, behind: int) -> list[Pick]:
        """Random options for some segments."""
        result: list[Pick] = []
        while first < behind:
            options = self._other(first, behind - first)
            result.append((options, int(self.rng.choice(self._indices(options)))))
            first += options.span
        return result

    def _other(self, at: int, most: int) -> SegmentOptions:
        """Random options of a segment that cover no more than so many."""
        able = [options for options in self.space.options[at] if options.span <= most and len(self._indices(options))]
        return able[int(self.rng.integers(len(able)))]

    def _mutated(self, picks: Picks) -> tuple[Pick, ...]:
        """A design with another option in the place of one, and others behind it where that covers more or fewer segments."""
        number = int(self.rng.integers(len(picks)))
        at = sum(options.span for options, _ in picks[:number])
        old, index = picks[number]
        options = old if self.rng.random() < 0.5 else self._other(at, len(self.space.options))
        some = self._indices(options)
        if options is old:
            some = some[np.argsort(np.abs(options.macs[some] - options.macs[index]), kind="stable")[:NEAR]]
        mutated, end = [*picks[:number], (options, int(self.rng.choice(some)))], at + options.span
        behind, start = number, at
        while behind < len(picks) and start < end:
            start += picks[behind][0].span
            behind += 1
        return self._mended([*mutated, *self._any(end, start), *picks[behind:]], number)

    def _crossed(self, one: Picks, other: Picks) -> tuple[Pick, ...] | None:
        """The first segments of one design and the last of another, which meet where both have a meeting point."""
        ends = [np.cumsum([options.span for options, _ in picks]).tolist() for picks in (one, other)]
        common = [end for end in ends[0][:-1] if end in ends[1]]
        if not common:
            return None
        end = common[int(self.rng.integers(len(common)))]
        return self._mended([*one[: ends[0].index(end) + 1], *other[ends[1].index(end) + 1 :]], -1)

    def _mended(self, picks: list[Pick], fixed: int) -> tuple[Pick, ...]:
        """A design with other options of some segments, so that its multiply-accumulates are in the range; `fixed` stays."""
        macs = _macs(picks)
        for number in self.rng.permutation(len(picks))[:MENDED].tolist():
            if self.low <= macs <= self.high:
                break
            options, index = picks[number]
            some = self._indices(options)
            if number == fixed or not len(some):
                continue
            rest = macs - int(options.macs[index])
            off = np.maximum(np.maximum(self.low - rest - options.macs[some], rest + options.macs[some] - self.high), 0)
            nearest = some[off == off.min()]
            nearest = nearest[np.argsort(options.ms[:, nearest].min(axis=0), kind="stable")[:NEAR]]
            picks[number] = options, int(self.rng.choice(nearest))
            macs = rest + int(options.macs[picks[number][1]])
        return tuple(picks)

    @memoised
    def _indices(self, options: SegmentOptions) -> np.ndarray:
        """Options that are offered: the fastest allowed ones of each range of multiply-accumulates."""
        ms = np.where(options.allowed, options.ms, np.inf).min(axis=0)
        some = np.flatnonzero(np.isfinite(ms))
        if len(some) > BUCKETS * FASTEST:
            width = max(1, (int(options.macs[some].max()) - int(options.macs[some].min())) // BUCKETS)
            bucket = options.macs[some] // width
            order = np.lexsort((some, ms[some], bucket))
            first = np.searchsorted(bucket[order], bucket[order], side="left")
            some = np.sort(some[order[np.arange(len(order)) - first < FASTEST]])
        return some


def _macs(picks: Picks) -> int:
    return sum(int(options.macs[index]) for options, index in picks)
