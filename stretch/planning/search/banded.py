"""Designs whose segments may be split by rows, by channels or along their own paths, as options beside those of a space.

The layers of the search become parts (`stretch.planning.network.segments`): a stage
in scaled copies spans the parts of the stage, and any run of parts may be
computed in bands, on every subset of the processors. A run whose halves compute
more than `MAX_HALO` twice is not offered, nor one that takes more than `WORTH`
times what the fastest processor takes for it alone wherever it was divided.
"""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, compress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import InfeasibleError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.rows import height
from stretch.planning.config import PlanConfig
from stretch.planning.cost.bands import BandCosts, BandTimes
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.elision import cuts_itself
from stretch.planning.cost.makespan import BranchTime, schedule, subgraph_times
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.design.branch_design import BranchScale
from stretch.planning.design.subgraphs import subgraph_ends, subgraphs_of
from stretch.planning.messages import Message, OptionName
from stretch.planning.network.segments import Segment, clean_cuts, cut_segment, divide, mixing
from stretch.planning.network.tasks import TaskGraph, find_tasks
from stretch.planning.own_options import SINGLE
from stretch.planning.search.channelled import ChannelWays
from stretch.planning.search.lazy_options import LazyOptions
from stretch.planning.search.pathed import path_ways
from stretch.planning.search.placing import TIE, Placed, Problem, place
from stretch.planning.search.space import DesignSpace
from stretch.planning.search.splits import Split, bands, coarse, finer, orders

# Designs in which portions of a segment run on several processors, placed along its own graph.
#
# For each processor that may hold what arrives, and each that may write the end,
# one placement is searched for (`stretch.planning.search.placing`). Tasks that
# follow each other on one processor become portions, as few as cost no time, and
# the portions' own graphs say what the placement takes: the search's sums over
# tasks only choose it.

#: More tasks than this are not placed: no network has so many, and the search would take too long.
MOST_TASKS = 2000


def placed_ways(space: DesignSpace, segment: Segment, alone_ms: Sequence[float]) -> list[SegmentOptions]:
    """Ways to compute a segment in portions on several processors; none where that is not faster than one of them alone."""
    costs = space.costs
    launched = [costs.predictor.kernels(segment.graph, processor) for processor in space.processors]
    tasks = find_tasks(segment.graph, launched)
    if not tasks.parallel or len(tasks) > MOST_TASKS:
        return []
    moving = _Moving(costs, segment)
    ms = task_times(tasks, launched, space)
    result: dict[tuple[tuple[str, tuple[str, ...]], ...], SegmentOptions] = {}
    for holder in space.holders:
        for end in range(len(space.processors)):
            # what arrives may be held by a host that computes nothing: then it has a number of its own
            names = (*space.processors, *(name for name in space.holders if name not in space.processors))
            problem = Problem(tasks, ms, lambda tensor, a, b, names=names: moving.ms(tensor, names[a], names[b]), names.index(holder), end)
            placed = place(problem)
            scales = portions(problem, placed, space, segment)
            key = tuple((scale.processor, scale.ends or ()) for scale in scales)
            if len({scale.processor for scale in scales}) > 1 and key not in result:
                result[key] = _ways(space, segment, scales, alone_ms, moving)
    return [options for options in result.values() if np.isfinite(options.ms).any()]


class _Moving:
    """Transfers of a segment's tensors, each worked out once."""

    def __init__(self, costs: Costs, segment: Segment) -> None:
        self._costs, self._graph = costs, segment.graph
        self._known: dict[tuple[int, str, str], float] = {}

    def ms(self, tensor: str, source: str, target: str) -> float:
        key = (prod(self._graph.by_name[tensor].shape), source, target)
        if key not in self._known:
            self._known[key] = self._costs.transfer(source, target, key[0])
        return self._known[key]


def task_times(tasks: TaskGraph, launched: Sequence[Sequence[Kernel]], space: DesignSpace) -> np.ndarray:
    """Time of each task on each processor beside others, ms (tasks × processors)."""
    of = {name: number for number, ops in enumerate(tasks.ops) for name in ops}
    ms = np.zeros((len(tasks), len(space.processors)))
    for column, (processor, kernels) in enumerate(zip(space.processors, launched, strict=True)):
        # at once, since a fit's trees are walked for many kernels in little more time than for one
        space.costs.kernels_time(kernels, processor)
        for kernel in kernels:
            ms[of[kernel.ops[0]], column] += space.costs.kernels_time([kernel], processor).contended_ms
    return ms


@dataclass
class _Group:
    """Tasks that one processor computes one after the other."""

    place: int
    tasks: list[int]
    closed: bool = False


def portions(problem: Problem, placed: Placed, space: DesignSpace, segment: Segment) -> list[BranchScale]:
    """The portions of a placement, in an order in which they can run.

    At first a portion begins where a task reads something of another processor, and ends where one hands something to
    another, so that nothing waits longer than its task would. Then neighbours are merged as long as that costs no time.
    """
    tasks, processors = problem.tasks, placed.processors
    scheduled = schedule(problem.jobs([(task,) for task in placed.order], processors))
    begun = [placed.order[i] for i in sorted(range(len(tasks)), key=lambda i: (scheduled.starts[i], scheduled.ends[i], i))]
    groups: list[_Group] = []
    open_on: dict[int, _Group] = {}
    for task in _ordered(tasks, begun):
        on = processors[task]
        group = open_on.get(on)
        if group is None or group.closed or any(processors[source] != on for source in tasks.sources[task]):
            group = open_on[on] = _Group(on, [])
            groups.append(group)
        group.tasks.append(task)
        group.closed = any(processors[reader] != on for reader in tasks.readers[task])
    merged = _merged(problem, [group.tasks for group in groups], processors)
    ends = subgraph_ends(segment.graph, [{name for task in group for name in tasks.ops[task]} for group in merged])
    names = [space.processors[processors[group[0]]] for group in merged]
    return [
        BranchScale(name, segment.depth, segment.width, align=space.costs.align(name), ends=end)
        for name, end in zip(names, ends, strict=True)
    ]


def _ordered(tasks: TaskGraph, preferred: Sequence[int]) -> list[int]:
    """Tasks in an order in which they can run, as near to the preferred one as that allows."""
    there: set[int] = set()
    ordered: list[int] = []
    left = list(preferred)
    while left:
        task = next(item for item in left if there.issuperset(tasks.sources[item]))
        left.remove(task)
        there.add(task)
        ordered.append(task)
    return ordered


def _merged(problem: Problem, groups: list[list[int]], processors: Sequence[int]) -> list[list[int]]:
    """Portions of which neighbours on one processor are one as long as that costs no time."""
    ms = schedule(problem.jobs(groups, processors)).ms
    at = 0
    while at < len(groups):
        after = next((i for i in range(at + 1, len(groups)) if processors[groups[i][0]] == processors[groups[at][0]]), None)
        if after is not None:
            other = _joined(problem, groups, at, after)
            if other is not None and (time := schedule(problem.jobs(other, processors)).ms) <= ms + TIE:
                groups, ms = other, time
                continue
        at += 1
    return groups


def _joined(problem: Problem, groups: list[list[int]], first: int, second: int) -> list[list[int]] | None:
    """Portions of which two are one, in an order in which they can run; None if there is none.

    What lies between them and waits for the first stays behind, what the second waits for goes before.
    """
    of = {task: number for number, group in enumerate(groups) for task in group}
    behind = {first}
    for number in range(first + 1, second):
        if any(of[source] in behind for task in groups[number] for source in problem.tasks.sources[task]):
            behind.add(number)
    needed = {of[source] for task in groups[second] for source in problem.tasks.sources[task]} - {first}
    if needed & behind:
        return None
    between = range(first + 1, second)
    before = [groups[i] for i in between if i not in behind]
    return [*groups[:first], *before, groups[first] + groups[second], *(groups[i] for i in between if i in behind), *groups[second + 1 :]]


def _ways(
    space: DesignSpace, segment: Segment, scales: Sequence[BranchScale], alone_ms: Sequence[float], moving: _Moving
) -> SegmentOptions:
    """One placement as an option; it takes endless time from a holder from which one processor alone is as fast."""
    costs = space.costs
    graphs = subgraphs_of(segment.graph, [segment.name] * len(scales), [scale.ends or () for scale in scales])
    runs = [subgraph_times(scales, graphs, {segment.start: holder}, costs) for holder in space.holders]
    ms = np.array([[max(item.start_ms + item.total_ms for item in run)] for run in runs])
    computed = [_computing(run) for run in runs]
    end = scales[-1].processor
    for i, holder in enumerate(space.holders):
        alone = min(
            moving.ms(segment.start, holder, processor) + time + moving.ms(segment.end, processor, end)
            for processor, time in zip(space.processors, alone_ms, strict=True)
        )
        if ms[i, 0] >= alone:
            ms[i, 0] = np.inf
    return SegmentOptions(
        segment,
        "placed",
        tuple((_cost(costs, segment, run, graph.params),) for run, graph in zip(runs[0], graphs, strict=True)),
        macs=np.array([segment.graph.macs]),
        params=np.array([segment.graph.params]),
        ms=ms,
        allowed=np.ones((len(space.holders), 1), bool),
        depth=np.ones(1),
        exchange_ms=np.array([[max(0.0, float(row[0]) - max(item.values()))] for row, item in zip(ms, computed, strict=True)]),
        slowest_ms=np.array([max(computed[0].values())]),
        fastest_ms=np.array([min(computed[0].values())]),
        peak_bytes=np.array([_peak_bytes(costs, runs[0])]),
        alone_ms=min(alone_ms),
        busy=lambda: {name: np.array([[item[name]] for item in computed]) for name in computed[0]},
    )


def _computing(run: Sequence[BranchTime]) -> dict[str, float]:
    """How long each processor computes beside the others, ms."""
    computing: dict[str, float] = {}
    for item in run:
        computing[item.scale.processor] = computing.get(item.scale.processor, 0.0) + item.ms + item.contention_ms
    return computing


def _cost(costs: Costs, segment: Segment, run: BranchTime, params: int) -> BranchCost:
    return BranchCost(
        run.scale.processor,
        segment.depth,
        segment.width,
        "none",
        run.macs,
        params,
        run.ms,
        run.ms + run.contention_ms,
        _peak(costs, run),
        ends=run.scale.ends,
    )


def _peak(costs: Costs, run: BranchTime) -> int:
    """Most bytes that a kernel of a portion reads and writes."""
    item = costs.item_bytes(run.scale.processor)
    return max(((kernel.kernel.cost.reads + kernel.kernel.cost.writes) * item for kernel in run.estimate.kernels), default=0)


def _peak_bytes(costs: Costs, run: Sequence[BranchTime]) -> int:
    """Bytes of the largest kernels that may run at once, one a processor."""
    largest: dict[str, int] = {}
    for item in run:
        largest[item.scale.processor] = max(largest.get(item.scale.processor, 0), _peak(costs, item))
    return sum(largest.values())


#: Multiply-accumulates that the halves of a run may do beyond those of the run, as a share of it.
MAX_HALO = 0.5
#: Times the run on the fastest processor that its bands may take at the best place tried first.
WORTH = 1.1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: First and last part.
_Run = tuple[int, int]


@dataclass(frozen=True)
class _Places:
    """Where a run may be divided into some number of bands."""

    splits: tuple[Split, ...]  # Rows behind which the bands end.
    bands: Ints  # Numbers of the bands (bands × places).


@dataclass(frozen=True)
class _Divided:
    """Runs in bands on one sequence of processors, each at several places: in the arrays those of one run after those of the other."""

    order: tuple[str, ...]  # Processors from the uppermost band to the lowest.
    runs: tuple[_Run, ...]
    places: tuple[_Places, ...]  # Of each run.

    @cached_property
    def bands(self) -> Ints:
        """Numbers of the bands (bands × places)."""
        return np.concatenate([item.bands for item in self.places], axis=1)

    @cached_property
    def counts(self) -> list[int]:
        """Places of each run."""
        return [len(item.splits) for item in self.places]

    @cached_property
    def begins(self) -> Ints:
        """Of each run, the first of its places."""
        return np.cumsum([0, *self.counts[:-1]])

    def each(self, values: Floats) -> list[Floats]:
        """The values of each run, of an array whose last axis are the places."""
        return np.split(values, self.begins[1:], axis=-1)


class _Bands(Sequence[BranchCost]):
    """What one band of a run costs, by the place where the run is divided; most are never asked for."""

    def __init__(self, cost: Callable[[int, int], BranchCost | None], rows: Sequence[tuple[int, int]]) -> None:
        self._cost, self._rows = cost, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        return self._cost(*self._rows[at])


class _Divisions:
    """Parts of networks, the same ones each time, so that what is built of them is found again."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, frozenset[str], bool, bool], tuple[Segment, list[Segment]]] = {}

    def parts(self, graph: OpGraph, stage: Segment, clean: frozenset[str], every: bool, vectors: bool) -> list[Segment]:
        """Those of a stage, as `divide` makes them."""
        key = (id(stage), clean, every, vectors)
        if key not in self._parts:
            self._parts[key] = stage, divide(graph, stage, clean, every=every, vectors=vectors)
        return self._parts[key][1]


class BandedSpace:
    """Makes of a space of stages one of parts, in which runs may be split by rows.

    Args:
        space: Designs of its stages, or of segments that meet where a request says.
        single: Whether parts are as small as kernels let them be, and each is divided by itself.
        vectors: Whether linear layers one after the other are parts of their own.
    """

    def __init__(
        self, graph: OpGraph, space: DesignSpace, *, divided: bool = True, merged: bool = True, single: bool = False, vectors: bool = False
    ) -> None:
        self.graph, self.space, self.merged, self.single = graph, space, merged, single
        costs = space.costs
        clean = clean_cuts(graph, [costs.predictor.kernels(graph, name) for name in space.processors])
        divisions = costs.built(_Divisions)
        key = (frozenset(clean), single, vectors)
        self.by_stage = [divisions.parts(graph, stage, *key) if divided else [stage] for stage in space.segments]
        self.parts: list[Segment] = [part for parts in self.by_stage for part in parts]
        self.stage = [i for i, parts in enumerate(self.by_stage) for _ in parts]
        self.bands = BandCosts(costs, self.parts)
        self._wholes = [[space.whole(part, p, part.in_width) for p in space.processors] for part in self.parts]
        self._joins: dict[tuple[int, int], float] = {}
        self._alone_ms: dict[int, Floats] = {}

    @property
    def runs(self) -> list[_Run]:
        """First and last part of every run that may be split by rows."""
        key = ("runs", self.single, self.merged or tuple(self.stage), tuple(part.tapped for part in self.parts))
        if key not in self.bands.bands.known:
            self.bands.bands.known[key] = self._runs()
        result: list[_Run] = self.bands.bands.known[key]
        return result

    def _runs(self) -> list[_Run]:
        runs = []
        for first in range(len(self.parts)):
            macs = 0
            for last in range(first, first + 1 if self.single else len(self.parts)):
                if not self.merged and self.stage[last] != self.stage[first]:
                    break
                macs += self.parts[last].graph.macs
                halo = self._halo(first, last, macs)
                if halo is None or halo > 2 * MAX_HALO:
                    # what follows reads still more rows
                    break
                if halo <= MAX_HALO:
                    runs.append((first, last))
                if self.parts[last].tapped:
                    break
        return runs

    def _halo(self, first: int, last: int, macs: int) -> float | None:
        """Share of a run that its halves compute twice; None where it has no halves."""
        shape = self.parts[last].graph.by_name[self.parts[last].end].shape
        rows = height(shape)
        if len(shape) != 4 or rows < 2:
            return None
        halves = self._places((first, last), ((rows // 2,),)).bands
        if not halves.size:
            return None
        return int(self.bands.bands.facts[halves, 0].sum()) / macs - 1 if macs else 0.0

    def mixed(self, kinds: Collection[str] = ("rows",)) -> DesignSpace:
        """The designs of the space and those whose segments are divided."""
        first_part = [self.stage.index(i) for i in range(len(self.by_stage))] + [len(self.parts)]
        options: list[list[SegmentOptions]] = [list(wholes) for wholes in self._wholes]
        offers: list[list[LazyOptions]] = [[] for _ in self.parts]
        for stage, (group, offered) in enumerate(zip(self.space.ready, self.space.offers, strict=True)):
            at = first_part[stage]
            options[at] += [replace(o, span=first_part[stage + o.span] - at) for o in group if o.branched]
            offers[at] += [replace(offer, span=first_part[stage + offer.span] - at) for offer in offered]
        added = {"rows": self._banded, "channels": self._channelled, "graph": self._pathed}
        for first, segment_options in (item for kind, offered in added.items() if kind in kinds for item in offered()):
            options[first].append(segment_options)
        other = copy(self.space)
        other.segments, other.options = tuple(self.parts), options
        other.arriving = tuple(part.in_width for part in self.parts)
        return other.with_offers(offers)

    def _pathed(self) -> list[tuple[int, SegmentOptions]]:
        """Every way to compute a part, or a stage of several, by paths of its own or in placed portions, by its first part."""
        pathed = []
        for at, part in enumerate(self.parts):
            stage, parts = self.space.segments[self.stage[at]], self.by_stage[self.stage[at]]
            pieces = [(part, 1)] + ([(stage, len(parts))] if len(parts) > 1 and part is parts[0] and not self.single else [])
            for segment, span in pieces:
                alone_ms = [self.alone_ms(at, at + span - 1, i) for i in range(len(self.space.processors))]
                for options in (*path_ways(self.space, segment), *placed_ways(self.space, segment, alone_ms)):
                    alone = replace(options, span=span, alone_ms=min(alone_ms))
                    pathed.append((at, replace(alone, allowed=self.space.allowed(alone))))
        return pathed

    def _channelled(self) -> list[tuple[int, SegmentOptions]]:
        """Every way to compute a part by channels, by its number."""
        options = ChannelWays(self.graph, self.space)
        processors = range(len(self.space.processors))
        return [
            (at, item) for at, part in enumerate(self.parts) for item in options.of(part, [self.alone_ms(at, at, i) for i in processors])
        ]

    def _banded(self) -> list[tuple[int, SegmentOptions]]:
        """Every way to compute a run in bands, by its first part."""
        banded: list[tuple[int, SegmentOptions]] = []
        runs = self.runs
        for count in range(2, len(self.space.processors) + 1):
            tall = {run: places for run in runs if count <= self.bands.rows(run[1]) if (places := self._coarse(run, count)).splits}
            if not tall:
                break
            every = [order for subset in combinations(self.space.processors, count) for order in orders(subset)]
            tried = [_Divided(order, tuple(tall), tuple(tall.values())) for order in every]
            worth = [self._worth(item) for item in tried]
            if not any(item.runs for item in worth):
                worth = tried
            options = [dict(zip(item.runs, self._ways(self._refined(item)), strict=True)) for item in worth if item.runs]
            banded += [(run[0], some[run]) for run in tall for some in options if run in some]
            # what does not pay in two bands does not in more, which compute more twice
            runs = [run for run in tall if any(run in some for some in options)]
        return banded

    def _places(self, run: _Run, splits: Sequence[Split]) -> _Places:
        """Some places where a run may be divided; those that leave an operator without rows are left out."""
        rows, number = self.bands.rows(run[1]), self.bands.bands.number
        numbers = [[number(*run, *band) for band in bands(rows, split)] for split in splits]
        able = [(split, some) for split, some in zip(splits, numbers, strict=True) if None not in some]
        return _Places(tuple(split for split, _ in able), np.array([some for _, some in able], np.int64).T)

    def _coarse(self, run: _Run, count: int) -> _Places:
        """Places to begin with."""
        known, key = self.bands.bands.known, ("places", run, count)
        if key not in known:
            known[key] = self._places(run, coarse(self.bands.rows(run[1]), count))
        result: _Places = known[key]
        return result

    def _worth(self, divided: _Divided) -> _Divided:
        """The runs whose bands take about as long as the fastest processor alone, or less, from one of the holders."""
        costs, last = self.space.costs, [run[1] for run in divided.runs]
        join = np.array([self._join_ms(at, len(divided.order)) for at in last])
        ends = [self.parts[at].graph.by_name[self.parts[at].end].shape for at in last]
        read = np.array([prod(self.parts[first].graph.input.shape) for first, _ in divided.runs])
        written = np.array([prod(shape) for shape in ends])
        leaving = [costs.transfers(p, costs.host, written) for p in self.space.processors]
        kept = np.zeros(len(last), bool)
        for holder, total in zip(self.space.holders, np.add(*self._times(divided)), strict=True):
            entering = [costs.transfers(holder, p, read) for p in self.space.processors]
            alone = [
                into + self._alone(i)[tuple(zip(*divided.runs, strict=True))] + out
                for i, (into, out) in enumerate(zip(entering, leaving, strict=True))
            ]
            kept |= np.minimum.reduceat(total.max(axis=0), divided.begins) + join <= WORTH * np.min(alone, axis=0)
        return _Divided(divided.order, *(tuple(compress(some, kept)) for some in (divided.runs, divided.places)))

    def _refined(self, tried: _Divided) -> _Divided:
        """The same runs with more places, between those tried."""
        refined = []
        for run, places, times in zip(tried.runs, tried.places, tried.each(np.add(*self._times(tried))), strict=True):
            more = self._places(run, finer(self.bands.rows(run[1]), len(tried.order), places.splits, list(times)))
            refined.append(
                _Places(places.splits + more.splits, np.concatenate([places.bands, more.bands], axis=1)) if more.splits else places
            )
        return _Divided(tried.order, tried.runs, tuple(refined))

    def _times(self, divided: _Divided) -> tuple[Floats, Floats]:
        """Computation and transfers of every band, for each holder (holders × bands × places), ms."""
        costs, facts = self.space.costs, self.bands.bands.facts
        computed = np.zeros((len(self.space.holders), *divided.bands.shape))
        moved = np.zeros_like(computed)
        whole = np.repeat([prod(self.parts[first].graph.input.shape) for first, _ in divided.runs], divided.counts)
        for i, (processor, band) in enumerate(zip(divided.order, divided.bands, strict=True)):
            times = BandTimes(*self.bands.times(processor, band))
            leaving = costs.transfers(processor, costs.host, facts[band, 2])
            for at, holder in enumerate(self.space.holders):
                cuts = cuts_itself(holder, processor, costs.predictor)
                computed[at, i] = times.contended_ms + times.cut_ms if cuts else times.contended_ms
                moved[at, i] = leaving + costs.transfers(holder, processor, whole if cuts else facts[band, 1])
        return computed, moved

    def alone_ms(self, first: int, last: int, processor: int) -> float:
        """A run on one processor, ms."""
        return float(self._alone(processor)[first, last])

    def _alone(self, processor: int) -> Floats:
        """Every run on one processor, ms (first part × last part)."""
        if processor not in self._alone_ms:
            ms = np.array([options[processor].slowest_ms[0] for options in self._wholes])
            self._alone_ms[processor] = np.cumsum(np.triu(np.tile(ms, (len(ms), 1))), axis=1)
        return self._alone_ms[processor]

    def _join_ms(self, last: int, bands: int) -> float:
        if (last, bands) not in self._joins:
            end = self.parts[last]
            self._joins[last, bands] = self.space.costs.join(end, "rows", end.width, bands)
        return self._joins[last, bands]

    def _segment(self, first: int, last: int) -> Segment:
        """A run as a segment."""
        run = self.parts[first : last + 1]
        return run[0] if len(run) == 1 else cut_segment(self.graph, self.name(first, last), run[0].start, run[-1].end)

    def _ways(self, divided: _Divided) -> list[SegmentOptions]:
        """Each run in bands as options of its first part, one for each place."""
        computed, moved = self._times(divided)
        peaks = sum(self.bands.times(p, band)[2] for p, band in zip(divided.order, divided.bands, strict=True))
        most = (computed + moved).max(axis=1), moved.max(axis=1), computed.max(axis=(0, 1)), computed.min(axis=(0, 1)), np.asarray(peaks)
        columns = [divided.each(item) for item in (*most, computed)]
        return [self._option(divided.order, *item) for item in zip(divided.runs, divided.places, *columns, strict=True)]

    def _option(
        self, order: tuple[str, ...], run: _Run, places: _Places,
        total: Floats, moving: Floats, slowest: Floats, fastest: Floats, peaks: Floats, computed: Floats,
    ) -> SegmentOptions:  # fmt: skip
        """One run in bands: times of its places by holder without the join, and what its bands take."""
        segment, count, join = self._segment(*run), len(places.splits), self._join_ms(run[1], len(order))
        edges = [bands(self.bands.rows(run[1]), split) for split in places.splits]
        options = SegmentOptions(
            segment,
            "rows",
            tuple(_Bands(partial(self._cost, run, name, segment.depth), [edge[i] for edge in edges]) for i, name in enumerate(order)),
            macs=np.full(count, segment.graph.macs),
            params=np.full(count, sum(int(self._wholes[part][0].params[0]) for part in range(run[0], run[1] + 1))),
            ms=total + join,
            allowed=np.ones((len(self.space.holders), count), bool),
            depth=np.full(count, float(len(order))),
            exchange_ms=moving + join,
            slowest_ms=slowest,
            fastest_ms=fastest,
            peak_bytes=peaks.astype(np.int64),
            span=run[1] - run[0] + 1,
            alone_ms=min(self.alone_ms(*run, i) for i in range(len(self.space.processors))),
            busy=lambda: {name: computed[:, i] for i, name in enumerate(order)},
        )
        return replace(options, allowed=self.space.allowed(options))

    def _cost(self, run: _Run, processor: str, depth: int, start: int, stop: int) -> BranchCost | None:
        return self.bands.band(*run, processor, start, stop, depth)

    def name(self, first: int, last: int) -> str:
        """Name of a run: of its stage or stages where it is all of them, such as ``s2`` or ``s2_to_s4``, else of its parts."""
        a, b = self.stage[first], self.stage[last]
        names = [stage.name for stage in self.space.segments]
        complete = self.by_stage[a][0] is self.parts[first] and self.by_stage[b][-1] is self.parts[last]
        if complete:
            return names[a] if a == b else f"{names[a]}_to_{names[b]}"
        if first == last:
            return self.parts[first].name
        return f"{self.parts[first].name}_to_{self.parts[last].name}"


def with_exact_kinds(graph: OpGraph, config: PlanConfig, space: DesignSpace) -> DesignSpace:
    """The designs of a space, and those in which runs of parts are computed in bands of rows, or parts by channels or their own paths.

    Args:
        config: The request, checked. Meeting points that it names are the only ones; stages that must not merge have
            bands of their own.
    """
    banded = BandedSpace(
        graph,
        space,
        divided=not config.meet,
        merged=config.merge != "never",
        single=config.strategy in SINGLE,
        vectors="channels" in config.planned_kinds,
    )
    mixed = banded.mixed(config.planned_kinds)
    if config.exact and config.n_meet and not any(any(mixed.offers) or o.branched for options in mixed.ready for o in options):
        raise _nothing_to_split(graph, config)
    return mixed


def without_stretched(space: DesignSpace) -> DesignSpace:
    """The designs of a space that compute what the original computes."""
    other = copy(space)
    other.options = [[o for o in options if o.exact or not o.branched] for options in space.ready]
    other.thinned = False
    return other


def _nothing_to_split(graph: OpGraph, config: PlanConfig) -> InfeasibleError:
    """Why no segment of a network can be divided exactly."""
    hint = Message("let segments be stretched, which makes another network, with {}", OptionName("kinds", ("stretch",)))
    if "channels" in config.planned_kinds:
        others = [
            words for kind, words in (("rows", " or rows"), ("graph", ", nor one with parallel paths")) if kind in config.planned_kinds
        ]
        why = f"`{graph.name}` has no segment whose division by channels{''.join(others)} might pay on these processors"
        return InfeasibleError(why, hint)
    if "rows" not in config.planned_kinds:
        why = "no segment with parallel paths, nor one whose operators several processors compute faster"
        return InfeasibleError(f"`{graph.name}` has {why}", hint)
    mixed = mixing(graph)
    if mixed:
        kinds = ", ".join(dict.fromkeys(graph.by_name[name].kind for name in mixed))
        why = f"`{mixed[0]}`{f' and {len(mixed) - 1} others' if len(mixed) > 1 else ''} ({kinds}) need every row of what they read"
        why = why if len(mixed) > 1 else why.replace(" need every row of what they read", " needs every row of what it reads")
    elif len(graph.input.shape) != 4:
        why = "its tensors have no rows"
    else:
        why = f"bands would compute more than {MAX_HALO:.0%} of any segment twice"
    paths = ", nor one with parallel paths" if "graph" in config.planned_kinds else ""
    return InfeasibleError(f"`{graph.name}` has no segment that can be split by rows{paths}: {why}", hint)
