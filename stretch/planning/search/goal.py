"""What a search looks for: the least of something that adds up, on whichever processors that is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan

from predictors.devices import DeviceProfile
from stretch.planning.cost.ways import Ways
from stretch.planning.objective import Objective
from stretch.planning.search.exact import Using, Within, search_least
from stretch.planning.search.measures import LATENCY, Measure, Power, on_only, weighed
from stretch.planning.search.result import SearchResult
from stretch.planning.search.sieve import search_sieved
from stretch.planning.search.space import DesignSpace


@dataclass(frozen=True)
class Goal:
    """What adds up over the segments of a design and is to be least."""

    latency: float = 1.0  # Weight of the makespan, ms.
    energy: float = 0.0  # Weight of the energy, mJ.
    power: Power | None = None  # Of the processors; needed where energy has a weight.

    @classmethod
    def of(cls, objective: Objective, device: DeviceProfile, processors: Sequence[str]) -> "Goal":
        """The goal of a request; latency where its objective does not add up."""
        if not objective.adds or objective.only_latency:
            return cls()
        return cls(objective.latency, objective.energy, Power.of(device, processors) if objective.energy else None)

    def measure(self, processors: Sequence[str]) -> Measure:
        """What designs have that give work to each of these processors."""
        if self.power is None:
            return LATENCY
        return weighed((self.latency, LATENCY), (self.energy, self.power.energy(processors)))

    def groups(self, space: DesignSpace) -> list[tuple[str, ...]]:
        """Sets of processors that are searched one by one."""
        return [space.processors] if self.power is None else self.power.groups(space.processors)

    def value(self, space: DesignSpace, picks: Sequence[tuple[Ways, int]]) -> float:
        """Of a design."""
        working = {name for ways, _ in picks for name in ways.working(space.costs.host)}
        return self.measure([name for name in space.processors if name in working]).total(space, picks)


def search_best(
    space: DesignSpace, low: int, high: int, n_meet: int, goal: Goal, within: Within | None = None, using: Using | None = None
) -> SearchResult | None:
    """The design of a space that is best in a goal."""
    if goal.power is None and within is None and using is None:
        return search_sieved(space, low, high, n_meet)
    search_result: list[SearchResult] = []
    for some in goal.groups(space):
        part = on_only(space, some)
        if not all(part.options):
            continue
        item = search_least(part, low, high, n_meet, goal.measure(some), within, using)
        if item is not None:
            search_result.append(item)
    return least_of(search_result)


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
