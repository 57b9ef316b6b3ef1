"""Exact search: dynamic programming over segments.

The state between two segments is the processor that holds the tensor, how many
segments have been branched so far, and how many of the next segments are
already covered because stages are merged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stretch.planning.cost.ways import Ways
from stretch.planning.search.layers import Layer, shortest_path, undominated
from stretch.planning.search.result import SearchResult
from stretch.planning.search.space import DesignSpace

#: Time that is added to every option of a segment, ms.
Toll = Callable[[Ways], NDArray[np.float64]]


def search_exact(
    space: DesignSpace, low: int, high: int, n_meet: int, toll: Toll | None = None, using: str | None = None
) -> SearchResult | None:
    """The fastest design of `space` between `low` and `high` multiply-accumulates.

    Args:
        space: All legal designs.
        low: Fewest multiply-accumulates.
        high: Most multiply-accumulates.
        n_meet: Branched segments, at least.
        toll: Time added to each option of a segment, ms, for what else a design is to be
            chosen by; the result's `ms` is without it.
        using: A processor that some segment has to use.

    Returns:
        The design, or None if there is none.
    """
    states = _States(len(space.holders), n_meet + 1, space.longest_span, 1 if using is None else 2)
    layers = [_layer(space, options, states, toll, using) for options in space.options]
    final = np.full(states.count, np.inf)
    for i, holder in enumerate(space.holders):
        final[states.number(i, n_meet, 0, states.uses - 1)] = space.leaving_ms(holder)
    start = states.number(space.holders.index(space.costs.host), 0, 0)
    path = shortest_path(layers, states.count, start, final, low, high)
    if path is None:
        return None
    picks = tuple(_pick(options, number) for options, number in zip(space.options, path.options, strict=True) if number != _COVERED)
    evaluated = sum(len(o.macs) for options in space.options for o in options)
    paid = sum(float(toll(options)[index]) for options, index in picks) if toll else 0.0
    return SearchResult(picks, path.ms - paid, path.macs, path.optimal, path.gap, evaluated)


#: In place of an option's number: the segment is covered by one before it.
_COVERED = -1


@dataclass(frozen=True)
class _States:
    """Numbers of states: holder, branched segments so far, segments ahead that are covered, whether a processor was used."""

    holders: int
    levels: int
    longest: int
    uses: int = 1

    @property
    def count(self) -> int:
        return self.holders * self.levels * self.longest * self.uses

    def number(self, holder: int, level: int, covered: int, used: int = 0) -> int:
        return ((used * self.longest + covered) * self.holders + holder) * self.levels + level


def _layer(space: DesignSpace, options: list[Ways], states: _States, toll: Toll | None, using: str | None) -> Layer:
    parts = []
    offset = 0
    for group in options:
        branched = len(group.candidates) > 1
        end = space.holders.index(group.holder(space.costs.host))
        paid = toll(group) if toll else 0.0
        for holder in range(len(space.holders)):
            ms = group.ms[holder] + paid
            index = np.flatnonzero(group.allowed[holder])
            zeros = np.zeros(len(index), np.int64)
            piece = undominated(Layer(zeros, zeros, group.macs[index], ms[index], index + offset))
            zeros = np.zeros(len(piece.ms), np.int64)
            for level, used in product(range(states.levels), range(states.uses)):
                after = states.number(end, min(level + branched, states.levels - 1), group.span - 1, max(used, using in group.processors))
                parts.append(Layer(zeros + states.number(holder, level, 0, used), zeros + after, piece.macs, piece.ms, piece.option))
        offset += len(group.macs)
    parts.append(_covered(states))
    names = ("source", "target", "macs", "ms", "option")
    return Layer(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _covered(states: _States) -> Layer:
    """Ways past a segment that a merged one before it covers: they cost nothing."""
    ways = [
        (states.number(holder, level, covered, used), states.number(holder, level, covered - 1, used))
        for used in range(states.uses)
        for covered in range(1, states.longest)
        for holder in range(states.holders)
        for level in range(states.levels)
    ]
    source, target = np.array(ways, np.int64).reshape(-1, 2).T
    nothing = np.zeros(len(ways), np.int64)
    return Layer(source, target, nothing, nothing.astype(float), nothing + _COVERED)


def _pick(options: list[Ways], number: int) -> tuple[Ways, int]:
    for group in options:
        if number < len(group.macs):
            return group, number
        number -= len(group.macs)
    raise IndexError(number)
