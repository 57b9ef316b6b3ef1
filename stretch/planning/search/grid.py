"""Grid search as in paper 003: each processor has the same depth and width ratio in every segment that may branch."""

from itertools import product

import numpy as np

from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.search.exact import SearchResult
from stretch.planning.search.space import DesignSpace, Totals

#: Tried ratios; the authors' release tries depths from 0.66 and ten widths from 0.5.
DEPTHS = (0.5, 0.66, 0.83, 1.0)
WIDTHS = tuple(round(0.5 + 0.05 * i, 2) for i in range(11))
#: Coarser ratios for three processors, because the grid's size is a power of their number.
COARSE_DEPTHS = (0.5, 0.75, 1.0)
COARSE_WIDTHS = (0.375, 0.5, 0.625, 0.75, 1.0)


def search_grid(space: DesignSpace, totals: Totals) -> SearchResult | None:
    """Return the fastest design of uniform ratios within the totals; None if none exists."""
    count = len(space.processors)
    ratios = list(product(*((DEPTHS, WIDTHS) if count == 2 else (COARSE_DEPTHS, COARSE_WIDTHS))))
    groups = [next((group for group in options if len(group.candidates) == count), None) for options in space.options]
    nearest = [None if group is None else [[_nearest(group, i, *ratio) for ratio in ratios] for i in range(count)] for group in groups]
    best: SearchResult | None = None
    for choice in product(range(len(ratios)), repeat=count):
        # a segment that may not branch stays whole on its fastest processor
        holder, picks = space.costs.host, []
        for options, group, near in zip(space.options, groups, nearest, strict=True):
            at = space.holders.index(holder)
            pick = min((o for o in options if not o.branched), key=lambda o: o.ms[at, 0]), 0
            if group is not None and near is not None:
                scales = [near[i][c] for i, c in enumerate(choice)]
                index = int(np.ravel_multi_index(scales, [len(c) for c in group.candidates]))
                pick = (group, index) if group.allowed[at, index] else pick
            holder = pick[0].holder(space.costs.host)
            picks.append(pick)
        result = SearchResult.unproved(space, picks, len(ratios) ** count)
        if totals.low <= result.macs <= totals.high and result.n_meet >= totals.n_meet and (best is None or result.ms < best.ms):
            best = result
    return best


def _nearest(group: SegmentOptions, branch: int, depth: float, width: float) -> int:
    """Return the index of a branch's candidate whose ratios are nearest to `depth` and `width`."""
    segment, costs = group.segment, group.candidates[branch]
    return min(range(len(costs)), key=lambda n: abs(costs[n].depth / segment.depth - depth) + abs(costs[n].width / segment.width - width))
