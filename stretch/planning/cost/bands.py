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


class _Known:
    """What is known of bands of parts at the costs of a device, whichever networks and divisions they are of."""

    def __init__(self) -> None:
        self.parts: dict[Structure, _Part] = {}
        self.kernels: dict[tuple[int, tuple[str, tuple[str, ...]], _Place, bool], list[Kernel]] = {}
        self.timed: dict[tuple[int, str, _Place, bool], _Timed | None] = {}


class BandCosts:
    """Costs of bands of runs of parts on one device.

    Args:
        parts: The parts of a network, in order, divided where no kernel spans.
    """

    def __init__(self, costs: Costs, parts: Sequence[Segment]) -> None:
        self.costs = costs
        self.parts = tuple(parts)
        self._known = costs.remembered(_Known)
        self._parts = [self._part(part.graph) for part in parts]
        self._bands: dict[BandKey, BranchCost | None] = {}
        self._cutters: dict[str, bool] = {}
        self._backends: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._chains: dict[tuple[int, int, int, int], list[tuple[int, int, int]]] = {}

    def _part(self, graph: OpGraph) -> _Part:
        built = structure(graph)
        if built not in self._known.parts:
            self._known.parts[built] = _Part(graph)
        return self._known.parts[built]

    def rows(self, last: int) -> int:
        """Rows of what a part writes."""
        return self._parts[last].rows

    def prepare(self, bands: Iterable[BandKey]) -> None:
        """Time the kernels of many bands together, which takes little longer than those of one."""
        new: dict[str, list[Kernel]] = {}
        asked: set[tuple[int, str, _Place, bool]] = set()
        for key in dict.fromkeys(bands):
            for number, start, stop in self._chain(key):
                part = self._parts[number]
                for cut in (False, True) if number == key.first and self._cutting(key.processor) else (False,):
                    place = (id(part), key.processor, part.place(start, stop), cut)
                    if place not in self._known.timed and place not in asked:
                        asked.add(place)
                        new.setdefault(key.processor, []).extend(self._launched(number, key.processor, start, stop, cut))
        for processor, kernels in new.items():
            self.costs.kernels_time(kernels, processor)

    def band(self, key: BandKey) -> BranchCost | None:
        """What a band costs; None if an operator would read no row for it."""
        if key not in self._bands:
            self._bands[key] = self._band(key)
        return self._bands[key]

    def _band(self, key: BandKey) -> BranchCost | None:
        chain = self._chain(key)
        known: list[_Timed] = []
        for number, start, stop in chain:
            timed = self._time(number, key.processor, start, stop, cut=False)
            if timed is None:
                return None
            known.append(timed)
        if not known:
            return None
        first, (_, start, stop) = self._parts[key.first], chain[-1]
        top, bottom = first.reads(start, stop)
        cutting = self._time(key.first, key.processor, start, stop, cut=True) if self._cutting(key.processor) else None
        cut_ms = cutting.contended_ms - known[-1].contended_ms if cutting else 0.0
        return BranchCost(
            key.processor,
            depth=0,
            width=self.parts[key.last].width,
            entry="none",
            macs=sum(each.macs for each in known),
            params=0,
            ms=sum(each.ms for each in known),
            contended_ms=sum(each.contended_ms for each in known),
            peak_bytes=max(each.peak_bytes for each in known),
            rows=(key.start, key.stop),
            reads=(bottom - top) * _line(first.graph.input.shape),
            writes=(key.stop - key.start) * _line(self.parts[key.last].graph.by_name[self.parts[key.last].end].shape),
            cut_ms=cut_ms,
        )

    def macs(self, key: BandKey) -> int | None:
        """Multiply-accumulates of a band alone; None if there is none such."""
        graphs = [self._parts[number].band(start, stop, cut=False) for number, start, stop in self._chain(key)]
        return sum(graph.macs for graph in graphs if graph is not None) if graphs and None not in graphs else None

    def _cutting(self, processor: str) -> bool:
        """Whether bands on a processor copy the rows they read where the tensor is there already; else nobody asks what that takes."""
        if processor not in self._cutters:
            self._cutters[processor] = cuts_itself(processor, processor, self.costs.predictor)
        return self._cutters[processor]

    def _chain(self, key: BandKey) -> list[tuple[int, int, int]]:
        """Each part with the rows of its output that are computed, the last part first; empty where a part would need none."""
        place = (key.first, key.last, key.start, key.stop)
        if place not in self._chains:
            self._chains[place] = self._rows(*place)
        return self._chains[place]

    def _rows(self, first: int, last: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        found = []
        for number in range(last, first - 1, -1):
            if start >= stop:
                return []
            found.append((number, start, stop))
            start, stop = self._parts[number].reads(start, stop)
        return found if start < stop else []

    def _launched(self, number: int, processor: str, start: int, stop: int, cut: bool) -> list[Kernel]:
        """Kernels of a band of a part; none where there is no such band."""
        part = self._parts[number]
        if processor not in self._backends:
            profile = self.costs.predictor.device.processor(processor).profile
            self._backends[processor] = profile.backend, profile.unsupported
        key, kernels = (id(part), self._backends[processor], part.place(start, stop), cut), self._known.kernels
        if key not in kernels:
            graph = part.band(start, stop, cut=cut)
            kernels[key] = self.costs.predictor.kernels(graph, processor) if graph is not None else []
        return kernels[key]

    def _time(self, number: int, processor: str, start: int, stop: int, *, cut: bool) -> _Timed | None:
        part = self._parts[number]
        key = (id(part), processor, part.place(start, stop), cut)
        timed = self._known.timed
        if key not in timed:
            timed[key] = self._measured(number, processor, start, stop, cut)
        return timed[key]

    def _measured(self, number: int, processor: str, start: int, stop: int, cut: bool) -> _Timed | None:
        if self._parts[number].band(start, stop, cut=cut) is None:
            return None
        kernels = self._launched(number, processor, start, stop, cut)
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
