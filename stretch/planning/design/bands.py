"""Bands of rows: a part of a graph's output, computed from no more rows of everything than it needs.

Bands of one image are exact: put below each other they are the output of the whole
graph. Rows that two bands both need are the halo: what is computed of them is
computed twice.
"""

from collections.abc import Sequence

import msgspec

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import join_of
from predictors.operators import kind_of
from predictors.rows import Band, Rows, height
from predictors.shapes import Attrs
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import Segment

#: The operator that cuts out of what arrives the rows that a band reads.
ENTRY_ROWS = "entry_rows"

#: Tag with the padding (top, left, bottom, right) that an operator of a band has in the whole.
PADDING_TAG = "whole_padding"


def needed_rows(graph: OpGraph, start: int, stop: int) -> dict[str, Rows]:
    """Rows of every operator's output that rows `start` up to `stop` of the graph's output need, by name; those of no use are left out.

    Args:
        graph: Operators that end in a feature map.
    """
    return bands_of(graph, start, stop)[0]


def bands_of(graph: OpGraph, start: int, stop: int) -> tuple[dict[str, Rows], dict[str, Band]]:
    """What `needed_rows` tells, and of every operator that reads something what computes these rows."""
    need: dict[str, Rows] = {graph.output: Rows(start, stop)}
    bands: dict[str, Band] = {}
    for op in reversed(graph.ops):
        rows = need.get(op.name)
        if rows is None or not op.inputs:
            continue
        bands[op.name] = band = graph.op_rows(op, rows.start, rows.stop)
        for name, reads in zip(op.inputs, band.reads, strict=True):
            if not len(reads):
                raise StretchError(
                    f"rows {start} to {stop} of `{graph.output}` need rows of `{op.name}` that lie in its padding alone",
                    "choose higher bands",
                )
            before = need.get(name, reads)
            need[name] = Rows(min(before.start, reads.start), max(before.stop, reads.stop))
    return need, bands


def band_graph(graph: OpGraph, name: str, start: int, stop: int, *, handed: bool = False) -> OpGraph:
    """The graph that computes rows `start` up to `stop` of a graph's output from the whole of its input.

    Operators keep their names and weights. It begins with a cut of the rows that
    it reads, and where an operator needs fewer rows of a tensor than another one,
    or computes more than are needed, they are cut, too.
    """
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
        ops.append(Op(op.name, op.kind, tuple(inputs), band.attrs, tags=_tagged(op, band.attrs)))
        computed = _computed(graph, op, band.attrs, [len(read) for read in band.reads])
        reads[op.name] = _cut(ops, f"{op.name}_band", op.name, computed, Rows(band.skip, band.skip + len(need[op.name])))
    return OpGraph.build(name, ops, reads[graph.output])


def _tagged(op: Op, attrs: Attrs) -> dict[str, str]:
    """An operator's tags, and its padding in the whole where the band's is another."""
    if attrs.get("padding") == op.attrs.get("padding"):
        return dict(op.tags)
    return {**op.tags, PADDING_TAG: msgspec.json.encode(op.attrs["padding"]).decode()}


def _computed(graph: OpGraph, op: Op, attrs: Attrs, heights: Sequence[int]) -> int:
    """Rows that an operator computes of inputs of these heights."""
    shapes = [
        (*shape[:2], rows, *shape[3:]) if len(shape) == 4 else shape for shape, rows in zip(graph.input_shapes(op), heights, strict=True)
    ]
    return height(kind_of(op.kind).shape(shapes, attrs))


def _cut(ops: list[Op], name: str, source: str, has: int, wanted: Rows) -> str:
    """The tensor that holds the wanted rows of one: itself if it has no others, else what a new operator cuts out."""
    if (wanted.start, wanted.stop) == (0, has):
        return source
    ops.append(Op(name, "slice_rows", (source,), {"start": wanted.start, "stop": wanted.stop}))
    return name


def check_rows(segment: Segment, design: SegmentDesign) -> None:
    """See that bands lie below each other without a gap, from the first row to the last."""
    where, at = f"segment `{segment.name}`", 0
    if not join_of(design.join).bands:
        if any(b.rows is not None for b in design.branches):
            raise StretchError(f"{where} has branches of some rows, which `{design.join}` does not join", 'set join = "rows"')
        return
    rows = height(segment.graph.by_name[segment.end].shape)
    if len(design.branches) > rows:
        raise StretchError(
            f"{where} has {rows} rows for {len(design.branches)} processors, so that one of them has none",
            "divide them among fewer processors",
        )
    for branch in design.branches:
        if branch.rows is None:
            raise StretchError(
                f"{where} is joined by rows, its branch on {branch.processor} does not say which it computes",
                "give it rows = [first, behind the last]",
            )
        start, stop = branch.rows
        if start != at or stop <= start:
            raise StretchError(
                f"{where} has rows {start} to {stop} on {branch.processor}, where rows from {at} on are due",
                f"the bands follow each other from row 0 to {rows}, and none is empty",
            )
        at = stop
    if at != rows:
        raise StretchError(f"{where} has bands up to row {at}, its output has {rows} rows", "let the last band end there")
