"""The front of a network on a device: designs none of which another beats in all of what is weighed."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from math import ceil

import numpy as np
from msgspec.structs import replace

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, UnknownNameError, UsageError
from predictors.graph import OpGraph
from stretch.planning.choose import choose, search_request
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.plan import Asked
from stretch.planning.search.banded import without_stretched
from stretch.planning.search.bounds import loss_of
from stretch.planning.search.criteria import FREE, Criteria, undominated
from stretch.planning.search.layers import TIE
from stretch.planning.search.measures import Power
from stretch.planning.search.placing_sides import place_sides
from stretch.planning.search.result import SearchResult
from stretch.planning.search.seams import without_seams
from stretch.planning.sentences import Mention, Sentence

#: What may be weighed, in the order in which designs are searched for: the first of those asked for is made least, the others are bounded.
WEIGHED = ("latency", "energy", "macs", "agreement", "accuracy", "memory")
#: Most designs of a front that is asked for in full.
MOST = 1000
#: Weights, over the spans of both, at which one of three things that add up counts beside another.
WEIGHTS = (0.0, 0.25, 1.0, 4.0)


@dataclass(frozen=True)
class FrontDesign:
    """One design of a front."""

    design: BranchDesign  # The design.
    ms: float  # Predicted makespan.
    loss: float | None  # What it is predicted to lose, in the terms of what accuracy is predicted from; None where nothing predicts it.
    optimal: bool  # Whether no design of the space is better in all of what is weighed.
    n_meet: int  # Meeting points where branches join.
    exact: bool  # Whether it computes what the original computes.
    peak_bytes: int  # Activation bytes alive at one time, by the planner's estimate.


@dataclass(frozen=True)
class Front:
    """Designs none of which is better than another in all of what is weighed."""

    weighed: tuple[str, ...]  # What is weighed.
    designs: tuple[FrontDesign, ...]  # From the slowest to the fastest.
    asked: Asked  # The request, checked, with what it is answered from.
    space_log10: float  # Decimal logarithm of the number of designs.
    evaluated: int  # Ways whose cost was computed.


def front(
    graph: OpGraph,
    device: DeviceProfile,
    config: PlanConfig,
    weighed: Sequence[str],
    count: int | None,
    accuracy_source: AccuracySource | None = None,
) -> Front:
    """Designs that differ in what is weighed, none of which another beats in all of it.

    Of two things each design has least of the one within a bound on the other, by the exact search; the bounds
    lie evenly between the ends. Of three, bounds on two of them form a grid. A design that may lose nothing need
    not branch: where one processor alone is fastest, that is the end of the front.

    Args:
        weighed: Two or three of `WEIGHED`.
        count: Designs, at most; None for every design of a front of two things.
        accuracy_source: What predicts the accuracy of designs; the file that `config` names if None.
    """
    names = check_weighed(weighed)
    asked = Asked.of(graph, device, config, accuracy_source)
    source, checked = asked.accuracy_source, asked.config
    _check(names, checked, source, count)
    power = Power.of(device, checked.processors) if "energy" in names else None
    losses = None if source is None else source.losses
    own = tuple("loss" if name in ("agreement", "accuracy") else name for name in WEIGHED if name in names)
    request = replace(checked, min_accuracy=None, min_agreement=None, objective="latency", latency_budget=None)
    parts = search_request(asked.backbone, request, asked.costs, asked.stages, source)
    found, values = [], []
    for part in parts:
        if part.found is not None:
            criteria = Criteria(part.space, *asked.macs, part.n_meet, power, losses)
            levels = Levels(criteria, own, source)
            some = levels.grid(count or MOST) if len(own) == 3 else levels.pair(count)
            found += some
            values += [[criteria.value(name, each) for name in own] for each in some]
    if not found:
        # the planner's own refusal names the tightest rule
        choose(asked.backbone, request, asked.costs, asked.stages, source)
        raise InfeasibleError(f"no design of `{graph.name}` meets the constraints")
    kept = _spread(undominated(found, values), count or MOST)
    best = sorted((found[i] for i in kept), key=lambda each: (each.ms, each.macs), reverse=True)
    designs = tuple(designed(asked, each) for each in best)
    return Front(tuple(names), designs, asked, parts[0].space.size_log10, max(each.evaluated for each in found))


def check_weighed(names: Sequence[str]) -> tuple[str, ...]:
    """What is to be weighed, checked."""
    for name in names:
        if name not in WEIGHED:
            raise UnknownNameError.among("objective", name, WEIGHED)
    if not 2 <= len(set(names)) == len(names) <= 3:
        raise UsageError(
            Sentence("{} does not name two or three different things to weigh", Mention("pareto", tuple(names))),
            Sentence("write it as {}", Mention("pareto", ("latency", "agreement"))),
        )
    return tuple(names)


def _check(weighed: Sequence[str], config: PlanConfig, source: AccuracySource | None, count: int | None) -> None:
    """Refuse what cannot be weighed."""
    for name, option in (("agreement", "min_agreement"), ("accuracy", "min_accuracy")):
        if name in weighed and (source is None or source.option != option):
            what = "agreement" if name == "agreement" else "top-1"
            raise UsageError(
                f"nothing predicts the {what} of designs",
                Sentence(
                    "give {} or {}, or ask for {}", Mention("images", "DIR"), Mention("accuracy", "FILE"), Mention("pareto", "latency,macs")
                ),
            )
    if count is None and len(weighed) != 2:
        raise UsageError("only fronts of two things are searched in full", "weigh two, or say how many designs there may be")
    if config.strategy != "exact" or config.widens or config.params is not None:
        raise UsageError(
            "fronts are searched by the exact search, without bounds on parameters and without joins that widen the backbone",
            Sentence("leave out {}, {} and {}", Mention("strategy"), Mention("join"), Mention("params")),
        )


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """At most `count` of the numbers, evenly along them, both ends included where there is more than one."""
    if len(numbers) <= count:
        return list(numbers)
    return list(dict.fromkeys(numbers[round(i * (len(numbers) - 1) / max(count - 1, 1))] for i in range(count)))


@dataclass(frozen=True)
class Levels:
    """The best designs within bounds that lie between the ends of a front."""

    criteria: Criteria  # What designs are weighed by.
    names: tuple[str, ...]  # The one that is made least, and those that are bounded.
    source: AccuracySource | None  # What predicts the accuracy, if anything does.

    def pair(self, count: int | None) -> list[SearchResult]:
        """Designs of a front of two things: both ends and between, or all of them."""
        first, second = self.names
        best = self.criteria.best((first, second), {})
        if best is None:
            return []
        if count == 1:
            return [best]
        end = self._end(second, first)
        if count is None:
            return [*self._every(best, end), end]
        bounds = self._bounds(second, self.criteria.value(second, end), self.criteria.value(second, best), count)
        between = [self.criteria.best((first, second), {second: most}) for most in bounds]
        return [end, *(each for each in between if each is not None), best]

    def _every(self, best: SearchResult, end: SearchResult) -> list[SearchResult]:
        """From the one end on, each time the best design that has less of the other thing."""
        first, second = self.names
        found, last = [best], self.criteria.value(second, end)
        while len(found) < MOST and (value := self.criteria.value(second, found[-1])) > last + 2 * TIE:
            # the search takes bounds with a tolerance, which a whole number is not to lie within
            less = value - 1 if second in FREE else value - max(10 * TIE, 1e-10 * abs(value))
            each = self.criteria.best((first, second), {second: less})
            if each is None:
                break
            found.append(each)
        return found

    def grid(self, count: int) -> list[SearchResult]:
        """Designs of a front of three things, by bounds on two of them, or on one with weights of another."""
        first, *others = self.names
        # of what adds up the search bounds one; another one is weighed
        adding = [name for name in others if name not in FREE]
        ends = [self.criteria.best((first, others[0]), {}), *(self._end(name, first) for name in others)]
        found = [each for each in ends if each is not None]
        if not found:
            return []
        span = {name: (min(v), max(v)) for name in self.names if (v := [self.criteria.value(name, each) for each in found])}
        side = ceil(count**0.5)
        weighed = adding[0] if len(adding) == 2 else None
        bounded = [name for name in others if name != weighed]
        rows: list[dict[str, float]] = [{}]
        for name in bounded:
            low, high = span[name]
            rows = [{**row, name: float(most)} for row in rows for most in np.linspace(low, high, max(side, 2))]
        for row in rows:
            for weight in WEIGHTS if weighed else (0.0,):
                also = None
                if weighed and weight:
                    scale = (span[first][1] - span[first][0]) / max(span[weighed][1] - span[weighed][0], TIE)
                    also = weighed, weight * scale
                each = self.criteria.least(first, row, also)
                if each is not None:
                    found.append(each if weighed is None else dataclass_replace(each, optimal=False))
        kept = undominated(found, [[self.criteria.value(name, each) for name in self.names] for each in found])
        # evenly along the first thing
        return [found[i] for i in _spread(kept, count)]

    def _end(self, name: str, then: str) -> SearchResult:
        """The design that has least of one thing; of a loss, the best that computes what the original computes, branched or not."""
        if name == "loss":
            same = dataclass_replace(self.criteria, space=without_stretched(self.criteria.space), n_meet=0)
            found = same.least(then, {})
            if found is not None:
                return found
        least = self.criteria.best((name, then), {})
        assert least is not None, "there is a design, or this is not asked"
        if name in FREE and not least.optimal:
            # what is not proved to be the least of all may be proved the best of those that have no more
            return self.criteria.best((then, name), {name: self.criteria.value(name, least)}) or least
        return least

    def _bounds(self, name: str, least: float, most: float, count: int) -> list[float]:
        """Bounds between two ends, even in what people read: accuracy, not loss."""
        if most <= least or count < 3:
            return []
        if self.source is None or name != "loss":
            return [float(x) for x in np.linspace(least, most, count)[1:-1]]
        ends = self.source.value(least), self.source.value(most)
        return [self.source.most_loss(float(value)) for value in np.linspace(*ends, count)[1:-1]]


def designed(asked: Asked, found: SearchResult) -> FrontDesign:
    """A design that was searched for, complete."""
    source = asked.accuracy_source
    parts = without_seams(asked.backbone, asked.stages, found.segments(asked.costs))
    design = place_sides(asked.graph, BranchDesign(asked.graph.name, asked.device.id, parts), asked.costs, asked.config.processors)
    ms = timeline(asked.graph, design, asked.costs).makespan_ms if design.sides else found.ms
    loss = None if source is None else loss_of(found, source)
    peak = max(int(ways.peak_bytes[index]) for ways, index in found.picks)
    return FrontDesign(design, ms, loss, found.optimal, design.n_meet, all(o.exact or not o.branched for o, _ in found.picks), peak)
