"""What a band of rows of a run of parts costs.

A network is divided at cut points that no kernel spans, so a band of several
parts is bands of the parts one after the other: rows that a part reads are those
that the part before it computes. A band of a part is timed once for all bands
that equal it but for where they lie in the image, and for all parts that are
built alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.rows import height
from predictors.shapes import Attr, Shape, ints
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.elision import cuts_itself
from stretch.planning.design.bands import band_graph, bands_of
from stretch.planning.network.segments import Segment

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: A band's place is one of the classes of its first and its last row, and it has a height.
_Place = tuple[int, int, int]
#: What parts that are built alike have in common.
Structure = tuple[tuple[str, tuple[int, ...], tuple[tuple[str, Attr], ...], Shape], ...]


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

    def graph(self, *, cut: bool) -> OpGraph | None:
        """What is computed, with or without the cut that a run begins with; None if there is none such."""
        return self.part.band(self.start, self.stop, cut=cut)


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
            graph = step.graph(cut=False) if step is not None else None
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
    """Costs of bands of runs of parts on one device.

    Args:
        parts: The parts of a network, in order, divided where no kernel spans.
    """

    def __init__(self, costs: Costs, parts: Sequence[Segment]) -> None:
        self.costs = costs
        self.parts = tuple(parts)
        self._built, self._known = costs.built(_BuiltBands), costs.remembered(_Known)
        self._parts = [self._part(part.graph) for part in parts]
        same = tuple(map(id, self._parts))
        if same not in self._built.runs:
            self._built.runs[same] = RunBands(self._parts, self._built)
        #: The bands by number.
        self.bands = self._built.runs[same]

    def _part(self, graph: OpGraph) -> _BandedPart:
        built = structure(graph)
        if built not in self._built.parts:
            self._built.parts[built] = _BandedPart(graph)
        return self._built.parts[built]

    def rows(self, last: int) -> int:
        """Rows of what a part writes."""
        return self._parts[last].rows

    def band(self, first: int, last: int, processor: str, start: int, stop: int, depth: int = 0) -> BranchCost | None:
        """What rows of the output of a run cost on a processor, as a branch of so many blocks; None if an operator would read no row for them."""
        number = self.bands.number(first, last, start, stop)
        if number is None:
            return None
        time = BandTimes(*self.times(processor, np.array([number]))[:, 0].tolist())
        macs, reads, writes, _ = self.bands.facts[number].tolist()
        return BranchCost(
            processor,
            depth,
            self.parts[last].width,
            "none",
            macs,
            0,
            time.ms,
            time.contended_ms,
            int(time.peak_bytes),
            rows=(start, stop),
            reads=reads,
            writes=writes,
            cut_ms=time.cut_ms,
        )

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
                peak = max([k.cost.reads + k.cost.writes for k in kernels], default=0) * self.costs.item_bytes(processor)
                known[:3, step] = sum([time.ms for time in some]), contended, peak
        return known

    def _launched(self, step: int, cut: bool, processor: str) -> list[Kernel]:
        """Kernels of a step; those of one backend are the same on all its processors."""
        profile = self.costs.predictor.device.processor(processor).profile
        key, kernels = (step, (profile.backend, profile.unsupported), cut), self._built.kernels
        if key not in kernels:
            graph = self._built.steps[step].graph(cut=cut)
            assert graph is not None  # else no band has a number
            kernels[key] = self.costs.predictor.kernels(graph, processor)
        return kernels[key]


def _grown(times: Floats | None, count: int) -> Floats:
    """The same times, with room for more."""
    known = np.zeros((4, 0)) if times is None else times
    return known if known.shape[1] == count else np.append(known, np.full((4, count - known.shape[1]), np.nan), axis=1)


def _line(shape: Shape) -> int:
    """Elements of one row of a tensor."""
    return prod(shape) // height(shape)


def structure(graph: OpGraph) -> Structure:
    """What parts that are built alike have in common: everything but names."""
    number = {op.name: i for i, op in enumerate(graph.ops)}
    return tuple((op.kind, tuple(number[name] for name in op.inputs), _attrs(op.attrs), op.shape) for op in graph.ops)


def _attrs(attrs: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    return tuple(sorted(attrs.items()))
