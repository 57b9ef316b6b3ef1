"""Exact search: dynamic programming over segments.

The state between two segments is the processor that holds the tensor, how many
segments have been branched so far, and how many of the next segments are
already covered because stages are merged.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stretch.planning.cost.ways import Ways
from stretch.planning.search.bounded import bounded_path, undominated_with_loss
from stretch.planning.search.layers import Layer, Path, shortest_path, undominated
from stretch.planning.search.result import SearchResult
from stretch.planning.search.space import DesignSpace

#: Time that is added to every option of a segment, ms.
Toll = Callable[[Ways], NDArray[np.float64]]


@dataclass(frozen=True)
class Within:
    """A bound on what designs lose.

    Args:
        losses: Of each option of a segment; they add up over the segments.
        most: Of a whole design.
    """

    losses: Toll
    most: float


def search_exact(
    space: DesignSpace, low: int, high: int, n_meet: int, toll: Toll | None = None, using: str | None = None, within: Within | None = None
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
        within: What the design may lose, at most; None for no bound.

    Returns:
        The design, or None if there is none.
    """
    states = _States(len(space.holders), n_meet + 1, space.longest_span, 1 if using is None else 2)
    layers = [_layer(space, options, states, toll, using, within) for options in space.options]
    final, start = _ends(space, states, n_meet)
    find = shortest_path if within is None else partial(bounded_path, most=within.most)
    path = find(layers, states.count, start, final, low, high)
    if path is None:
        return None
    picks = _picks(space, path)
    paid = sum(float(toll(options)[index]) for options, index in picks) if toll else 0.0
    return SearchResult(picks, path.ms - paid, path.macs, path.optimal, path.gap, _evaluated(space))


def search_least_loss(space: DesignSpace, low: int, high: int, n_meet: int, losses: Toll, budget_ms: float = np.inf) -> SearchResult | None:
    """The design of `space` that loses least among those that take no longer than a budget.

    Args:
        space: All legal designs.
        low: Fewest multiply-accumulates.
        high: Most multiply-accumulates.
        n_meet: Branched segments, at least.
        losses: Of each option of a segment.
        budget_ms: Makespan, at most.

    Returns:
        The design, or None if none keeps the budget; `gap` is not a number where it is not proved to lose least.
    """
    states = _States(len(space.holders), n_meet + 1, space.longest_span)
    within = Within(losses, np.inf)
    timed = [_layer(space, options, states, None, None, within) for options in space.options]
    final, start = _ends(space, states, n_meet)
    # loss and time change places; what finishing takes is a step of its own, since it is bounded now
    layers = [Layer(each.source, each.target, each.macs, each.loss, each.option, each.ms) for each in timed if each.loss is not None]
    ends = np.flatnonzero(np.isfinite(final))
    nothing = np.zeros(len(ends), np.int64)
    layers.append(Layer(ends, ends, nothing, nothing.astype(float), nothing, final[ends]))
    last = np.where(np.isfinite(final), 0.0, np.inf)
    if np.isfinite(budget_ms):
        path = bounded_path(layers, states.count, start, last, low, high, budget_ms)
    else:
        path = shortest_path([replace(each, loss=None) for each in layers], states.count, start, last, low, high)
    if path is None:
        return None
    picks = _picks(space, replace(path, options=path.options[:-1]))
    return SearchResult(picks, _makespan(space, picks), path.macs, path.optimal, 0.0 if path.optimal else float("nan"), _evaluated(space))


def _ends(space: DesignSpace, states: "_States", n_meet: int) -> tuple[NDArray[np.float64], int]:
    """Time to finish from every state, and the state at the start."""
    final = np.full(states.count, np.inf)
    for i, holder in enumerate(space.holders):
        final[states.number(i, n_meet, 0, states.uses - 1)] = space.leaving_ms(holder)
    return final, states.number(space.holders.index(space.costs.host), 0, 0)


def _picks(space: DesignSpace, path: Path) -> tuple[tuple[Ways, int], ...]:
    return tuple(_pick(options, number) for options, number in zip(space.options, path.options, strict=True) if number != _COVERED)


def _evaluated(space: DesignSpace) -> int:
    return sum(len(o.macs) for options in space.options for o in options)


def _makespan(space: DesignSpace, picks: tuple[tuple[Ways, int], ...]) -> float:
    """Predicted makespan of a design, ms."""
    holder, ms = space.costs.host, 0.0
    for options, index in picks:
        ms += float(options.ms[space.holders.index(holder), index])
        holder = options.holder(space.costs.host)
    return ms + space.leaving_ms(holder)


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


def _layer(
    space: DesignSpace, options: list[Ways], states: _States, toll: Toll | None, using: str | None, within: Within | None = None
) -> Layer:
    parts = []
    best = undominated if within is None else undominated_with_loss
    offset = 0
    for group in options:
        branched = len(group.candidates) > 1
        end = space.holders.index(group.holder(space.costs.host))
        paid = toll(group) if toll else 0.0
        loss = None if within is None else within.losses(group)
        for holder in range(len(space.holders)):
            ms = group.ms[holder] + paid
            index = np.flatnonzero(group.allowed[holder])
            zeros = np.zeros(len(index), np.int64)
            piece = best(Layer(zeros, zeros, group.macs[index], ms[index], index + offset, None if loss is None else loss[index]))
            zeros = np.zeros(len(piece.ms), np.int64)
            for level, used in product(range(states.levels), range(states.uses)):
                after = states.number(end, min(level + branched, states.levels - 1), group.span - 1, max(used, using in group.processors))
                before = zeros + states.number(holder, level, 0, used)
                parts.append(Layer(before, zeros + after, piece.macs, piece.ms, piece.option, piece.loss))
        offset += len(group.macs)
    parts.append(_covered(states, bounded=within is not None))
    names = ("source", "target", "macs", "ms", "option", *(("loss",) if within is not None else ()))
    return Layer(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _covered(states: _States, *, bounded: bool) -> Layer:
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
    zero = nothing.astype(float)
    return Layer(source, target, nothing, zero, nothing + _COVERED, zero if bounded else None)


def _pick(options: list[Ways], number: int) -> tuple[Ways, int]:
    for group in options:
        if number < len(group.macs):
            return group, number
        number -= len(group.macs)
    raise IndexError(number)
