"""What a band of rows of a run of parts costs.

A network is divided at cut points that no kernel spans, so a band of several
parts is bands of the parts one after the other: rows that a part reads are those
that the part before it computes. A band of a part is timed once for all bands
that equal it but for where they lie in the image, and for all parts that are
built alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from predictors.errors import StretchError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.rows import height
from predictors.shapes import Attr, Shape, ints
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.handover import cuts_itself
from stretch.planning.design.bands import band_graph, bands_of
from stretch.planning.network.segments import Segment

#: A band's place is one of the classes of its first and its last row, and it has a height.
_Place = tuple[int, int, int]
#: What parts that are built alike have in common.
Structure = tuple[tuple[str, tuple[int, ...], tuple[tuple[str, Attr], ...], Shape], ...]


class BandKey(NamedTuple):
    """A band of a run of parts on a processor."""

    first: int  # Number of the run's first part.
    last: int  # Number of its last part.
    processor: str  # Where it runs.
    start: int  # First row of the run's output.
    stop: int  # The one behind the last row.


@dataclass(frozen=True)
class _Edge:
    """What follows from a band's first row, or from its last, for each of them."""

    reads: tuple[int, ...]  # The row of the input that is read first, or the one behind the last.
    group: tuple[int, ...]  # Bands whose edges are in one group differ at that edge in where they lie and in nothing else.


class _Part:
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
        found = []
        for op in self.graph.ops:
            rows = need.get(op.name)
            if rows is None:
                found.append((0, 0))
                continue
            padding = 0
            if op.inputs and "padding" in op.attrs:
                padding = ints(read[op.name].attrs, "padding")[2 * at]
            found.append((rows.stop if at else rows.start, padding))
        return found

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


class _Timed(NamedTuple):
    macs: int
    ms: float
    contended_ms: float
    peak_bytes: int


#: A part, and what decides the costs of a band of it.
_StepKey = tuple[int, _Place]


class _Step(NamedTuple):
    """A part of a run, and the rows of its output that a band of the run computes."""

    part: _Part
    start: int  # First row.
    stop: int  # The one behind the last row.
    key: _StepKey  # What equal bands of equal parts have in common.


#: First and last part of a run, and first row of its output and the one behind the last.
_RunRows = tuple[int, int, int, int]


class _Built:
    """What is known of bands of parts, whichever networks and divisions they are of, and whatever the device."""

    def __init__(self) -> None:
        self.parts: dict[Structure, _Part] = {}
        self.kernels: dict[tuple[_StepKey, tuple[str, tuple[str, ...]], bool], list[Kernel]] = {}
        #: By the parts of a network: the rows of each part of a run, and multiply-accumulates.
        self.chains: dict[tuple[int, ...], dict[_RunRows, list[_Step]]] = {}
        self.macs: dict[tuple[int, ...], dict[_RunRows, int | None]] = {}


class _Known:
    """What is known of their times at the costs of a device."""

    def __init__(self) -> None:
        self.timed: dict[tuple[str, bool], dict[_StepKey, _Timed | None]] = {}


class BandCosts:
    """Costs of bands of runs of parts on one device.

    Args:
        parts: The parts of a network, in order, divided where no kernel spans.
    """

    def __init__(self, costs: Costs, parts: Sequence[Segment]) -> None:
        self.costs = costs
        self.parts = tuple(parts)
        self._built, self._known = costs.built(_Built), costs.remembered(_Known)
        self._parts = [self._part(part.graph) for part in parts]
        self._bands: dict[BandKey, BranchCost | None] = {}
        self._cutters: dict[str, bool] = {}
        self._backends: dict[str, tuple[str, tuple[str, ...]]] = {}
        same = tuple(map(id, self._parts))
        self._chains, self._macs = self._built.chains.setdefault(same, {}), self._built.macs.setdefault(same, {})

    def _part(self, graph: OpGraph) -> _Part:
        built = structure(graph)
        if built not in self._built.parts:
            self._built.parts[built] = _Part(graph)
        return self._built.parts[built]

    def rows(self, last: int) -> int:
        """Rows of what a part writes."""
        return self._parts[last].rows

    def prepare(self, bands: Iterable[BandKey]) -> None:
        """Time the kernels of many bands together, which takes little longer than those of one."""
        new: dict[str, list[Kernel]] = {}
        asked: dict[tuple[str, bool], set[_StepKey]] = {}
        for key in dict.fromkeys(bands):
            chain = self._chain(key)
            wanted = [(chain, False), (chain[-1:], True)] if self._cutting(key.processor) else [(chain, False)]
            for steps, cut in wanted:
                timed, seen = self._timed(key.processor, cut), asked.setdefault((key.processor, cut), set())
                for step in steps:
                    if step.key not in timed and step.key not in seen:
                        seen.add(step.key)
                        new.setdefault(key.processor, []).extend(self._launched(step, key.processor, cut))
        for processor, kernels in new.items():
            self.costs.kernels_time(kernels, processor)

    def band(self, key: BandKey) -> BranchCost | None:
        """What a band costs; None if an operator would read no row for it."""
        if key not in self._bands:
            self._bands[key] = self._band(key)
        return self._bands[key]

    def _band(self, key: BandKey) -> BranchCost | None:
        chain = self._chain(key)
        if not chain:
            return None
        macs, ms, contended_ms, peak_bytes = 0, 0.0, 0.0, 0
        timed, begins = self._timed(key.processor, False), chain[-1]
        # a loop over plain numbers: bands are asked for by the hundred thousand
        for step in chain:
            known = timed[step.key] if step.key in timed else self._time(step, key.processor, cut=False)
            if known is None:
                return None
            macs, ms, contended_ms = macs + known.macs, ms + known.ms, contended_ms + known.contended_ms
            peak_bytes = max(peak_bytes, known.peak_bytes)
        top, bottom = begins.part.reads(begins.start, begins.stop)
        cutting = self._time(begins, key.processor, cut=True) if self._cutting(key.processor) else None
        cut_ms = cutting.contended_ms - known.contended_ms if cutting and known else 0.0
        return BranchCost(
            key.processor,
            depth=0,
            width=self.parts[key.last].width,
            entry="none",
            macs=macs,
            params=0,
            ms=ms,
            contended_ms=contended_ms,
            peak_bytes=peak_bytes,
            rows=(key.start, key.stop),
            reads=(bottom - top) * _line(begins.part.graph.input.shape),
            writes=(key.stop - key.start) * _line(self.parts[key.last].graph.by_name[self.parts[key.last].end].shape),
            cut_ms=cut_ms,
        )

    def macs(self, key: BandKey) -> int | None:
        """Multiply-accumulates of a band alone; None if there is none such."""
        place = (key.first, key.last, key.start, key.stop)
        if place not in self._macs:
            graphs = [step.part.band(step.start, step.stop, cut=False) for step in self._chain(key)]
            self._macs[place] = sum(graph.macs for graph in graphs if graph is not None) if graphs and None not in graphs else None
        return self._macs[place]

    def _cutting(self, processor: str) -> bool:
        """Whether bands on a processor copy the rows they read where the tensor is there already; else nobody asks what that takes."""
        if processor not in self._cutters:
            self._cutters[processor] = cuts_itself(processor, processor, self.costs.predictor)
        return self._cutters[processor]

    def _chain(self, key: BandKey) -> list[_Step]:
        """Each part with the rows of its output that are computed, the last part first; empty where a part would need none."""
        place = (key.first, key.last, key.start, key.stop)
        if place not in self._chains:
            self._chains[place] = self._steps(*place)
        return self._chains[place]

    def _steps(self, first: int, last: int, start: int, stop: int) -> list[_Step]:
        found = []
        for number in range(last, first - 1, -1):
            if start >= stop:
                return []
            part = self._parts[number]
            found.append(_Step(part, start, stop, (id(part), part.place(start, stop))))
            start, stop = part.reads(start, stop)
        return found if start < stop else []

    def _launched(self, step: _Step, processor: str, cut: bool) -> list[Kernel]:
        """Kernels of a band of a part; none where there is no such band."""
        if processor not in self._backends:
            profile = self.costs.predictor.device.processor(processor).profile
            self._backends[processor] = profile.backend, profile.unsupported
        key, kernels = (step.key, self._backends[processor], cut), self._built.kernels
        if key not in kernels:
            graph = step.part.band(step.start, step.stop, cut=cut)
            kernels[key] = self.costs.predictor.kernels(graph, processor) if graph is not None else []
        return kernels[key]

    def _timed(self, processor: str, cut: bool) -> dict[_StepKey, _Timed | None]:
        """What is known of bands on a processor, with or without the cut they begin with."""
        return self._known.timed.setdefault((processor, cut), {})

    def _time(self, step: _Step, processor: str, *, cut: bool) -> _Timed | None:
        timed = self._timed(processor, cut)
        if step.key not in timed:
            timed[step.key] = self._measured(step, processor, cut)
        return timed[step.key]

    def _measured(self, step: _Step, processor: str, cut: bool) -> _Timed | None:
        if step.part.band(step.start, step.stop, cut=cut) is None:
            return None
        kernels = self._launched(step, processor, cut)
        item = self.costs.item_bytes(processor)
        peak = max(((k.cost.reads + k.cost.writes) * item for k in kernels), default=0)
        time = self.costs.kernels_time(kernels, processor)
        return _Timed(sum(k.macs for k in kernels), time.ms, time.contended_ms, peak)


def _line(shape: Shape) -> int:
    """Elements of one row of a tensor."""
    return prod(shape) // height(shape)


def structure(graph: OpGraph) -> Structure:
    """What parts that are built alike have in common: everything but names."""
    number = {op.name: i for i, op in enumerate(graph.ops)}
    return tuple((op.kind, tuple(number[name] for name in op.inputs), _attrs(op.attrs), op.shape) for op in graph.ops)


def _attrs(attrs: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    return tuple(sorted(attrs.items()))
