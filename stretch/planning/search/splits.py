"""Where the bands of a run may be divided: few of many places, and where they are tried.

Where there are many rows, places are spread evenly; between these a band's time is nearly a straight line, so those
at which the slowest band would be fastest follow by interpolation, and are offered with their neighbours.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, pairwise, permutations, product

import numpy as np
from numpy.typing import NDArray

from stretch.planning.cost.branch import Floats

#: Rows behind which the bands end, the last one left out.
Split = tuple[int, ...]

#: Every place is offered up to so many rows, by the number of bands; with more bands, none but a grid.
EVERY = {2: 17, 3: 8}
#: Places of the grid, by the number of bands.
GRID = {2: 8, 3: 5}
#: The same for more bands.
FEWEST = 4
#: Places by interpolation, for each holder.
BEST = 3


def coarse(rows: int, bands: int) -> list[Split]:
    """Places to begin with."""
    if rows <= EVERY.get(bands, 0):
        places = list(range(1, rows))
    else:
        count = GRID.get(bands, FEWEST)
        places = sorted({round(rows * (2 * i + 1) / (2 * count)) for i in range(count)} - {0, rows})
    return list(combinations(places, bands - 1))


def finer(rows: int, bands: int, tried: Sequence[Split], times: Sequence[Floats]) -> list[Split]:
    """Places at which the slowest of two or three bands is expected to be fastest, which were not tried yet."""
    if rows <= EVERY.get(bands, 0) or bands > max(EVERY):
        return []
    every, heights = _between_tried(rows, bands, tuple(tried))
    members: set[Split] = set()
    for time in times:
        slowest = np.max([_between(heights[i], *_line(rows, tried, time[i], i)) for i in range(bands)], axis=0)
        best = [tuple(split) for split in every[np.argsort(slowest, kind="stable")[:BEST]].tolist()]
        members.update(best, _around(best[0], rows))
    return sorted(members - set(tried))


@lru_cache(maxsize=1024)
def _between_tried(rows: int, bands: int, tried: tuple[Split, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places between those tried whose bands are no shorter (places × edges), and the heights of their bands (bands × places)."""
    first, last = min(split[0] for split in tried), max(split[-1] for split in tried)
    every = np.array(list(combinations(range(first, last + 1), bands - 1)))
    edges = np.concatenate([np.zeros((len(every), 1), int), every, np.full((len(every), 1), rows)], axis=1)
    shortest = min(b - a for split in tried for a, b in zip((0, *split), (*split, rows), strict=True))
    heights = np.diff(edges, axis=1)
    kept = (heights >= shortest).all(axis=1)
    return every[kept], np.ascontiguousarray(heights[kept].T)


def _line(rows: int, tried: Sequence[Split], ms: Floats, band: int) -> tuple[list[int], list[float]]:
    """Heights of one band among the places tried, and its mean time at each."""
    at: dict[int, list[float]] = {}
    for split, time in zip(tried, ms.tolist(), strict=True):
        edges = (0, *split, rows)
        at.setdefault(edges[band + 1] - edges[band], []).append(time)
    heights = sorted(at)
    return heights, [sum(at[h]) / len(at[h]) for h in heights]


def _between(wanted: NDArray[np.int64], heights: Sequence[int], ms: Sequence[float]) -> Floats:
    """Times at some heights on straight lines between those that are known; the first and the last line go on beyond."""
    times = np.interp(wanted, heights, ms)
    if len(heights) > 1:
        for a, b, beyond in ((0, 1, wanted < heights[0]), (-1, -2, wanted > heights[-1])):
            slope = (ms[b] - ms[a]) / (heights[b] - heights[a])
            times[beyond] = ms[a] + (wanted[beyond] - heights[a]) * slope
    return times


def _around(split: Sequence[int], rows: int) -> list[Split]:
    """A place's neighbours, one row off."""
    near = (tuple(a + b for a, b in zip(split, off, strict=True)) for off in product((-1, 0, 1), repeat=len(split)))
    return [item for item in near if all(a < b for a, b in zip((0, *item), (*item, rows), strict=True))]


def orders(processors: Sequence[str]) -> list[tuple[str, ...]]:
    """Orders of processors from the uppermost band to the lowest; upside down costs the same, so of three each is once in the middle."""
    if len(processors) != 3:
        return [tuple(processors)]
    return [order for order in permutations(processors) if processors.index(order[0]) < processors.index(order[-1])]


def bands(rows: int, split: Split) -> list[tuple[int, int]]:
    """First row of each band, and the one behind its last."""
    edges = (0, *split, rows)
    return list(pairwise(edges))
