"""Designs that differ: in the segments that branch, the processors, and the kinds of segments.

Each has a segment that none before it has the same way, and of all such designs that are good enough it
shares as few segments with them as can be. Both searches for it are exact: what is shared adds up over segments.
"""

from collections.abc import Callable

import numpy as np

from stretch.planning.cost.ways import Ways
from stretch.planning.search.exact import Within, search_least
from stretch.planning.search.goal import Goal, search_best
from stretch.planning.search.measures import Floats, Measure, on_only, told_by
from stretch.planning.search.result import SearchResult
from stretch.planning.search.space import DesignSpace

#: What tells ways of a segment apart: where it begins and ends, how it is divided, and by which processors; none where it stays whole.
Look = tuple[str, str, str, tuple[str, ...]]


def look(ways: Ways) -> Look:
    """What a person sees of a way to run a segment, sizes aside."""
    return ways.segment.start, ways.segment.end, ways.join, ways.processors if ways.branched else ()


def looks(search_result: SearchResult) -> list[Look]:
    """The same of each segment of a design."""
    return [look(ways) for ways, _ in search_result.picks]


def diverse_designs(
    space: DesignSpace, low: int, high: int, n_meet: int, goal: Goal, best: SearchResult, count: int, factor: float
) -> list[SearchResult]:
    """Designs that differ, the best one first."""
    result = [best]
    most = factor * goal.value(space, best.picks)
    while len(result) < count:
        shared, fresh = _told(result)
        apart = _least_shared(space, low, high, n_meet, goal, most, shared, fresh)
        if apart is None:
            break
        within = Within(shared, shared.total(space, apart.picks))
        next_ = search_best(space, low, high, n_meet, goal, within, fresh)
        result.append(next_ or apart)
    return result


def _told(search_results: list[SearchResult]) -> tuple[Measure, Callable[[Ways], bool]]:
    """How many segments an option shares with designs, and whether it is like none of theirs."""
    seen: dict[Look, int] = {}
    for search_result in search_results:
        for one in looks(search_result):
            seen[one] = seen.get(one, 0) + 1

    def shared(ways: Ways) -> Floats:
        return np.full(len(ways.macs), float(seen.get(look(ways), 0) * ways.span))

    return told_by(shared), lambda ways: look(ways) not in seen


def _least_shared(
    space: DesignSpace, low: int, high: int, n_meet: int, goal: Goal, most: float, shared: Measure, fresh: Callable[[Ways], bool]
) -> SearchResult | None:
    """A design that is good enough and shares as little as can be."""
    some = []
    for group in goal.groups(space):
        part = on_only(space, group)
        if all(part.options):
            some.append(search_least(part, low, high, n_meet, shared, Within(goal.measure(group), most), fresh))
    return min((item for item in some if item is not None), key=lambda item: item.value or 0.0, default=None)
