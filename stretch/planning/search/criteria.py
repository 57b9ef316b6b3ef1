"""The best design of a space in one thing within bounds on others: what fronts are made of.

Latency, energy and what a design loses add up over its segments, and one of them may be bounded by
the exact search. Multiply-accumulates are bounded by every search. Peak memory is the largest of all
segments', so that a bound on it leaves out options.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import floor

import numpy as np

from stretch.planning.cost.ways import Ways
from stretch.planning.search.exact import Within, search_least
from stretch.planning.search.goal import least_of
from stretch.planning.search.layers import TIE
from stretch.planning.search.measures import LATENCY, MACS, Measure, Power, Toll, on_only, told_by, weighed
from stretch.planning.search.result import SearchResult
from stretch.planning.search.sieve import sieved
from stretch.planning.search.space import DesignSpace

#: What is bounded without a label of its own in the search.
FREE = ("macs", "memory")


@dataclass(frozen=True)
class Criteria:
    """What designs of a space are weighed by."""

    space: DesignSpace  # The designs.
    low: int  # Fewest multiply-accumulates.
    high: int  # Most multiply-accumulates.
    n_meet: int  # Branched segments, at least.
    power: Power | None = None  # Of the processors; needed for ``energy``.
    losses: Toll | None = None  # What each option loses; needed for ``loss``.

    def value(self, name: str, search_result: SearchResult) -> float:
        """A design in one thing."""
        if name == "memory":
            return float(max(int(ways.peak_bytes[index]) for ways, index in search_result.picks))
        if name == "macs":
            return float(search_result.macs)
        if name == "latency":
            return search_result.ms
        working = {item for ways, _ in search_result.picks for item in ways.working(self.space.costs.host)}
        return self._measure(name, [processor for processor in self.space.processors if processor in working]).total(
            self.space, search_result.picks
        )

    def least(self, name: str, bounds: Mapping[str, float], also: tuple[str, float] | None = None) -> SearchResult | None:
        """The design that has least of one thing."""
        return self._least(name, bounds, also)[0]

    def _least(
        self, name: str, bounds: Mapping[str, float], also: tuple[str, float] | None = None
    ) -> tuple[SearchResult | None, DesignSpace]:
        """The design of `least`, and a space that has every design with as little."""
        adding = [bound for bound in bounds if bound not in FREE]
        if len(adding) > 1:
            raise ValueError(f"{' and '.join(adding)} cannot be bounded at once")
        if name == "memory":
            return self._least_memory(bounds), self.space
        part = self._small(bounds["memory"]) if "memory" in bounds else self.space
        high = min(self.high, floor(bounds["macs"] + TIE)) if "macs" in bounds else self.high
        if high < self.low:
            return None, self.space
        if name == "latency" and not adding and also is None and part is self.space:
            return sieved(part, self.low, high, self.n_meet)
        if not all(part.options):
            return None, self.space
        least = []
        for group in self._groups((name, *adding, *(also or ())[:1])):
            some = on_only(part, group)
            if not all(some.options):
                continue
            cost = self._measure(name, group)
            if also is not None:
                cost = weighed((1.0, cost), (also[1], self._measure(also[0], group)))
            within = Within(self._measure(adding[0], group), bounds[adding[0]]) if adding else None
            search_result = search_least(some, self.low, high, self.n_meet, cost, within)
            if search_result is not None:
                least.append(search_result)
        return least_of(least), self.space

    def best(self, names: Sequence[str], bounds: Mapping[str, float]) -> SearchResult | None:
        """The design that has least of one thing, and of several such that of another."""
        first, space = self._least(names[0], bounds)
        if first is None:
            return None
        # a branch that nobody waits for can be smaller and cost no time: equal designs are frequent
        kept = {key: bound for key, bound in bounds.items() if key in FREE and key != names[1]}
        second = replace(self, space=space).least(names[1], {**kept, names[0]: self.value(names[0], first)})
        if second is None or self.value(names[1], second) > self.value(names[1], first):
            return first
        return replace(second, optimal=first.optimal and second.optimal)

    def _groups(self, names: Sequence[str]) -> Sequence[tuple[str, ...]]:
        if "energy" not in names:
            return [self.space.processors]
        assert self.power is not None
        return self.power.groups(self.space.processors)

    def _measure(self, name: str, processors: Sequence[str]) -> Measure:
        if name == "energy":
            assert self.power is not None
            return self.power.energy(processors)
        if name == "loss":
            assert self.losses is not None
            return told_by(self.losses)
        return {"latency": LATENCY, "macs": MACS}[name]

    def _small(self, most: float) -> DesignSpace:
        """The designs whose segments need no more memory."""

        def kept(ways: Ways) -> Ways:
            small = ways.peak_bytes <= most
            return ways if small.all() else replace(ways, allowed=ways.allowed & small)

        other = copy(self.space)
        other.options = [[kept(ways) for ways in options] for options in self.space.options]
        return other

    def _least_memory(self, bounds: Mapping[str, float]) -> SearchResult | None:
        """By halving the peaks that there are."""
        rest = {key: bound for key, bound in bounds.items() if key != "memory"}
        feasible = next((key for key in rest if key not in FREE), "latency")
        rest.pop(feasible, None)
        most = bounds.get(feasible, np.inf)

        def within(peak: float) -> SearchResult | None:
            least = self.least(feasible, {**rest, "memory": peak})
            return least if least is not None and self.value(feasible, least) <= most + TIE else None

        peaks = self.peaks
        best = within(float(peaks[-1]))
        if best is None:
            return None
        low, high = 0, len(peaks) - 1
        while low < high:
            middle = (low + high) // 2
            result = within(float(peaks[middle]))
            if result is None:
                low = middle + 1
            else:
                best, high = result, middle
        return replace(best, value=float(peaks[high]))

    @property
    def peaks(self) -> np.ndarray:
        """Peak memory that some option has, ascending, bytes."""
        return np.unique(np.concatenate([np.unique(ways.peak_bytes) for options in self.space.options for ways in options]))


def undominated(search_results: Sequence[SearchResult], values: Sequence[Sequence[float]]) -> list[int]:
    """Numbers of the designs than which none is as good in everything and better in something; of equal ones the first."""
    kept: list[int] = []
    for one in sorted(range(len(search_results)), key=lambda i: (*values[i], i)):
        if not any(all(b <= a + TIE for a, b in zip(values[one], values[other], strict=True)) for other in kept):
            kept.append(one)
    return kept
