"""What a search looks for: the least of something that adds up, on whichever processors that is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Protocol

import numpy as np

from predictors.devices import DeviceProfile
from stretch.planning.config import Objective
from stretch.planning.cost.compare import Floats, Unknown, drawn, kept_ms, uncertain_run
from stretch.planning.cost.makespan import segment_time
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.cost.times import SegmentTime, most_occupied_ms, occupied_ms
from stretch.planning.design.scale import join_width, scale_branches
from stretch.planning.search.exact import (
    LATENCY,
    Measure,
    Picks,
    ProcessorPowers,
    SearchResult,
    Using,
    Within,
    held,
    on_only,
    search_least,
    weighed,
    working,
)
from stretch.planning.search.pruning import search_pruned
from stretch.planning.search.space import DesignSpace


@dataclass(frozen=True)
class Goal:
    """What adds up over the segments of a design and is to be least."""

    latency: float = 1.0  # Weight of the makespan, ms.
    energy: float = 0.0  # Weight of the energy, mJ.
    power: ProcessorPowers | None = None  # Of the processors; needed where energy has a weight.

    @classmethod
    def of(cls, objective: Objective, device: DeviceProfile, processors: Sequence[str]) -> "Goal":
        """The goal of a request; latency where its objective does not add up."""
        if not objective.adds or objective.only_latency:
            return cls()
        return cls(
            objective.weight("latency"), (energy := objective.weight("energy")), ProcessorPowers.of(device, processors) if energy else None
        )

    def measure(self, processors: Sequence[str]) -> Measure:
        """What designs have that give work to each of these processors."""
        if self.power is None:
            return LATENCY
        return weighed((self.latency, LATENCY), (self.energy, self.power.energy(processors)))

    def groups(self, space: DesignSpace) -> list[tuple[str, ...]]:
        """Sets of processors that are searched one by one."""
        return [space.processors] if self.power is None else self.power.groups(space.processors)

    def value(self, space: DesignSpace, picks: Sequence[tuple[SegmentOptions, int]]) -> float:
        """Of a design."""
        return self.measure(working(space, picks)).total(space, picks)


def search_best(
    space: DesignSpace, low: int, high: int, n_meet: int, goal: Goal, within: Within | None = None, using: Using | None = None
) -> SearchResult | None:
    """The design of a space that is best in a goal."""
    if goal.power is None and within is None and using is None:
        return search_pruned(space, low, high, n_meet)
    designs: list[SearchResult] = []
    for some in goal.groups(space):
        part = on_only(space, some)
        if not all(part.options):
            continue
        search_result = search_least(part, low, high, n_meet, goal.measure(some), within, using)
        if search_result is not None:
            designs.append(search_result)
    return least_of(designs)


def least_of(search_results: Sequence[SearchResult]) -> SearchResult | None:
    """The best of the designs of several searches that each leave out some designs."""
    if not search_results:
        return None
    best = min(search_results, key=_value)
    evaluated = max(search_result.evaluated for search_result in search_results)
    if any(isnan(search_result.gap) for search_result in search_results):
        return replace(best, optimal=False, gap=nan, evaluated=evaluated)
    # a search that was cut short may have missed a design as good as its bound
    bound = min(_value(search_result) / (1 + search_result.gap) for search_result in search_results)
    optimal = best.optimal and bound >= _value(best)
    return replace(best, optimal=optimal, gap=0.0 if optimal else _value(best) / bound - 1, evaluated=evaluated)


def _value(search_result: SearchResult) -> float:
    return search_result.ms if search_result.value is None else search_result.value


# What a whole design is judged by where designs are tried one by one; less is better.


class Score(Protocol):
    """What designs of a space are judged by."""

    def __call__(self, picks: Picks) -> float:
        """Of one design; less is better."""


def score_of(objective: Objective, goal: Goal, space: DesignSpace) -> Score:
    """What an objective judges designs by."""
    if not objective.tried:
        return Added(goal, space)
    return Busiest(space) if objective.text == "throughput" else Robust(space)


class Added:
    """What adds up, told for one design at a time."""

    def __init__(self, goal: Goal, space: DesignSpace) -> None:
        self._goal, self._space = goal, space
        self._known: dict[tuple[int, tuple[str, ...]], Floats] = {}

    def __call__(self, picks: Picks) -> float:
        """The goal's value."""
        space = self._space
        names, (rows, last) = working(space, picks), held(space, picks)
        measure, result = self._goal.measure(names), 0.0
        for options, index, holder in rows:
            key = (id(options), names)
            if key not in self._known:
                self._known[key] = np.broadcast_to(measure.of(options), options.ms.shape)
            result += float(self._known[key][space.holders.index(holder), index])
        return result + measure.leaving(space, last)


class _Timed:
    """Timelines of picks, each worked out once."""

    def __init__(self, space: DesignSpace) -> None:
        self.space = space
        self._known: dict[tuple[int, int, str], list[SegmentTime]] = {}

    def rows(self, options: SegmentOptions, index: int, holder: str) -> list[SegmentTime]:
        """A segment, and its tail, where a processor holds what arrives."""
        key = (id(options), index, holder)
        if key not in self._known:
            self._known[key] = self._timed(options, index, holder)
        return self._known[key]

    def _timed(self, options: SegmentOptions, index: int, holder: str) -> list[SegmentTime]:
        costs, channels, rows = self.space.costs, options.segment.in_width, []
        for segment, part in zip((options.segment, options.tail), options.designs(index, costs), strict=False):
            assert segment is not None
            row, holder = segment_time(segment, part, scale_branches(segment, part, channels), holder, channels, costs)
            channels = join_width(segment, part)
            rows.append(row)
        return rows


class Busiest(_Timed):
    """How long an inference occupies the busiest processor, ms: with many in flight what lies between two results."""

    def __call__(self, picks: Picks) -> float:
        """Of one design."""
        costs = self.space.costs
        rows, last = held(self.space, picks)
        occupied = dict.fromkeys(self.space.processors, 0.0)
        for options, index, holder in rows:
            for name, ms in occupied_ms(self.rows(options, index, holder), costs.host).items():
                occupied[name] = occupied.get(name, 0.0) + ms
        occupied[last] = occupied.get(last, 0.0) + self.space.leaving_ms(last)
        return most_occupied_ms(occupied)


class Robust(_Timed):
    """The makespan that nine in ten draws keep, ms."""

    def __init__(self, space: DesignSpace) -> None:
        super().__init__(space)
        self._drawn: dict[Unknown, Floats] = {}
        self._times: dict[tuple[int, int, str], Floats] = {}

    def __call__(self, picks: Picks) -> float:
        """Of one design."""
        costs = self.space.costs
        rows, holder = held(self.space, picks)
        total = sum((self._draws(*row) for row in rows), np.zeros(1))
        last = self.space.segments[-1]
        shape = last.graph.by_name[last.end].shape
        leaving = uncertain_run((), costs.predictor.device, costs.moves(holder, costs.host, int(np.prod(shape))))
        return kept_ms(total + leaving.drawn_ms(self._factors(leaving.unknowns)))

    def _draws(self, options: SegmentOptions, index: int, holder: str) -> Floats:
        key = (id(options), index, holder)
        if key not in self._times:
            run = uncertain_run(self.rows(options, index, holder), self.space.costs.predictor.device)
            self._times[key] = run.drawn_ms(self._factors(run.unknowns))
        return self._times[key]

    def _factors(self, unknowns: set[Unknown]) -> dict[Unknown, Floats]:
        """Draws of some numbers; a number has the same ones whatever is drawn beside it."""
        self._drawn |= drawn(unknowns - self._drawn.keys())
        return {key: self._drawn[key] for key in unknowns}
