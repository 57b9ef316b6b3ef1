"""What a whole design is judged by where designs are tried one by one; less is better."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stretch.planning.cost.draws import kept_ms, uncertain_run
from stretch.planning.cost.makespan import segment_time
from stretch.planning.cost.rates import most_occupied_ms, occupied_ms
from stretch.planning.cost.times import SegmentTime
from stretch.planning.cost.uncertain import Floats, Unknown, drawn
from stretch.planning.cost.ways import Ways
from stretch.planning.design.scale import join_width, scale_branches
from stretch.planning.objective import Objective
from stretch.planning.search.goal import Goal
from stretch.planning.search.space import DesignSpace

#: Options and the index of the chosen one, segment by segment.
Picks = Sequence[tuple[Ways, int]]


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
        working = {name for ways, _ in picks for name in ways.working(space.costs.host)}
        names = tuple(name for name in space.processors if name in working)
        measure = self._goal.measure(names)
        holder, result = space.costs.host, 0.0
        for ways, index in picks:
            key = (id(ways), names)
            if key not in self._known:
                self._known[key] = np.broadcast_to(measure.of(ways), ways.ms.shape)
            result += float(self._known[key][space.holders.index(holder), index])
            holder = ways.holder(space.costs.host)
        return result + measure.leaving(space, holder)


class _Timed:
    """Timelines of picks, each worked out once."""

    def __init__(self, space: DesignSpace) -> None:
        self.space = space
        self._known: dict[tuple[int, int, str], list[SegmentTime]] = {}

    def rows(self, ways: Ways, index: int, holder: str) -> list[SegmentTime]:
        """A segment, and its tail, where a processor holds what arrives."""
        key = (id(ways), index, holder)
        if key not in self._known:
            self._known[key] = self._timed(ways, index, holder)
        return self._known[key]

    def _timed(self, ways: Ways, index: int, holder: str) -> list[SegmentTime]:
        costs, channels, rows = self.space.costs, ways.segment.in_width, []
        for segment, part in zip((ways.segment, ways.tail), ways.designs(index, costs), strict=False):
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
        holder, mapping = costs.host, dict.fromkeys(self.space.processors, 0.0)
        for ways, index in picks:
            for name, ms in occupied_ms(self.rows(ways, index, holder), costs.host).items():
                mapping[name] = mapping.get(name, 0.0) + ms
            holder = ways.holder(costs.host)
        mapping[holder] = mapping.get(holder, 0.0) + self.space.leaving_ms(holder)
        return most_occupied_ms(mapping)


class Robust(_Timed):
    """The makespan that nine in ten draws keep, ms."""

    def __init__(self, space: DesignSpace) -> None:
        super().__init__(space)
        self._drawn: dict[Unknown, Floats] = {}
        self._times: dict[tuple[int, int, str], Floats] = {}

    def __call__(self, picks: Picks) -> float:
        """Of one design."""
        costs = self.space.costs
        holder, total = costs.host, np.zeros(1)
        for ways, index in picks:
            total = total + self._draws(ways, index, holder)
            holder = ways.holder(costs.host)
        last = self.space.segments[-1]
        shape = last.graph.by_name[last.end].shape
        leaving = uncertain_run((), costs.predictor.device, costs.moves(holder, costs.host, int(np.prod(shape))))
        return kept_ms(total + leaving.drawn_ms(self._factors(leaving.unknowns)))

    def _draws(self, ways: Ways, index: int, holder: str) -> Floats:
        key = (id(ways), index, holder)
        if key not in self._times:
            run = uncertain_run(self.rows(ways, index, holder), self.space.costs.predictor.device)
            self._times[key] = run.drawn_ms(self._factors(run.unknowns))
        return self._times[key]

    def _factors(self, unknowns: set[Unknown]) -> dict[Unknown, Floats]:
        """Draws of some numbers; a number has the same ones whatever is drawn beside it."""
        self._drawn |= drawn(unknowns - self._drawn.keys())
        return {key: self._drawn[key] for key in unknowns}
