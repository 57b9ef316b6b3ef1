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
from stretch.planning.cost.compare import draw_factors, quantile_ms, uncertain_run
from stretch.planning.cost.makespan import SegmentTime, Step, occupied_ms, segment_steps, segment_time, sum_by_key
from stretch.planning.design.scale import join_width, scale_branches
from stretch.planning.network.segments import memoised
from stretch.planning.search.exact import (
    Measure,
    Picks,
    SearchResult,
    restrict_processors,
    satisfies_rules,
    search_exact,
    with_input_holders,
)
from stretch.planning.search.space import DesignSpace, Totals

#: Designs that are judged, at most.
EVALUATIONS = 3000
#: Designs that are kept from one generation to the next, and made in each.
POPULATION = 24
#: Designs made for each that is judged, at most: most are known already, or break a constraint.
MAX_TRIES = 12
#: Ranges of multiply-accumulates from which a fastest design is taken to begin with.
LEVELS = 4
#: Share of designs made by crossover.
CROSSOVER_RATE = 0.3
#: Chance that a mutation is the last one of a design.
LAST_MUTATION_CHANCE = 0.5
#: Options with about as many multiply-accumulates as the one they take the place of.
NEIGHBOURS = 16
#: Ranges of multiply-accumulates of one way to divide a segment, and how many of the fastest options are offered in each.
BUCKETS, FASTEST_PER_BUCKET = 64, 8
#: Segments whose options may change so that a design is back in the range of multiply-accumulates.
MAX_REPAIRED = 4

#: Criterion of a whole design; less is better.
Score = Callable[[Picks], float]
Keeps = Callable[[SearchResult], bool]
Pick = tuple[SegmentOptions, int]


def score_of(objective: Objective, goal: Measure, space: DesignSpace) -> Score:
    """Return the value by which an objective judges designs."""
    if not objective.is_evolved:
        return partial(goal.value, space)
    return busiest_processor_ms(space) if objective.text == "throughput" else makespan_percentile(space)


def _segment_timer(space: DesignSpace) -> Callable[[SegmentOptions, int, str], list[SegmentTime]]:
    """Timelines of a segment, and its tail, where a processor holds what arrives, each worked out once."""

    @cache
    def rows(options: SegmentOptions, index: int, holder: str) -> list[SegmentTime]:
        channels, result = options.segment.in_width, []
        for segment, design in zip((options.segment, options.tail), options.designs(index, space.costs), strict=False):
            assert segment is not None
            scaled = scale_branches(segment, design, channels)
            row, holder = segment_time(segment, design, scaled, holder, channels, space.costs)
            channels = join_width(segment, design)
            result.append(row)
        return result

    return rows


def busiest_processor_ms(space: DesignSpace) -> Score:
    """How long an inference occupies the busiest processor, ms: with many in flight what lies between two results."""
    timed = _segment_timer(space)

    def score(picks: Picks) -> float:
        rows, last = with_input_holders(space, picks)
        times = [time for row in rows for time in timed(*row)]
        occupied = occupied_ms(times, space.costs.host, space.costs.handover(space.costs.host).ms)
        return max(sum_by_key([*occupied.items(), *((last, ms) for ms in space.output_moves(last).values())]).values())

    return score


def makespan_percentile(space: DesignSpace) -> Score:
    """Return the 90th percentile of the drawn makespans, ms."""
    timed, costs, device = _segment_timer(space), space.costs, space.costs.predictor.device

    @cache
    def segment(options: SegmentOptions, index: int, holder: str) -> Floats:
        steps: list[Step] = []
        for row in timed(options, index, holder):
            steps += segment_steps(row, len(steps), (len(steps) - 1,) if steps else ())
        run = uncertain_run(steps, device)
        return run.drawn_ms(draw_factors(run.unknowns))

    def score(picks: Picks) -> float:
        rows, holder = with_input_holders(space, picks)
        total = sum((segment(*row) for row in rows), np.zeros(1))
        leaving = uncertain_run((), device, space.output_moves(holder), costs.handover(costs.host))
        return quantile_ms(total + leaving.drawn_ms(draw_factors(leaving.unknowns)))

    return score


def evolve(
    space: DesignSpace,
    totals: Totals,
    score: Score,
    starts: Sequence[SearchResult],
    *,
    keeps: Keeps = lambda result: True,
    evaluations: int = EVALUATIONS,
) -> SearchResult | None:
    """The best design that an evolutionary search comes upon, from some that it starts with; None if there was none."""
    return _Search(space, totals, score, keeps, np.random.default_rng(0), evaluations).run(starts)


def fastest_designs(space: DesignSpace, totals: Totals) -> list[SearchResult]:
    """Designs to begin with: the fastest in each of several ranges of multiply-accumulates, and without each processor."""
    ends = np.linspace(totals.low, totals.high, LEVELS + 1).astype(int).tolist()
    search_results = [search_exact(space, totals._replace(low=a, high=b)) for a, b in pairwise(ends)]
    for left_out in space.processors if len(space.processors) > 2 else ():
        subspace = restrict_processors(space, [name for name in space.processors if name != left_out])
        if all(subspace.options):
            search_results.append(search_exact(subspace, totals))
    return [search_result for search_result in search_results if search_result is not None]


@dataclass(eq=False)
class _Search:
    space: DesignSpace
    totals: Totals
    score: Score
    keeps: Keeps
    rng: np.random.Generator
    remaining: int  # Evaluations.
    seen: set[tuple[tuple[int, int], ...]] = field(default_factory=set)

    def run(self, starts: Sequence[SearchResult]) -> SearchResult | None:
        evaluations = self.remaining
        # scores and designs
        population: list[tuple[float, Picks]] = [item for start in starts for item in self._evaluate(start.picks)]
        for _ in range(MAX_TRIES * POPULATION):
            if population:
                break
            population += self._evaluate(self._repair(self._random_picks(0, len(self.space.options)), -1))
        tries = MAX_TRIES * self.remaining
        while population and self.remaining > 0 and tries > 0:
            rows: list[tuple[float, Picks]] = []
            while len(rows) < POPULATION and self.remaining > 0 and tries > 0:
                tries -= 1
                picks = self._random_member(population)
                if len(population) > 1 and self.rng.random() < CROSSOVER_RATE:
                    rows += self._evaluate(self._crossover(picks, self._random_member(population)))
                    continue
                for _ in range(int(self.rng.geometric(LAST_MUTATION_CHANCE))):
                    picks = self._mutate(picks)
                rows += self._evaluate(picks)
            # equal ones stay in the order in which they were found, so that a seed has one answer
            population = sorted([*population, *rows], key=lambda item: item[0])[:POPULATION]
        if not population:
            return None
        score, picks = min(population, key=lambda item: item[0])
        return SearchResult.unproved(self.space, picks, evaluations - self.remaining, score)

    def _random_member(self, population: Sequence[tuple[float, Picks]]) -> Picks:
        return population[int(self.rng.integers(len(population)))][1]

    def _evaluate(self, picks: Picks | None) -> list[tuple[float, Picks]]:
        """A design with its score; nothing where it breaks a constraint or was judged before."""
        if picks is None or self.remaining <= 0:
            return []
        key = tuple((id(options), index) for options, index in picks)
        if key in self.seen or not self._is_legal(picks):
            return []
        self.seen.add(key)
        self.remaining -= 1
        return [(self.score(picks), tuple(picks))]

    def _is_legal(self, picks: Picks) -> bool:
        space = self.space
        low, high, n_meet = self.totals
        if not low <= _macs(picks) <= high or sum(options.branched for options, _ in picks) < n_meet:
            return False
        return satisfies_rules(space, picks) and self.keeps(SearchResult.unproved(space, picks, 0))

    def _random_picks(self, first: int, end: int) -> list[Pick]:
        result: list[Pick] = []
        while first < end:
            options = self._random_options(first, end - first)
            result.append((options, int(self.rng.choice(self._indices(options)))))
            first += options.span
        return result

    def _random_options(self, at: int, max_span: int) -> SegmentOptions:
        """Random options of a segment of at most `max_span` stages."""
        candidates = [options for options in self.space.options[at] if options.span <= max_span and len(self._indices(options))]
        return candidates[int(self.rng.integers(len(candidates)))]

    def _mutate(self, picks: Picks) -> tuple[Pick, ...]:
        """A design with another option in the place of one, and others behind it where that covers more or fewer segments."""
        number = int(self.rng.integers(len(picks)))
        at = sum(options.span for options, _ in picks[:number])
        old, index = picks[number]
        options = old if self.rng.random() < 0.5 else self._random_options(at, len(self.space.options))
        indices = self._indices(options)
        if options is old:
            indices = indices[np.argsort(np.abs(options.macs[indices] - options.macs[index]), kind="stable")[:NEIGHBOURS]]
        mutated, end = [*picks[:number], (options, int(self.rng.choice(indices)))], at + options.span
        next_pick, start = number, at
        while next_pick < len(picks) and start < end:
            start += picks[next_pick][0].span
            next_pick += 1
        return self._repair([*mutated, *self._random_picks(end, start), *picks[next_pick:]], number)

    def _crossover(self, first: Picks, second: Picks) -> tuple[Pick, ...] | None:
        """The first segments of one design and the last of another, which meet where both have a meeting point."""
        ends = [np.cumsum([options.span for options, _ in picks]).tolist() for picks in (first, second)]
        shared_ends = [end for end in ends[0][:-1] if end in ends[1]]
        if not shared_ends:
            return None
        end = shared_ends[int(self.rng.integers(len(shared_ends)))]
        return self._repair([*first[: ends[0].index(end) + 1], *second[ends[1].index(end) + 1 :]], -1)

    def _repair(self, picks: list[Pick], fixed: int) -> tuple[Pick, ...]:
        """A design with other options of some segments, so that its multiply-accumulates are in the range; `fixed` stays."""
        macs, (low, high, _) = _macs(picks), self.totals
        for number in self.rng.permutation(len(picks))[:MAX_REPAIRED].tolist():
            if low <= macs <= high:
                break
            options, index = picks[number]
            indices = self._indices(options)
            if number == fixed or not len(indices):
                continue
            other_macs = macs - int(options.macs[index])
            distance = np.maximum(np.maximum(low - other_macs - options.macs[indices], other_macs + options.macs[indices] - high), 0)
            nearest = indices[distance == distance.min()]
            nearest = nearest[np.argsort(options.ms[:, nearest].min(axis=0), kind="stable")[:NEIGHBOURS]]
            picks[number] = options, int(self.rng.choice(nearest))
            macs = other_macs + int(options.macs[picks[number][1]])
        return tuple(picks)

    @memoised
    def _indices(self, options: SegmentOptions) -> np.ndarray:
        """Options that are offered: the fastest allowed ones of each range of multiply-accumulates."""
        ms = np.where(options.allowed, options.ms, np.inf).min(axis=0)
        indices = np.flatnonzero(np.isfinite(ms))
        if len(indices) > BUCKETS * FASTEST_PER_BUCKET:
            width = max(1, (int(options.macs[indices].max()) - int(options.macs[indices].min())) // BUCKETS)
            bucket = options.macs[indices] // width
            order = np.lexsort((indices, ms[indices], bucket))
            first = np.searchsorted(bucket[order], bucket[order], side="left")
            indices = np.sort(indices[order[np.arange(len(order)) - first < FASTEST_PER_BUCKET]])
        return indices


def _macs(picks: Picks) -> int:
    return sum(int(options.macs[index]) for options, index in picks)
