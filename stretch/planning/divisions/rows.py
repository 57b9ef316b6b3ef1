"""Bands of rows: each branch computes some rows of a segment's output, and only the rows of other tensors that these need.

Bands of one image are exact: concatenated, they are the output of the whole graph. Rows that two bands both need
are the halo, which is computed twice. Any run of parts may be computed in bands, on any subset of the processors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod

import msgspec

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.host import kind_of as family_of
from predictors.joins import meeting_of
from predictors.operators import kind_of
from predictors.predictor import Estimate, KernelsTime, LatencyPredictor
from predictors.rows import Band, Rows, height
from stretch.planning.cost.branch import BranchCost, Costs, SegmentOptions
from stretch.planning.design.branch_design import Division, Piece, SegmentDesign, Share, check_ranges, range_of
from stretch.planning.network.segments import Segment, memoised, mixing_operators
from stretch.planning.search.parts import Divisible, PartSpace, RangeCandidates, Split, SplitBranches, band_ranges, structure

#: Name of the operator that cuts the rows of a band out of its input.
ENTRY_ROWS = "entry_rows"

#: Tag with the original padding (top, left, bottom, right) of an operator in a band.
PADDING_TAG = "whole_padding"


def bands_of(graph: OpGraph, start: int, stop: int) -> tuple[dict[str, Rows], dict[str, Band]]:
    """Return the rows of every operator's output that rows `start` up to `stop` of the graph's output need, by name, and the bands.

    Operators that are not needed are left out of both; inputs have no band.
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
                reason = f"rows {start} to {stop} of `{graph.output}` need rows of `{op.name}` that lie in its padding alone"
                raise StretchError(reason, "choose higher bands")
            before = need.get(name, reads)
            need[name] = Rows(min(before.start, reads.start), max(before.stop, reads.stop))
    return need, bands


def band_graph(graph: OpGraph, name: str, start: int, stop: int) -> OpGraph:
    """Return the graph that computes rows `start` up to `stop` of a graph's output, without rows that are not needed."""
    need, bands = bands_of(graph, start, stop)
    source = graph.input
    ops = [source]
    reads = {source.name: _cut(ops, ENTRY_ROWS, source.name, height(source.shape), need[source.name])}
    for op in graph.ops:
        band = bands.get(op.name)
        if band is None:
            continue
        inputs = []
        for at, (tensor, wanted) in enumerate(zip(op.inputs, band.reads, strict=True)):
            has = need[tensor]
            rows = Rows(wanted.start - has.start, wanted.stop - has.start)
            inputs.append(_cut(ops, f"{op.name}_rows{at}", reads[tensor], len(has), rows))
        tags = dict(op.tags)
        if band.attrs.get("padding") != op.attrs.get("padding"):
            tags[PADDING_TAG] = msgspec.json.encode(op.attrs["padding"]).decode()
        ops.append(Op(op.name, op.kind, tuple(inputs), band.attrs, tags=tags))
        shapes = zip(graph.input_shapes(op), band.reads, strict=True)
        banded = [(*shape[:2], len(read), *shape[3:]) if len(shape) == 4 else shape for shape, read in shapes]
        computed = height(kind_of(op.kind).shape(banded, band.attrs))
        reads[op.name] = _cut(ops, f"{op.name}_band", op.name, computed, Rows(band.skip, band.skip + len(need[op.name])))
    return OpGraph.build(name, ops, reads[graph.output])


def _cut(ops: list[Op], name: str, source: str, present: int, needed: Rows) -> str:
    """Return the name of a tensor with only the needed rows: `source` if it has no others, else a new operator, added to `ops`."""
    if (needed.start, needed.stop) == (0, present):
        return source
    ops.append(Op(name, "slice_rows", (source,), {"start": needed.start, "stop": needed.stop}))
    return name


# A band begins with a cut of its input. If the input comes over a link, the cut is a part of the conversion: only the needed rows are
# converted. If the tensor is already on the band's processor, the cut is a view if the layout keeps rows contiguous, else a copy.


def handed_over_graph(graph: OpGraph) -> OpGraph:
    """Return a band's graph without its first cut, for an input that only has the needed rows; other graphs are unchanged."""
    cut = graph.by_name.get(ENTRY_ROWS)
    if cut is None:
        return graph
    source, kept_ops = graph.input, [op for op in graph.ops if op not in (graph.input, cut)]
    renamed = {ENTRY_ROWS: source.name}
    ops = [replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs)) for op in kept_ops]
    begin = Op(source.name, "input", attrs={"shape": cut.shape}, tags=source.tags)
    return OpGraph.build(graph.name, [begin, *ops], renamed.get(graph.output, graph.output))


def cuts_itself(holder: str, processor: str, predictor: LatencyPredictor) -> bool:
    """Return whether a band must copy its input rows: the tensor is on its own processor, whose layout does not keep rows contiguous."""
    if family_of(holder) != family_of(processor):
        return False
    return meeting_of("rows").copies(predictor.device.processor(processor).profile.layout)


# A network is divided at cut points that no kernel spans, so a band of several parts is a sequence of bands of the parts: the input rows of
# a part are the rows that the previous part computes. A band of a part is timed once for all bands that only differ in their position
# in the image, and for all parts with the same structure.


@dataclass(frozen=True, eq=False)
class _Step:
    """A band of one part, shared by all bands with the same cost."""

    cutting: OpGraph  # Graph of a band that cuts its input rows out of the whole tensor.

    @cached_property
    def graph(self) -> OpGraph:
        """Graph of a band whose input only has these rows."""
        return handed_over_graph(self.cutting)


class _BandedPart:
    """Bands of one part, and of all parts with the same structure."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self._steps: dict[tuple[object, ...], _Step] = {}

    @memoised
    def band(self, start: int, stop: int) -> tuple[_Step, tuple[int, int]] | None:
        """Return a band and the start and end of its input rows; None if an operator would read no row, or only padding."""
        try:
            need, bands = bands_of(self.graph, start, stop)
            # the position in the image makes no difference
            computed = [(op, bands[op.name]) for op in self.graph.ops if op.name in bands]
            reads = [tuple((r.start - need[n].start, len(r)) for n, r in zip(op.inputs, band.reads, strict=True)) for op, band in computed]
            sizes = [(len(need[op.name]), band.skip, band.attrs.get("padding")) for op, band in computed]
            place = tuple(zip(sizes, reads, strict=True))
            if place not in self._steps:
                self._steps[place] = _Step(band_graph(self.graph, self.graph.name, start, stop))
        except StretchError:
            return None
        arriving = need[self.graph.input.name]
        return self._steps[place], (arriving.start, arriving.stop)


@dataclass(frozen=True, eq=False)
class _Band:
    """A band of a run of parts."""

    steps: tuple[_Step, ...]  # The bands of its parts, from the last part to the first.
    rows: tuple[int, int]  # First row and exclusive end row of the run's output.
    macs: int  # Multiply-accumulates.
    reads: int  # Elements that it reads.
    writes: int  # Elements that it writes.


@memoised
def _step_times(costs: Costs) -> dict[tuple[str, _Step, bool], tuple[KernelsTime, int]]:
    """Return the cache of kernel times and maximum kernel bytes of steps, by processor, step, and whether the band cuts its input."""
    return {}


class BandCosts:
    """Costs of bands of runs of parts on one device."""

    def __init__(self, costs: Costs, parts: Sequence[Segment]) -> None:
        self.costs, self.parts = costs, tuple(parts)
        # parts with the same structure have the same bands
        known = costs.cache_of("banded parts")
        self._parts: list[_BandedPart] = [known.setdefault(structure(part.graph), _BandedPart(part.graph)) for part in parts]
        self._costs: dict[tuple[str, _Band], BranchCost] = {}

    @memoised
    def band(self, first: int, last: int, start: int, stop: int) -> _Band | None:
        """Return the band of a run for output rows `start` up to `stop`; None if an operator would read no row for it."""
        at, steps = (start, stop), []
        for part in reversed(self._parts[first : last + 1]):
            band = part.band(*at)
            if band is None:
                return None
            steps.append(band[0])
            at = band[1]
        read, written = self._parts[first].graph.input.shape, self._parts[last].graph.by_name[self._parts[last].graph.output].shape
        sizes = ((b - a) * (prod(shape) // height(shape)) for (a, b), shape in ((at, read), ((start, stop), written)))
        return _Band(tuple(steps), (start, stop), sum(step.graph.macs for step in steps), *sizes)

    def cost(self, processor: str, bands: Sequence[_Band]) -> list[BranchCost]:
        """Return the costs of bands on a processor, as branches; new bands are timed together."""
        known, costs = _step_times(self.costs), self._costs
        new = [band for band in dict.fromkeys(bands) if (processor, band) not in costs]
        # time the copy of the rows only if the layout requires one
        cuts = cuts_itself(processor, processor, self.costs.predictor)
        steps = [(step, False) for band in new for step in band.steps] + [(band.steps[-1], True) for band in new if cuts]
        steps = [item for item in dict.fromkeys(steps) if (processor, *item) not in known]
        launched = {(step, cut): self.costs.predictor.kernels(step.cutting if cut else step.graph, processor) for step, cut in steps}
        # one call for all kernels: a fit's trees take little longer for many kernels than for one
        self.costs.kernels_time([kernel for kernels in launched.values() for kernel in kernels], processor)
        for item, kernels in launched.items():
            known[(processor, *item)] = self.costs.kernels_time(kernels, processor), self.costs.peak_bytes(kernels, processor)
        for band in new:
            times, peak = zip(*[known[processor, step, False] for step in band.steps], strict=True)
            whole = known[processor, band.steps[-1], True][0] if cuts else times[-1]
            cut = KernelsTime(*(a - b for a, b in zip(whole, times[-1], strict=True)))
            sums = band.macs, 0, *KernelsTime.total(times), max(peak)
            costs[processor, band] = BranchCost(processor, 0, 0, "none", *sums, band.rows, band.reads, band.writes, cut)
        return [costs[processor, band] for band in bands]


#: Maximum multiply-accumulates that the two halves of a run repeat, as a share of the run's.
MAX_HALO = 0.5


class BandCandidates(RangeCandidates):
    """Divisions of runs of parts into bands."""

    keep_all = True

    def __init__(self, parts: PartSpace) -> None:
        super().__init__(parts.space, DIVISION.word)
        self.parts, self.bands = parts, BandCosts(parts.space.costs, parts.parts)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """First and last part of every run that may be split by rows."""
        runs = []
        for first in range(len(self.parts.parts)):
            macs = 0
            for last in range(first, first + 1 if self.parts.single else len(self.parts.parts)):
                if not self.parts.merged and self.parts.stage[last] != self.parts.stage[first]:
                    break
                macs += self.parts.parts[last].graph.macs
                halo = self._halo(first, last, macs)
                if halo is None or halo > 2 * MAX_HALO:
                    # longer runs need even more rows
                    break
                if halo <= MAX_HALO:
                    runs.append((first, last))
                if self.parts.parts[last].tapped:
                    break
        return runs

    def _halo(self, first: int, last: int, macs: int) -> float | None:
        """Return the share of a run that its halves compute twice; None if it cannot be halved."""
        shape = self.parts.parts[last].graph.by_name[self.parts.parts[last].end].shape
        rows = height(shape)
        if len(shape) != 4 or rows < 2:
            return None
        halves = [band for half in band_ranges(rows, (rows // 2,)) if (band := self.bands.band(first, last, *half)) is not None]
        if len(halves) < 2:
            return None
        return sum(band.macs for band in halves) / macs - 1 if macs else 0.0

    def units(self, divisible: Divisible, order: Sequence[str]) -> int:
        """Return the number of rows of the run's output."""
        return height(divisible.end.graph.by_name[divisible.end.end].shape)

    def branches(self, order: Sequence[str], requests: Sequence[tuple[Divisible, Sequence[Split]]]) -> list[SplitBranches]:
        """Return the costs of the bands of each run at each split."""
        eligible: list[dict[Split, list[_Band]]] = []
        for run, splits in requests:
            (first, last), rows, divided = run.of, self.units(run, order), {}
            for split in splits:
                bands = [band for rows_of in band_ranges(rows, split) if (band := self.bands.band(first, last, *rows_of)) is not None]
                if len(bands) == len(order):
                    divided[split] = bands
            eligible.append(divided)
        columns = zip(*(bands for divided in eligible for bands in divided.values()), strict=True)
        costs = zip(*(self.bands.cost(name, column) for name, column in zip(order, columns, strict=False)), strict=True)
        return [{split: list(next(costs)) for split in divided} for divided in eligible]

    def candidates(self) -> list[tuple[int, SegmentOptions]]:
        """Return options for all runs in bands, each with the index of its first part."""
        parts, runs = self.parts, []
        for first, last in self.runs:
            read = prod(parts.parts[first].graph.input.shape)
            segment = partial(parts.segment, first, last)
            runs.append(Divisible((first, last), "rows", segment, parts.parts[last], read, parts.alone_ms(first, last)))
        return [(run.of[0], parts.run_options(options, *run.of)) for run, options in self.options(runs)]


class _RowBands(Division):
    kind, joins, what, weights, halo = "rows", ("rows",), "a band of rows", "same", True

    def check(self, segment: Segment, design: SegmentDesign, shares: Sequence[Share]) -> None:
        """Refuse bands that do not follow each other without a gap from the first row to the last."""
        where, rows = f"segment `{segment.name}`", height(segment.graph.by_name[segment.end].shape)
        if len(shares) > rows:
            reason = f"{where} has {rows} rows for {len(shares)} processors, so that one of them has none"
            raise StretchError(reason, "divide them among fewer processors")
        check_ranges(where, self, design.names, shares, rows, "rows", "its output")

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        return [Piece(band_graph(graph, name, *range_of(share))) for name, share in zip(names, shares, strict=True)]

    def input_graph(self, graph: OpGraph, holder: str, processor: str, predictor: LatencyPredictor) -> OpGraph:
        """Return the graph with its cut if the band must copy its rows, else without it, because the transfer cuts them."""
        return graph if cuts_itself(holder, processor, predictor) else handed_over_graph(graph)

    def repeated_ms(self, whole: OpGraph, pieces: Sequence[tuple[OpGraph, Estimate, float]]) -> float:
        """Return the time for rows of an operator that bands compute beyond its own number of rows, ms; cuts do not count."""
        rows = Counter[str]()
        for graph, _, _ in pieces:
            rows.update({op.name: height(op.shape) for op in graph.ops})
        twice = {op.name: max(0.0, 1 - height(op.shape) / rows[op.name]) for op in whole.ops if rows[op.name]}
        total = 0.0
        for _, estimate, contention in pieces:
            for kernel in estimate.kernels:
                share = next((twice[name] for name in kernel.kernel.ops if name in twice), 0.0)
                total += kernel.time.ms * share * contention
        return total

    def candidates(self, parts: PartSpace) -> list[tuple[int, SegmentOptions]]:
        return BandCandidates(parts).candidates()

    def divisible_tensors(self, graph: OpGraph) -> tuple[str, ...]:
        """Return ``rows`` if input and output have several rows and no operator needs all of them."""
        low = min(height(graph.by_name[name].shape) for name in (graph.input.name, graph.output))
        return () if mixing_operators(graph) or low < 2 else ("rows",)

    def obstacle(self, graph: OpGraph) -> str | None:
        """Return a text on the operators that need every row, or on missing rows; None without an obstacle."""
        mixed = mixing_operators(graph)
        if not mixed:
            return None if len(graph.input.shape) == 4 else "its tensors have no rows"
        kinds = ", ".join(dict.fromkeys(graph.by_name[name].kind for name in mixed))
        if len(mixed) == 1:
            return f"`{mixed[0]}` ({kinds}) needs every row of what it reads"
        return f"`{mixed[0]}` and {len(mixed) - 1} others ({kinds}) need every row of what they read"

    def remark(self, stages: Sequence[Segment]) -> str | None:
        """Return a text on the operators that prevent a division of blocks; None if there are none."""
        undivided: dict[str, list[str]] = {}
        for stage in stages:
            # operators after the last tensor with rows cannot be divided anyway
            graph, last = stage.graph, max((i for i, op in enumerate(stage.graph.ops) if height(op.shape) > 1), default=0)
            for kind in dict.fromkeys(graph.by_name[name].kind for name in mixing_operators(graph) if graph.position[name] < last):
                undivided.setdefault(kind, []).append(stage.name)
        if not undivided:
            return None
        where = ", ".join(f"`{kind}` in {', '.join(stages)}" for kind, stages in undivided.items())
        return f"blocks with operators that need every row of their input are not split by rows: {where}"


DIVISION = _RowBands()
