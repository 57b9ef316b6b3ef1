"""Bands of rows: branches that compute some rows of a segment's output each, of no more rows of everything than those need.

Bands of one image are exact: put below each other they are the output of the whole graph. Rows that two bands both need
are the halo, which is computed twice. Any run of parts may be computed in bands, on every subset of the processors.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, compress, islice
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from predictors.errors import StretchError
from predictors.fusion import Kernel
from predictors.graph import Op, OpGraph
from predictors.host import kind_of as family_of
from predictors.joins import meeting_of
from predictors.operators import kind_of
from predictors.predictor import Estimate, LatencyPredictor
from predictors.rows import Band, Rows, height
from predictors.shapes import Shape, ints
from stretch.planning.cost.branch import BranchCost, Costs, Floats, Ints, SegmentOptions
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.division import Division, Piece, Share, check_ranges
from stretch.planning.network.segments import Segment, mixing
from stretch.planning.search.parts import PartSpace, Split, Structure, bands, coarse, finer, orders, structure

#: The operator that cuts out of what arrives the rows that a band reads.
ENTRY_ROWS = "entry_rows"

#: Tag with the padding (top, left, bottom, right) that an operator of a band has in the whole.
PADDING_TAG = "whole_padding"


def bands_of(graph: OpGraph, start: int, stop: int) -> tuple[dict[str, Rows], dict[str, Band]]:
    """Rows of every operator's output that rows `start` up to `stop` of the graph's output need, by name, and what computes them.

    Those of no use are left out, and what computes them is known of every operator that reads something.
    """
    need: dict[str, Rows] = {graph.output: Rows(start, stop)}
    bands: dict[str, Band] = {}
    for op in reversed(graph.ops):
        rows = need.get(op.name)
        if rows is None or not op.inputs:
            continue
        bands[op.name] = band = graph.op_rows(op, rows.start, rows.stop)
        for name, reads in zip(op.inputs, band.reads, strict=True):
            if not len(reads):
                why = f"rows {start} to {stop} of `{graph.output}` need rows of `{op.name}` that lie in its padding alone"
                raise StretchError(why, "choose higher bands")
            before = need.get(name, reads)
            need[name] = Rows(min(before.start, reads.start), max(before.stop, reads.stop))
    return need, bands


def band_graph(graph: OpGraph, name: str, start: int, stop: int, *, handed: bool = False) -> OpGraph:
    """The graph that computes rows `start` up to `stop` of a graph's output; rows that are not needed are cut off."""
    need, bands = bands_of(graph, start, stop)
    source = graph.input
    arguments = need[source.name] if handed else Rows(0, height(source.shape))
    shape = (*source.shape[:2], len(arguments), *source.shape[3:]) if len(source.shape) == 4 else source.shape
    ops = [Op(source.name, "input", (), {**source.attrs, "shape": shape}, tags=source.tags)]
    reads = {source.name: source.name if handed else _cut(ops, ENTRY_ROWS, source.name, len(arguments), need[source.name])}
    for op in graph.ops:
        band = bands.get(op.name)
        if band is None:
            continue
        inputs = []
        for at, (arguments, wanted) in enumerate(zip(op.inputs, band.reads, strict=True)):
            has = need[arguments]
            rows = Rows(wanted.start - has.start, wanted.stop - has.start)
            inputs.append(_cut(ops, f"{op.name}_rows{at}", reads[arguments], len(has), rows))
        tags = dict(op.tags)
        if band.attrs.get("padding") != op.attrs.get("padding"):
            tags[PADDING_TAG] = msgspec.json.encode(op.attrs["padding"]).decode()
        ops.append(Op(op.name, op.kind, tuple(inputs), band.attrs, tags=tags))
        shapes = zip(graph.input_shapes(op), band.reads, strict=True)
        banded = [(*shape[:2], len(read), *shape[3:]) if len(shape) == 4 else shape for shape, read in shapes]
        computed = height(kind_of(op.kind).shape(banded, band.attrs))
        reads[op.name] = _cut(ops, f"{op.name}_band", op.name, computed, Rows(band.skip, band.skip + len(need[op.name])))
    return OpGraph.build(name, ops, reads[graph.output])


def _cut(ops: list[Op], name: str, source: str, has: int, wanted: Rows) -> str:
    """The tensor that holds the wanted rows of one: itself if it has no others, else what a new operator cuts out."""
    if (wanted.start, wanted.stop) == (0, has):
        return source
    ops.append(Op(name, "slice_rows", (source,), {"start": wanted.start, "stop": wanted.stop}))
    return name


# What a band is handed: of a tensor that crosses to another processor, only the rows that it reads.
#
# A band begins with a cut out of what arrives. Where that comes over a link, the
# cut is a part of the conversion: only those rows are converted. Where the tensor
# lies on the band's own processor already, the cut is a view if the layout keeps
# rows together, and else a copy.


def handed(graph: OpGraph) -> OpGraph:
    """A branch that is given the rows it reads: without the cut with which a band begins; others stay as they are."""
    cut = graph.by_name.get(ENTRY_ROWS)
    if cut is None:
        return graph
    source = graph.input
    ops = [Op(source.name, "input", attrs={"shape": cut.shape}, tags=source.tags)]
    for op in graph.ops:
        if op is source or op is cut:
            continue
        if ENTRY_ROWS in op.inputs:
            op = replace(op, inputs=tuple(source.name if name == ENTRY_ROWS else name for name in op.inputs))
        ops.append(op)
    return OpGraph.build(graph.name, ops, source.name if graph.output == ENTRY_ROWS else graph.output)


def cuts_itself(holder: str, processor: str, predictor: LatencyPredictor) -> bool:
    """Whether a band has to copy the rows it reads: the whole tensor is on its own processor, and rows are not together there."""
    if family_of(holder) != family_of(processor):
        return False
    return meeting_of("rows").copies(predictor.device.processor(processor).profile.layout)


def halo_ms(whole: OpGraph, bands: Sequence[tuple[OpGraph, Estimate, float]]) -> float:
    """Time that bands spend on rows that the segment in one piece computes once, ms, all bands together.

    Of an operator's rows, summed over the bands, those beyond the rows of the whole are computed twice; a kernel's time counts
    with that share. Cutting rows out is not computing, and counts for nothing.
    """
    rows: dict[str, int] = {}
    for graph, _, _ in bands:
        for op in graph.ops:
            rows[op.name] = rows.get(op.name, 0) + height(op.shape)
    twice = {
        name: max(0.0, 1 - height(whole.by_name[name].shape) / count) for name, count in rows.items() if name in whole.by_name and count
    }
    total = 0.0
    for _, estimate, contention in bands:
        for kernel in estimate.kernels:
            share = next((twice[name] for name in kernel.kernel.ops if name in twice), 0.0)
            total += kernel.time.ms * share * contention
    return total


# What a band of a run of parts costs.
#
# A network is divided at cut points that no kernel spans, so a band of several
# parts is bands of the parts one after the other: rows that a part reads are those
# that the part before it computes. A band of a part is timed once for all bands
# that equal it but for where they lie in the image, and for all parts that are
# built alike.

#: A band's place is one of the classes of its first and its last row, and it has a height.
_Place = tuple[int, int, int]


@dataclass(frozen=True)
class _Edge:
    """What follows from a band's first row, or from its last, for each of them."""

    reads: tuple[int, ...]  # The row of the input that is read first, or the one behind the last.
    group: tuple[int, ...]  # Bands whose edges are in one group differ at that edge in where they lie and in nothing else.


class _BandedPart:
    """Bands of one part, and of all that are built alike."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.rows = height(graph.by_name[graph.output].shape)
        self._bands: dict[tuple[_Place, bool], OpGraph | None] = {}

    @cached_property
    def top(self) -> _Edge:
        """By first row."""
        return self._edge([(start, self.rows) for start in range(self.rows)], at=0)

    @cached_property
    def bottom(self) -> _Edge:
        """By the row behind the last, the first one being behind row 0."""
        return self._edge([(0, stop) for stop in range(1, self.rows + 1)], at=1)

    def _edge(self, bands: Sequence[tuple[int, int]], at: int) -> _Edge:
        """Edges at which operators read and pad alike, relative to the band, are one group."""
        seen: dict[tuple[tuple[int, int], ...], int] = {}
        rows = [self._operators(start, stop, at) for start, stop in bands]
        middle = len(bands) // 2
        # how far each operator's edge moves with the band's, away from the image's ends
        steps = [b[0] - a[0] for a, b in zip(rows[middle - 1], rows[middle], strict=True)] if len(bands) > 1 else [0] * len(rows[0])
        group = []
        for band, row in zip(bands, rows, strict=True):
            relative = tuple((edge - band[at] * step, padding) for (edge, padding), step in zip(row, steps, strict=True))
            group.append(seen.setdefault(relative, len(seen)))
        return _Edge(tuple(row[0][0] for row in rows), tuple(group))

    def _operators(self, start: int, stop: int, at: int) -> list[tuple[int, int]]:
        """Edge of the rows needed of each operator, the input first, and its padding there."""
        try:
            need, read = bands_of(self.graph, start, stop)
        except StretchError:
            # rows of padding alone, of which there is no band (`band`): nothing else has such an edge
            return [(at, -1)] * len(self.graph.ops)
        operators = []
        for op in self.graph.ops:
            rows = need.get(op.name)
            if rows is None:
                operators.append((0, 0))
                continue
            padding = 0
            if op.inputs and "padding" in op.attrs:
                padding = ints(read[op.name].attrs, "padding")[2 * at]
            operators.append((rows.stop if at else rows.start, padding))
        return operators

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """Rows of the input that a band needs."""
        return self.top.reads[start], self.bottom.reads[stop - 1]

    def place(self, start: int, stop: int) -> _Place:
        """What decides the costs of a band."""
        return self.top.group[start], self.bottom.group[stop - 1], stop - start

    def band(self, start: int, stop: int, *, cut: bool) -> OpGraph | None:
        """The graph of a band, with or without the cut it begins with; None if there is none such."""
        key = (self.place(start, stop), cut)
        if key not in self._bands:
            try:
                self._bands[key] = band_graph(self.graph, self.graph.name, start, stop, handed=not cut)
            except StretchError:
                # so few rows that an operator would read padding alone
                self._bands[key] = None
        return self._bands[key]


#: A part, and what decides the costs of a band of it.
_StepKey = tuple[int, _Place]
#: First and last part of a run, and first row of its output and the one behind the last.
_RunRows = tuple[int, int, int, int]


class _Step(NamedTuple):
    """A part of a run, and the rows of its output that a band of the run computes."""

    part: _BandedPart
    start: int  # First row.
    stop: int  # The one behind the last row.


class _BuiltBands:
    """What is known of bands of parts, whichever networks and divisions they are of, and whatever the device."""

    def __init__(self) -> None:
        self.parts: dict[Structure, _BandedPart] = {}
        self.kernels: dict[tuple[int, tuple[str, tuple[str, ...]], bool], list[Kernel]] = {}
        self.steps: list[_Step] = []
        self._numbers: dict[_StepKey, int] = {}
        #: By the parts of a network.
        self.runs: dict[tuple[int, ...], RunBands] = {}

    def number(self, step: _Step) -> int:
        """That of all steps which cost the same."""
        number = self._numbers.setdefault((id(step.part), step.part.place(step.start, step.stop)), len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
        return number


class RunBands:
    """Bands of runs of a network's parts, numbered as they are asked for, whatever the device: a number is a place in each array."""

    def __init__(self, parts: Sequence[_BandedPart], built: _BuiltBands) -> None:
        self._parts, self._built = parts, built
        self._numbers: dict[_RunRows, int | None] = {}
        self._new: list[tuple[list[int], tuple[int, int, int, int]]] = []
        self._steps: Ints = np.zeros((0, len(parts)), np.int64)
        self._facts: Ints = np.zeros((0, 4), np.int64)
        #: What others remember of them, such as where the runs may be divided.
        self.known: dict[object, Any] = {}

    def __len__(self) -> int:
        """How many have a number."""
        return len(self._facts) + len(self._new)

    def number(self, first: int, last: int, start: int, stop: int) -> int | None:
        """The number of the band of a run; None if an operator would read no row for it."""
        rows = (first, last, start, stop)
        if rows not in self._numbers:
            self._numbers[rows] = self._add(*rows)
        return self._numbers[rows]

    def _add(self, first: int, last: int, start: int, stop: int) -> int | None:
        graphs, steps, number = [], [], len(self)
        written = (stop - start) * _line(self._parts[last].graph.by_name[self._parts[last].graph.output].shape)
        for part in reversed(self._parts[first : last + 1]):
            step = _Step(part, start, stop) if start < stop else None
            graph = part.band(start, stop, cut=False) if step is not None else None
            if step is None or graph is None:
                return None
            graphs.append(graph)
            steps.append(self._built.number(step))
            start, stop = part.reads(start, stop)
        if start >= stop:
            return None
        read = (stop - start) * _line(self._parts[first].graph.input.shape)
        self._new.append((steps, (sum(graph.macs for graph in graphs), read, written, steps[-1])))
        return number

    @property
    def steps(self) -> Ints:
        """Numbers of the steps, the last part's first, filled up with -1 (bands × parts)."""
        return self._arrays()[0]

    @property
    def facts(self) -> Ints:
        """Multiply-accumulates, elements that are read, those that are written, and the number of the step that comes first (bands × 4)."""
        return self._arrays()[1]

    def _arrays(self) -> tuple[Ints, Ints]:
        if self._new:
            steps, facts = zip(*self._new, strict=True)
            none = [-1] * len(self._parts)
            self._steps = np.concatenate([self._steps, [[*some, *none[len(some) :]] for some in steps]])
            self._facts = np.concatenate([self._facts, facts])
            self._new = []
        return self._steps, self._facts


class BandTimes(NamedTuple):
    """Times of bands, or of steps, on one processor."""

    ms: Floats  # Alone.
    contended_ms: Floats  # While other branches compute.
    peak_bytes: Floats  # Most bytes that one of the kernels reads and writes.
    cut_ms: Floats  # What a band takes longer where it has to cut what it reads; of a step, its time beside others with the cut.


class _Known:
    """What is known of times at the costs of a device: by processor those of steps, and by network those of bands; NaN where unknown."""

    def __init__(self) -> None:
        self.steps: dict[str, Floats] = {}
        self.bands: dict[tuple[int, str], Floats] = {}


class BandCosts:
    """Costs of bands of runs of parts on one device."""

    def __init__(self, costs: Costs, parts: Sequence[Segment]) -> None:
        self.costs = costs
        self.parts = tuple(parts)
        self._built, self._known = costs.built(_BuiltBands), costs.remembered(_Known)
        built, alike = self._built.parts, [structure(part.graph) for part in parts]
        for key, part in zip(alike, parts, strict=True):
            if key not in built:
                built[key] = _BandedPart(part.graph)
        self._parts = [built[key] for key in alike]
        same = tuple(map(id, self._parts))
        if same not in self._built.runs:
            self._built.runs[same] = RunBands(self._parts, self._built)
        #: The bands by number.
        self.bands = self._built.runs[same]

    def rows(self, last: int) -> int:
        """Rows of what a part writes."""
        return self._parts[last].rows

    def band(self, first: int, last: int, processor: str, depth: int, start: int, stop: int) -> BranchCost | None:
        """What rows of the output of a run cost on a processor, as a branch of so many blocks; None if an operator would read no row for them."""
        number = self.bands.number(first, last, start, stop)
        if number is None:
            return None
        time = BandTimes(*self.times(processor, np.array([number]))[:, 0].tolist())
        macs, reads, writes, _ = self.bands.facts[number].tolist()
        times = time.ms, time.contended_ms, int(time.peak_bytes), (start, stop), reads, writes, time.cut_ms
        return BranchCost(processor, depth, self.parts[last].width, "none", macs, 0, *times)

    def times(self, processor: str, bands: Ints) -> Floats:
        """Times of bands, by their numbers: the rows are the fields of `BandTimes`. Those that are new are timed together."""
        where = id(self.bands), processor
        known = self._known.bands[where] = _grown(self._known.bands.get(where), len(self.bands))
        new = np.unique(bands[np.isnan(known[0, bands])])
        if len(new):
            chains, begins = self.bands.steps[new], self.bands.facts[new, 3]
            # else nobody asks what it takes to copy the rows that are read, where the tensor is there already
            cuts = cuts_itself(processor, processor, self.costs.predictor)
            steps = np.append(self._step_times(processor, chains[chains >= 0], begins if cuts else begins[:0]), np.zeros((4, 1)), axis=1)
            sums = np.zeros((2, len(new)))
            for column in chains.T:
                sums += steps[:2, column]
            known[:2, new] = sums
            known[2, new] = steps[2][chains].max(axis=1)
            known[3, new] = steps[3, begins] - steps[1, begins] if cuts else 0.0
        result: Floats = known[:, bands]
        return result

    def _step_times(self, processor: str, plain: Ints, begun: Ints) -> Floats:
        """Times of all steps on a processor, those of some known: with the cut that a run begins with, and without."""
        known = self._known.steps[processor] = _grown(self._known.steps.get(processor), len(self._built.steps))
        new = [
            (int(step), cut)
            for some, row, cut in ((plain, 0, False), (begun, 3, True))
            for step in np.unique(some[np.isnan(known[row, some])])
        ]
        launched = [self._launched(*item, processor) for item in new]
        # at once, since a fit's trees are walked for many kernels in little more time than for one
        times = iter(self.costs.each_kernels_time([k for kernels in launched for k in kernels], processor))
        for (step, cut), kernels in zip(new, launched, strict=True):
            some = list(islice(times, len(kernels)))
            contended = sum([time.contended_ms for time in some])
            if cut:
                known[3, step] = contended
            else:
                known[:3, step] = sum([time.ms for time in some]), contended, self.costs.peak_bytes(kernels, processor)
        return known

    def _launched(self, step: int, cut: bool, processor: str) -> list[Kernel]:
        """Kernels of a step; those of one backend are the same on all its processors."""
        profile = self.costs.predictor.device.processor(processor).profile
        key, kernels = (step, (profile.backend, profile.unsupported), cut), self._built.kernels
        if key not in kernels:
            part, start, stop = self._built.steps[step]
            graph = part.band(start, stop, cut=cut)
            assert graph is not None  # else no band has a number
            kernels[key] = self.costs.predictor.kernels(graph, processor)
        return kernels[key]


def _grown(times: Floats | None, count: int) -> Floats:
    """The same times, with room for more."""
    known = np.zeros((4, 0)) if times is None else times
    return known if known.shape[1] == count else np.append(known, np.full((4, count - known.shape[1]), np.nan), axis=1)


def _line(shape: Shape) -> int:
    return prod(shape) // height(shape)


#: Multiply-accumulates that the halves of a run may do beyond those of the run, as a share of it.
MAX_HALO = 0.5
#: Times the run on the fastest processor that its bands may take at the best place tried first.
WORTH = 1.1

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
        return np.concatenate([item.bands for item in self.places], axis=1)

    @cached_property
    def counts(self) -> list[int]:
        return [len(item.splits) for item in self.places]

    @cached_property
    def begins(self) -> Ints:
        """Of each run, the first of its places."""
        return np.cumsum([0, *self.counts[:-1]])

    def each(self, values: Floats) -> list[Floats]:
        return np.split(values, self.begins[1:], axis=-1)


class _Bands(Sequence[BranchCost]):
    """What one band of a run costs, by the place where the run is divided; most are never asked for."""

    def __init__(self, cost: Callable[[int, int], BranchCost | None], rows: Sequence[tuple[int, int]]) -> None:
        self._cost, self._rows = cost, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        return self._cost(*self._rows[at])


class BandWays:
    """Ways to compute runs of parts in bands."""

    def __init__(self, parts: PartSpace) -> None:
        self.parts, self.space = parts, parts.space
        self.bands = BandCosts(parts.space.costs, parts.parts)
        self._joins: dict[tuple[int, int], float] = {}

    @property
    def runs(self) -> list[_Run]:
        """First and last part of every run that may be split by rows."""
        key = ("runs", self.parts.single, self.parts.merged or tuple(self.parts.stage), tuple(part.tapped for part in self.parts.parts))
        if key not in self.bands.bands.known:
            self.bands.bands.known[key] = self._runs()
        return self.bands.bands.known[key]

    def _runs(self) -> list[_Run]:
        runs = []
        for first in range(len(self.parts.parts)):
            macs = 0
            for last in range(first, first + 1 if self.parts.single else len(self.parts.parts)):
                if not self.parts.merged and self.parts.stage[last] != self.parts.stage[first]:
                    break
                macs += self.parts.parts[last].graph.macs
                halo = self._halo(first, last, macs)
                if halo is None or halo > 2 * MAX_HALO:
                    # what follows reads still more rows
                    break
                if halo <= MAX_HALO:
                    runs.append((first, last))
                if self.parts.parts[last].tapped:
                    break
        return runs

    def _halo(self, first: int, last: int, macs: int) -> float | None:
        """Share of a run that its halves compute twice; None where it has no halves."""
        shape = self.parts.parts[last].graph.by_name[self.parts.parts[last].end].shape
        rows = height(shape)
        if len(shape) != 4 or rows < 2:
            return None
        halves = self._places((first, last), ((rows // 2,),)).bands
        if not halves.size:
            return None
        return int(self.bands.bands.facts[halves, 0].sum()) / macs - 1 if macs else 0.0

    def options(self) -> list[tuple[int, SegmentOptions]]:
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
        return known[key]

    def _worth(self, divided: _Divided) -> _Divided:
        """The runs whose bands take about as long as the fastest processor alone, or less, from one of the holders."""
        costs, last = self.space.costs, [run[1] for run in divided.runs]
        join = np.array([self._join_ms(at, len(divided.order)) for at in last])
        ends = [self.parts.parts[at].graph.by_name[self.parts.parts[at].end].shape for at in last]
        read = np.array([prod(self.parts.parts[first].graph.input.shape) for first, _ in divided.runs])
        written = np.array([prod(shape) for shape in ends])
        leaving = [costs.transfers(p, costs.host, written) for p in self.space.processors]
        kept = np.zeros(len(last), bool)
        for holder, total in zip(self.space.holders, np.add(*self._times(divided)), strict=True):
            entering = [costs.transfers(holder, p, read) for p in self.space.processors]
            alone = [
                into + self.parts.alone(i)[tuple(zip(*divided.runs, strict=True))] + out
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
        whole = np.repeat([prod(self.parts.parts[first].graph.input.shape) for first, _ in divided.runs], divided.counts)
        for i, (processor, band) in enumerate(zip(divided.order, divided.bands, strict=True)):
            times = BandTimes(*self.bands.times(processor, band))
            leaving = costs.transfers(processor, costs.host, facts[band, 2])
            for at, holder in enumerate(self.space.holders):
                cuts = cuts_itself(holder, processor, costs.predictor)
                computed[at, i] = times.contended_ms + times.cut_ms if cuts else times.contended_ms
                moved[at, i] = leaving + costs.transfers(holder, processor, whole if cuts else facts[band, 1])
        return computed, moved

    def _join_ms(self, last: int, bands: int) -> float:
        if (last, bands) not in self._joins:
            end = self.parts.parts[last]
            self._joins[last, bands] = self.space.costs.join(end, "rows", end.width, bands)
        return self._joins[last, bands]

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
        segment, count, join = self.parts.segment(*run), len(places.splits), self._join_ms(run[1], len(order))
        edges = [bands(self.bands.rows(run[1]), split) for split in places.splits]
        options = SegmentOptions(
            segment,
            "rows",
            tuple(_Bands(partial(self.bands.band, *run, name, segment.depth), [edge[i] for edge in edges]) for i, name in enumerate(order)),
            macs=np.full(count, segment.graph.macs),
            params=np.full(count, sum(int(self.parts.wholes[part][0].params[0]) for part in range(run[0], run[1] + 1))),
            ms=total + join,
            exchange_ms=moving + join,
            slowest_ms=slowest,
            fastest_ms=fastest,
            peak_bytes=peaks.astype(np.int64),
            span=run[1] - run[0] + 1,
            alone_ms=min(self.parts.alone_ms(*run, i) for i in range(len(self.space.processors))),
            busy=lambda: {name: computed[:, i] for i, name in enumerate(order)},
            division=DIVISION.word,
        )
        return self.space.checked(options)


class _RowBands(Division):
    """Bands of rows."""

    kind, joins, what, weights, halo = "rows", ("rows",), "a band of rows", "same", True

    def check(self, segment: Segment, design: SegmentDesign, shares: Sequence[Share]) -> None:
        """Bands lie below each other without a gap, from the first row to the last."""
        where, rows = f"segment `{segment.name}`", height(segment.graph.by_name[segment.end].shape)
        if len(shares) > rows:
            why = f"{where} has {rows} rows for {len(shares)} processors, so that one of them has none"
            raise StretchError(why, "divide them among fewer processors")
        check_ranges(where, self, design.names, shares, rows, "rows", "its output")

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        return [Piece(band_graph(graph, name, *share)) for name, share in zip(names, shares, strict=True)]

    def arriving(self, graph: OpGraph, holder: str, processor: str, predictor: LatencyPredictor) -> OpGraph:
        """Where the rows come over a link, they are cut out on the way."""
        return graph if cuts_itself(holder, processor, predictor) else handed(graph)

    def repeated_ms(self, whole: OpGraph, pieces: Iterable[tuple[OpGraph, Estimate, float]]) -> float:
        return halo_ms(whole, list(pieces))

    def ways(self, parts: PartSpace) -> list[tuple[int, SegmentOptions]]:
        return BandWays(parts).options()

    def possible(self, graph: OpGraph) -> tuple[str, ...]:
        """Rows, where there are several and nothing needs all of them."""
        low = min(height(graph.by_name[name].shape) for name in (graph.input.name, graph.output))
        return () if mixing(graph) or low < 2 else ("rows",)

    def obstacle(self, graph: OpGraph) -> str | None:
        """Operators that need every row, or that there are no rows."""
        mixed = mixing(graph)
        if not mixed:
            return None if len(graph.input.shape) == 4 else "its tensors have no rows"
        kinds = ", ".join(dict.fromkeys(graph.by_name[name].kind for name in mixed))
        if len(mixed) == 1:
            return f"`{mixed[0]}` ({kinds}) needs every row of what it reads"
        return f"`{mixed[0]}` and {len(mixed) - 1} others ({kinds}) need every row of what they read"

    def remark(self, stages: Sequence[Segment]) -> str | None:
        """Which operators keep blocks from being divided."""
        undivided: dict[str, list[str]] = {}
        for stage in stages:
            tall = [i for i, op in enumerate(stage.graph.ops) if height(op.shape) > 1]
            order = {op.name: i for i, op in enumerate(stage.graph.ops)}
            # what is behind the last tensor with rows divides nothing that is left to divide
            for kind in dict.fromkeys(stage.graph.by_name[name].kind for name in mixing(stage.graph) if order[name] < tall[-1]):
                undivided.setdefault(kind, []).append(stage.name)
        if not undivided:
            return None
        where = ", ".join(f"`{kind}` in {', '.join(stages)}" for kind, stages in undivided.items())
        return f"blocks around operators that need every row of what they read are not split by rows: {where}"


DIVISION = _RowBands()
