"""Exact search: dynamic programming over segments.

The state between two segments is the processor that holds the tensor and how
many segments have been branched so far.
"""

import numpy as np

from stretch.planning.search.layers import Layer, shortest_path, undominated
from stretch.planning.search.result import SearchResult
from stretch.planning.space import DesignSpace, Options


def search_exact(space: DesignSpace, low: int, high: int, n_meet: int, param_price: float = 0.0) -> SearchResult | None:
    """The fastest design of `space` between `low` and `high` multiply-accumulates.

    Args:
        space: All legal designs.
        low: Fewest multiply-accumulates.
        high: Most multiply-accumulates.
        n_meet: Branched segments, at least.
        param_price: Time added per parameter, ms: above zero designs with fewer
            parameters are preferred, below zero those with more.

    Returns:
        The design, or None if there is none.
    """
    levels = n_meet + 1
    layers = [_layer(space, options, levels, param_price) for options in space.options]
    final = np.full(len(space.holders) * levels, np.inf)
    elements = int(np.prod(space.segments[-1].graph.by_name[space.segments[-1].end].shape))
    for i, holder in enumerate(space.holders):
        final[i * levels + n_meet] = space.costs.transfer(holder, space.costs.host, elements)
    start = space.holders.index(space.costs.host) * levels
    path = shortest_path(layers, len(final), start, final, low, high)
    if path is None:
        return None
    picks = tuple(_pick(options, number) for options, number in zip(space.options, path.options, strict=True))
    evaluated = sum(len(o.macs) for options in space.options for o in options)
    params = sum(int(options.params[index]) for options, index in picks)
    return SearchResult(picks, path.ms - param_price * params, path.macs, path.optimal, path.gap, evaluated)


def _layer(space: DesignSpace, options: list[Options], levels: int, param_price: float) -> Layer:
    parts = []
    offset = 0
    for group in options:
        branched = len(group.candidates) > 1
        end = space.costs.host if branched else group.processors[0]
        for holder in range(len(space.holders)):
            ms = group.ms[holder] + param_price * group.params
            index = np.flatnonzero(group.allowed[holder])
            piece = undominated(
                Layer(
                    np.full(len(index), holder), np.full(len(index), space.holders.index(end)), group.macs[index], ms[index], index + offset
                )
            )
            for level in range(levels):
                after = min(level + branched, levels - 1)
                parts.append(Layer(piece.source * levels + level, piece.target * levels + after, piece.macs, piece.ms, piece.option))
        offset += len(group.macs)
    names = ("source", "target", "macs", "ms", "option")
    return Layer(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _pick(options: list[Options], number: int) -> tuple[Options, int]:
    for group in options:
        if number < len(group.macs):
            return group, number
        number -= len(group.macs)
    raise IndexError(number)
