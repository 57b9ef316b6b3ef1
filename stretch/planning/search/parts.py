"""Search layers for exactly divided segments: parts of stages, and all options to run them.

An option with scaled copies spans all parts of its stage. `stretch.planning.divisions` adds divisions of parts and of runs of parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, groupby, pairwise, permutations, product
from math import prod
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from predictors.host import kind_of as family_of
from predictors.joins import JoinKind
from predictors.predictor import KernelsTime
from predictors.shapes import Attr, Shape
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import BranchCost, Floats, SegmentOptions
from stretch.planning.design.branch_design import SegmentDesign, Share, of_kinds
from stretch.planning.network.segments import Segment, clean_cuts, cut_segment, divide
from stretch.planning.search.space import DesignSpace, LazyOptions

K = TypeVar("K")

#: Content of a part without names: equal for parts with equal operators.
Structure = tuple[tuple[str, tuple[int, ...], tuple[tuple[str, Attr], ...], Shape], ...]


class PartSpace:
    """Parts of the stages, or requested segments, of a space, and the options of some `kinds` for them.

    With `single`, parts are as small as kernels allow, and each is divided separately.
    """

    def __init__(
        self,
        graph: OpGraph,
        space: DesignSpace,
        kinds: Collection[str] = ("rows",),
        *,
        divided: bool = True,
        merged: bool = True,
        single: bool = False,
    ) -> None:
        self.graph, self.space, self.merged, self.single, self.divisions = graph, space, merged, single, of_kinds(kinds)
        clean = clean_cuts(graph, [space.costs.predictor.kernels(graph, name) for name in space.processors])
        vectors = any(division.vectors for division in self.divisions)
        self.by_stage = [divide(graph, stage, clean, single, vectors) if divided else [stage] for stage in space.segments]
        self.parts: list[Segment] = [part for parts in self.by_stage for part in parts]
        self.stage = [i for i, parts in enumerate(self.by_stage) for _ in parts]
        self.undivided = [[space.undivided(part, p, part.in_width) for p in space.processors] for part in self.parts]

    def mixed(self, droppable: Collection[str] = ()) -> DesignSpace:
        """Return the space with more options: divided parts, and parts without blocks whose output tensors are in `droppable`."""
        first_part = [self.stage.index(i) for i in range(len(self.by_stage))] + [len(self.parts)]
        options: list[list[SegmentOptions]] = [list(undivided) for undivided in self.undivided]
        offers: list[list[LazyOptions]] = [[] for _ in self.parts]
        for stage, (group, offered) in enumerate(zip(self.space.built, self.space.offers, strict=True)):
            at = first_part[stage]
            options[at] += [replace(o, span=first_part[stage + o.span] - at) for o in group if o.branched]
            offers[at] += [replace(offer, span=first_part[stage + offer.span] - at) for offer in offered]
        for division in self.divisions:
            for first, segment_options in division.candidates(self):
                options[first].append(segment_options)
        for first, last in combinations(range(len(self.parts)), 2) if droppable else ():
            if self.stage[first] == self.stage[last] and self.space.segments[self.stage[first]].name not in self.space.kept:
                segment = self.segment(first, last)
                dropped = tuple(n for n, block in enumerate(segment.blocks) if block.removable)
                # shorter runs are the options with fewer missing blocks
                if dropped and all(segment.blocks[n].end in droppable for n in dropped):
                    without = (self.space.undivided(segment, p, segment.in_width, dropped) for p in self.space.processors)
                    options[first] += [replace(o, span=last - first + 1) for o in without]
        arriving = tuple(part.in_width for part in self.parts)
        return replace(self.space, segments=tuple(self.parts), arriving=arriving, built=options, offers=offers)

    def pieces(self) -> Iterator[tuple[Segment, int, int, list[float]]]:
        """Yield every part, and every stage of several parts, as segment, first part, last part and time on each single processor, ms."""
        for at, part in enumerate(self.parts):
            stage, parts = self.space.segments[self.stage[at]], self.by_stage[self.stage[at]]
            has_many_parts = len(parts) > 1 and part is parts[0] and not self.single
            for segment, last in [(part, at), *([(stage, at + len(parts) - 1)] if has_many_parts else [])]:
                yield segment, at, last, self.alone_ms(at, last)

    def run_options(self, options: SegmentOptions, first: int, last: int) -> SegmentOptions:
        """Return options for a run of parts, with its span and the rules applied."""
        return self.space.apply_rules(replace(options, span=last - first + 1, alone_ms=min(self.alone_ms(first, last))))

    def alone_ms(self, first: int, last: int) -> list[float]:
        """Return the time of a run of parts on each single processor, ms."""
        ms: list[float] = self._alone_ms[:, first, last].tolist()
        return ms

    @cached_property
    def _alone_ms(self) -> Floats:
        """Time of every run on each single processor, ms (processors × first part × last part)."""
        ms = np.array([[options.slowest_ms[0] for options in undivided] for undivided in self.undivided]).T[:, None]
        return np.cumsum(np.triu(np.repeat(ms, len(self.parts), axis=1)), axis=2)

    def segment(self, first: int, last: int) -> Segment:
        """Return a run of parts as a segment."""
        run = self.parts[first : last + 1]
        return run[0] if len(run) == 1 else cut_segment(self.graph, self.name(first, last), run[0].start, run[-1].end)

    def name(self, first: int, last: int) -> str:
        """Return the name of a run: its stages if it covers them, such as ``s2`` or ``s2_to_s4``, else its first and last part."""
        a, b = self.stage[first], self.stage[last]
        complete = self.by_stage[a][0] is self.parts[first] and self.by_stage[b][-1] is self.parts[last]
        ends = [self.space.segments[i].name for i in (a, b)] if complete else [self.parts[i].name for i in (first, last)]
        return "_to_".join(dict.fromkeys(ends))


def with_exact_kinds(graph: OpGraph, config: PlanConfig, space: DesignSpace, droppable: Collection[str] = ()) -> DesignSpace:
    """Return the space with more options: exactly divided parts and runs of parts, and parts without droppable blocks."""
    kinds = config.planned_kinds
    parts = PartSpace(graph, space, kinds, divided=not config.meet, merged=config.merge != "never")
    mixed = parts.mixed(droppable)
    if config.exact and config.n_meet and not any(o.branched for options in mixed.built for o in options):
        reason = next((f": {obstacle}" for division in parts.divisions if (obstacle := division.obstacle(graph))), "")
        problem = f"`{graph.name}` has no segment whose division by {' or '.join(kinds)} might pay on these processors{reason}"
        raise InfeasibleError(problem, "plan for other processors, or another model")
    return mixed


def without_stretched(space: DesignSpace) -> DesignSpace:
    """Return the designs of a space that compute exactly the original's output."""
    return space.replace_options([[o for o in options if o.same] for options in space.built], thinned=False)


def structure(graph: OpGraph) -> Structure:
    """Return the content of a part without names, which is equal for parts with equal operators."""
    return tuple(
        (op.kind, tuple(graph.position[name] for name in op.inputs), tuple(sorted(op.attrs.items())), op.shape) for op in graph.ops
    )


def part_costs(space: DesignSpace, processor: str, graphs: Mapping[K, OpGraph], shares: Mapping[K, Share]) -> dict[K, BranchCost]:
    """Return the costs of shares of a segment; each branch reads the whole input."""
    costs, result = space.costs, {}
    launched = {key: costs.predictor.kernels(graph, processor) for key, graph in graphs.items()}
    # one call for all kernels: a fit's trees take little longer for many kernels than for one
    costs.kernels_time([kernel for kernels in launched.values() for kernel in kernels], processor)
    for key, kernels in launched.items():
        graph, time, peak = graphs[key], costs.kernels_time(kernels, processor), costs.peak_bytes(kernels, processor)
        sums = sum(kernel.macs for kernel in kernels), graph.params, *time, peak
        ends = prod(graph.input.shape), prod(graph.by_name[graph.output].shape)
        result[key] = BranchCost(processor, 0, 0, "none", *sums, shares[key], *ends)
    return result


def branch_times(space: DesignSpace, rows: Sequence[Sequence[BranchCost]]) -> tuple[Floats, Floats]:
    """Return the compute times and transfer times of several rows of branches, by holder of the input (holders × branches × rows), ms."""
    costs, names = space.costs, [branch.processor for branch in rows[0]]
    slowing = [costs.slowing(name, {*names} - {name}) for name in names]
    times = np.array([[(branch.ms, branch.arithmetic_ms, branch.memory_ms) for branch in row] for row in rows]).T
    loaded_ms = [KernelsTime(*column).slowed(factors) for column, factors in zip(times.swapaxes(0, 1), slowing, strict=True)]
    computed = np.array([loaded_ms] * len(space.holders), float)
    moved = np.empty_like(computed)
    for i, name in enumerate(names):
        reads, writes = np.array([(row[i].reads, row[i].writes) for row in rows]).T
        cut, leaving = np.array([row[i].cut.slowed(slowing[i]) for row in rows]), costs.transfer(name, costs.host, writes)
        for at, holder in enumerate(space.holders):
            moved[at, i] = leaving + costs.transfer(holder, name, reads)
            if family_of(holder) == family_of(name):
                # the whole tensor is already there, so the branch copies the rows that it reads
                computed[at, i] += cut
    return computed, moved


def part_options(
    space: DesignSpace,
    segment: Segment,
    kind: JoinKind,
    rows: Sequence[Sequence[BranchCost]],
    division: str,
    times: tuple[Floats, Floats] | None = None,
) -> SegmentOptions:
    """Return the options of a segment on one sequence of processors, one per row of branches; `times` come from `branch_times`."""
    computed, moved = times or branch_times(space, rows)
    names = [branch.processor for branch in rows[0]]
    join = space.costs.join(segment, kind, segment.width, len(names))
    return SegmentOptions(
        segment,
        kind,
        tuple(zip(*rows, strict=True)),
        macs=np.full(len(rows), segment.graph.macs),
        params=np.full(len(rows), segment.graph.params),
        ms=(computed + moved).max(axis=1) + join,
        exchange_ms=moved.max(axis=1) + join,
        slowest_ms=computed.max(axis=(0, 1)),
        fastest_ms=computed.min(axis=(0, 1)),
        peak_bytes=np.array([sum(b.peak_bytes for b in row) for row in rows]),
        busy=lambda: {name: computed[:, i] for i, name in enumerate(names)},
        division=division,
    )


# Neighbouring stages as one segment, with fewer meeting points: a transfer costs about the same after a short stage as after a long one, so
# equation 4 of paper 003 rules out short stages. Several stages in one segment share one transfer. Their units are dropped
# evenly and their widths follow one ratio.


def merge_stages(graph: OpGraph, space: DesignSpace) -> DesignSpace:
    """Return the space with more options: runs of consecutive stages, merged into one segment."""
    stages = space.segments
    offers: list[list[LazyOptions]] = [[] for _ in stages]
    for first, last in combinations(range(len(stages)), 2):
        run = stages[first : last + 1]
        if not all(stage.branchable and stage.name not in space.kept for stage in run) or any(stage.tapped for stage in run[:-1]):
            continue
        segment = cut_segment(graph, f"{run[0].name}_to_{run[-1].name}", run[0].start, run[-1].end)
        offers[first] += space.stretched_offers(segment, first, len(run))
    return space.add_runs(offers)


# Consecutive parts on one processor become one segment, so that their tensors stay on the processor.
def merge_neighbours(
    graph: OpGraph, stages: Sequence[Segment], parts: Sequence[SegmentDesign], *, across: bool = False
) -> tuple[SegmentDesign, ...]:
    """Return segment designs with neighbouring whole segments on one processor merged.

    Args:
        across: Merge across the ends of stages too, unless a side reads the tensor in between.
    """
    ends = [stage for stage in stages if stage.tapped or not across]

    def place(part: SegmentDesign) -> tuple[int, str] | str:
        if not part.whole:
            return part.name
        return sum(graph.position[stage.end] < graph.position[part.end] for stage in ends), part.branches[0].processor

    result: list[SegmentDesign] = []
    for _, group in groupby(parts, key=place):
        run = list(group)
        if len(run) == 1:
            result += run
            continue
        stage = next((stage for stage in stages if (stage.start, stage.end) == (run[0].start, run[-1].end)), None)
        name = stage.name if stage else f"{run[0].name}_to_{run[-1].name}"
        segment = cut_segment(graph, name, run[0].start, run[-1].end)
        pieces = [(part.missing, cut_segment(graph, part.name, part.start, part.end)) for part in run]
        absent = {piece.blocks[n].end for numbers, piece in pieces for n in numbers}
        dropped = tuple(n for n, block in enumerate(segment.blocks) if block.end in absent)
        branch = replace(run[0].branches[0], depth=segment.depth - len(dropped), width=segment.width, dropped=dropped)
        result.append(SegmentDesign(name, segment.start, segment.end, (branch,), run[0].join))
    return tuple(result)


# Split positions of bands of rows, or ranges of channels. For many rows, first positions are spaced evenly. Between these a band's
# time is nearly linear, so interpolation yields the positions with the fastest slowest band, which are tried together with their
# neighbours.

#: Exclusive end row of each band but the last.
Split = tuple[int, ...]

#: Maximum number of rows for which every split is tried, by the number of bands; with more bands, only a grid is tried.
MAX_ENUMERATED_ROWS = {2: 17, 3: 8}
#: Positions of the grid, by the number of bands, and for more bands.
GRID_SIZES, SMALLEST_GRID = {2: 8, 3: 5}, 4
#: Splits found by interpolation, per holder.
INTERPOLATED_SPLITS = 3


def coarse_splits(rows: int, bands: int) -> list[Split]:
    """Return the splits to try first."""
    if rows <= MAX_ENUMERATED_ROWS.get(bands, 0):
        positions = list(range(1, rows))
    else:
        count = GRID_SIZES.get(bands, SMALLEST_GRID)
        positions = sorted({round(rows * (2 * i + 1) / (2 * count)) for i in range(count)} - {0, rows})
    return list(combinations(positions, bands - 1))


def refined_splits(rows: int, bands: int, tried: Sequence[Split], times: Sequence[Floats]) -> list[Split]:
    """Return untried splits at which the slowest of two or three bands is expected to be fastest; `times` are per holder."""
    if rows <= MAX_ENUMERATED_ROWS.get(bands, 0) or bands > max(MAX_ENUMERATED_ROWS):
        return []
    splits, heights, tried_heights = _splits_between(rows, bands, tuple(tried))
    candidates: set[Split] = set()
    for time in times:
        slowest = np.max([_interpolated(heights[i], *tried_heights[i], time[i]) for i in range(bands)], axis=0)
        best = [tuple(split) for split in splits[np.argsort(slowest, kind="stable")[:INTERPOLATED_SPLITS]].tolist()]
        # the best one and its neighbours, one row off
        neighbours = (tuple(a + b for a, b in zip(best[0], offsets, strict=True)) for offsets in product((-1, 0, 1), repeat=bands - 1))
        candidates.update(best, (item for item in neighbours if all(a < b for a, b in pairwise((0, *item, rows)))))
    return sorted(candidates - set(tried))


@lru_cache(maxsize=1024)
def _splits_between(
    rows: int, bands: int, tried: tuple[Split, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """Return splits between tried ones with bands at least as high (splits × edges), their heights (bands × splits), and each band's tried heights."""
    first, last = min(split[0] for split in tried), max(split[-1] for split in tried)
    splits = np.array(list(combinations(range(first, last + 1), bands - 1)))
    edges = np.concatenate([np.zeros((len(splits), 1), int), splits, np.full((len(splits), 1), rows)], axis=1)
    shortest = min(b - a for split in tried for a, b in zip((0, *split), (*split, rows), strict=True))
    heights = np.diff(edges, axis=1)
    tall_enough = (heights >= shortest).all(axis=1)
    tried_heights = [np.unique(column, return_inverse=True) for column in np.diff([(0, *split, rows) for split in tried]).T]
    return splits[tall_enough], np.ascontiguousarray(heights[tall_enough].T), tried_heights


def _interpolated(heights: NDArray[np.int64], tried_heights: NDArray[np.int64], inverse: NDArray[np.int64], ms: Floats) -> Floats:
    """Return the times of a band at some heights, linear between the mean times at tried heights, and extrapolated beyond them."""
    mean = np.bincount(inverse, ms) / np.bincount(inverse)
    times = np.interp(heights, tried_heights, mean)
    if len(tried_heights) > 1:
        for a, b, beyond in ((0, 1, heights < tried_heights[0]), (-1, -2, heights > tried_heights[-1])):
            times[beyond] = mean[a] + (heights[beyond] - tried_heights[a]) * ((mean[b] - mean[a]) / (tried_heights[b] - tried_heights[a]))
    return times


def band_ranges(rows: int, split: Split) -> list[tuple[int, int]]:
    """Return the first row and the exclusive end row of each band."""
    return list(pairwise((0, *split, rows)))


#: The branches at each split.
SplitBranches = dict[Split, list[BranchCost]]
#: Maximum time of branches at the best first split, relative to the undivided part on the fastest processor.
MAX_SLOWDOWN = 1.1


@dataclass(frozen=True, eq=False)
class Divisible:
    """A part, or a run of parts, that several processors may compute in ranges of rows or channels."""

    of: Any  # Subject of the division: for rows the first and last part, for channels the tensor.
    join: JoinKind  # Join of the branches.
    segment: Callable[[], Segment]  # Returns the segment that is divided.
    end: Segment  # A segment with the same end.
    in_elements: int  # Elements of the input tensor.
    alone_ms: Sequence[float]  # Time of the undivided part on each processor of the space.
    after_ms: float = 0.0  # Time that the host computes after the branches have met.
    symmetric: bool = True  # Whether the reverse order of processors costs the same; else only the first processor matters.


@dataclass(frozen=True)
class _Evaluated:
    """Times of one part on a sequence of processors at several splits."""

    divisible: Divisible
    order: tuple[str, ...]
    rows: SplitBranches
    computed: Floats  # Compute times, and below the transfer times, of `branch_times`.
    moved: Floats


class RangeCandidates(ABC):
    """Divisions of parts by ranges, on every sequence of processors that may pay."""

    keep_all: ClassVar[bool] = False  # Whether every tried division counts if none pays.

    def __init__(self, space: DesignSpace, division: str) -> None:
        self.space, self.division = space, division

    @abstractmethod
    def units(self, divisible: Divisible, order: Sequence[str]) -> int:
        """Return the number of rows, or steps of channels, that a part may be divided into."""

    @abstractmethod
    def branches(self, order: Sequence[str], requests: Sequence[tuple[Divisible, Sequence[Split]]]) -> list[SplitBranches]:
        """Return the branches of several parts at their splits, without splits that leave a branch empty."""

    def options(self, divisibles: Sequence[Divisible]) -> list[tuple[Divisible, SegmentOptions]]:
        """Return the options of each part on each sequence of processors; more branches are only tried if fewer pay."""
        processors, result = self.space.processors, []
        for count in range(2, len(processors) + 1):
            tried: list[_Evaluated] = []
            for order in (order for subset in combinations(processors, count) for order in permutations(subset)):
                subset = [divisible for divisible in divisibles if is_distinct_order(order, processors, upright=divisible.symmetric)]
                requests = [(divisible, coarse_splits(self.units(divisible, order), count)) for divisible in subset]
                tried += self._evaluate(order, zip(subset, self.branches(order, requests), strict=True))
            promising = [item for item in tried if self._pays(item)] or (tried if self.keep_all else [])
            groups = groupby(promising, key=lambda item: item.order)
            refined = [item for order, group in groups for item in self._refine(order, list(group))]
            refined.sort(key=lambda item: divisibles.index(item.divisible))
            divisibles = list(dict.fromkeys(item.divisible for item in refined))
            for item in refined:
                divisible, times, rows = item.divisible, (item.computed, item.moved), list(item.rows.values())
                options = part_options(self.space, divisible.segment(), divisible.join, rows, self.division, times)
                result.append((divisible, replace(options, alone_ms=min(divisible.alone_ms))))
        return result

    def _evaluate(self, order: tuple[str, ...], divisibles: Iterable[tuple[Divisible, SplitBranches]]) -> list[_Evaluated]:
        candidates = [(divisible, rows) for divisible, rows in divisibles if rows]
        if not candidates:
            return []
        times = branch_times(self.space, [row for _, rows in candidates for row in rows.values()])
        ends = np.cumsum([len(rows) for _, rows in candidates])[:-1]
        split = zip(candidates, *(np.split(item, ends, axis=2) for item in times), strict=True)
        return [_Evaluated(divisible, order, rows, computed, moved) for (divisible, rows), computed, moved in split]

    def _refine(self, order: tuple[str, ...], tried: Sequence[_Evaluated]) -> list[_Evaluated]:
        """Return the tried divisions with more splits, between the tried ones."""
        tried_splits = [
            (self.units(item.divisible, order), len(order), list(item.rows), list(item.computed + item.moved)) for item in tried
        ]
        added = self.branches(order, [(item.divisible, refined_splits(*splits)) for item, splits in zip(tried, tried_splits, strict=True)])
        return self._evaluate(order, [(item.divisible, {**item.rows, **rows}) for item, rows in zip(tried, added, strict=True)])

    def _pays(self, tried: _Evaluated) -> bool:
        """Return whether, for some holder, the branches take at most about as long as the fastest single processor."""
        divisible, costs = tried.divisible, self.space.costs
        join = costs.join(divisible.end, divisible.join, divisible.end.width, len(tried.order)) + divisible.after_ms
        written = prod(divisible.end.graph.by_name[divisible.end.end].shape)
        alone = [(p, ms + costs.transfer(p, costs.host, written)) for p, ms in zip(self.space.processors, divisible.alone_ms, strict=True)]
        fastest = (tried.computed + tried.moved).max(axis=1).min(axis=1) + join
        return any(
            ms <= MAX_SLOWDOWN * min(costs.transfer(holder, p, divisible.in_elements) + alone_ms for p, alone_ms in alone)
            for holder, ms in zip(self.space.holders, fastest.tolist(), strict=True)
        )


def is_distinct_order(order: Sequence[str], processors: Sequence[str], *, upright: bool) -> bool:
    """Return whether an order represents all orders of equal cost; with `upright`, the reverse order costs the same."""
    indices = [processors.index(name) for name in order]
    if not upright:
        return indices[1:] == sorted(indices[1:])
    return indices[0] < indices[-1] if len(order) == 3 else indices == sorted(indices)
