"""Grid search as in paper 003: the same depth and width ratio for a processor in every segment that the rules let branch."""

from itertools import product

import numpy as np

from stretch.planning.cost.options import SegmentOptions
from stretch.planning.search.exact import SearchResult
from stretch.planning.search.space import DesignSpace

#: Ratios that are tried; the authors' release tries depths from 0.66 and ten widths from 0.5.
DEPTHS = (0.5, 0.66, 0.83, 1.0)
WIDTHS = tuple(round(0.5 + 0.05 * i, 2) for i in range(11))
#: With three processors the grid is thinned, as its size is a power of their number.
COARSE_DEPTHS = (0.5, 0.75, 1.0)
COARSE_WIDTHS = (0.375, 0.5, 0.625, 0.75, 1.0)


def search(space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design of uniform ratios between `low` and `high` multiply-accumulates."""
    depths, widths = (DEPTHS, WIDTHS) if len(space.processors) == 2 else (COARSE_DEPTHS, COARSE_WIDTHS)
    ratios = list(product(depths, widths))
    branched = [_all_processors(space, options) for options in space.options]
    nearest = [
        None if group is None else [[_nearest(group, i, depth, width) for depth, width in ratios] for i in range(len(space.processors))]
        for group in branched
    ]
    best: SearchResult | None = None
    evaluated = 0
    for choice in product(range(len(ratios)), repeat=len(space.processors)):
        evaluated += 1
        picks, ms, macs = _follow(space, branched, nearest, choice)
        if not low <= macs <= high or (best is not None and ms >= best.ms):
            continue
        search_result = SearchResult(picks, ms, macs, optimal=False, gap=float("nan"), evaluated=evaluated)
        if search_result.n_meet >= n_meet:
            best = search_result
    if best is None:
        return None
    return SearchResult(best.picks, best.ms, best.macs, optimal=False, gap=best.gap, evaluated=evaluated)


def _all_processors(space: DesignSpace, options: list[SegmentOptions]) -> SegmentOptions | None:
    return next((group for group in options if len(group.candidates) == len(space.processors)), None)


def _nearest(group: SegmentOptions, branch: int, depth: float, width: float) -> int:
    """The candidate of a branch whose ratios are nearest to those asked for."""
    segment = group.segment
    return min(
        range(len(group.candidates[branch])),
        key=lambda n: (
            abs(group.candidates[branch][n].depth / segment.depth - depth) + abs(group.candidates[branch][n].width / segment.width - width)
        ),
    )


def _follow(
    space: DesignSpace, branched: list[SegmentOptions | None], nearest: list[list[list[int]] | None], choice: tuple[int, ...]
) -> tuple[tuple[tuple[SegmentOptions, int], ...], float, int]:
    """The design of one grid point: each segment branched if allowed, else whole where that is fastest."""
    holder, ms, macs = space.holders.index(space.costs.host), 0.0, 0
    picks = []
    for options, group, near in zip(space.options, branched, nearest, strict=True):
        pick = None
        if group is not None and near is not None:
            index = int(np.ravel_multi_index([near[i][c] for i, c in enumerate(choice)], [len(c) for c in group.candidates]))
            if group.allowed[holder, index]:
                pick = (group, index)
        if pick is None:
            whole = [o for o in options if len(o.candidates) == 1]
            pick = (min(whole, key=lambda o: o.ms[holder, 0]), 0)
        ms += float(pick[0].ms[holder, pick[1]])
        macs += int(pick[0].macs[pick[1]])
        end = space.costs.host if len(pick[0].candidates) > 1 else pick[0].processors[0]
        holder = space.holders.index(end)
        picks.append(pick)
    return tuple(picks), ms + space.leaving_ms(space.holders[holder]), macs
