"""Bands of rows: a part of a graph's output, computed from no more rows of everything than it needs.

Bands of one image are exact: put below each other they are the output of the whole
graph. Rows that two bands both need are the halo: what is computed of them is
computed twice.
"""

from collections.abc import Sequence

import msgspec

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.rows import Rows, height
from predictors.shapes import Attrs

#: The operator that cuts out of what arrives the rows that a band reads.
ENTRY_ROWS = "entry_rows"

#: Tag with the padding (top, left, bottom, right) that an operator of a band has in the whole.
PADDING_TAG = "whole_padding"


def needed_rows(graph: OpGraph, start: int, stop: int) -> dict[str, Rows]:
    """Rows of every operator's output that rows `start` up to `stop` of the graph's output need, by name; those of no use are left out.

    Args:
        graph: Operators that end in a feature map.
        start: First row.
        stop: The one behind the last row.

    Raises:
        StretchError: If the output has no such rows, or they lie so far in the padding that an operator reads no row for them.
    """
    need = {graph.output: Rows(start, stop)}
    for op in reversed(graph.ops):
        rows = need.get(op.name)
        if rows is None or not op.inputs:
            continue
        for name, reads in zip(op.inputs, graph.op_rows(op, rows.start, rows.stop).reads, strict=True):
            if not len(reads):
                raise StretchError(
                    f"rows {start} to {stop} of `{graph.output}` need rows of `{op.name}` that lie in its padding alone",
                    "choose higher bands",
                )
            before = need.get(name, reads)
            need[name] = Rows(min(before.start, reads.start), max(before.stop, reads.stop))
    return need


def band_graph(graph: OpGraph, name: str, start: int, stop: int) -> OpGraph:
    """The graph that computes rows `start` up to `stop` of a graph's output from the whole of its input.

    Operators keep their names and weights. It begins with a cut of the rows that
    it reads, and where an operator needs fewer rows of a tensor than another one,
    or computes more than are needed, they are cut, too.

    Args:
        graph: Operators that end in a feature map.
        name: Name of the new graph.
        start: First row.
        stop: The one behind the last row.

    Raises:
        StretchError: If the output has no such rows, or an operator would read none.
    """
    need = needed_rows(graph, start, stop)
    source = graph.input
    ops = [Op(source.name, "input", (), source.attrs, tags=source.tags)]
    reads = {source.name: _cut(ops, ENTRY_ROWS, source.name, height(source.shape), need[source.name])}
    for op in graph.ops:
        rows = need.get(op.name)
        if rows is None or not op.inputs:
            continue
        band = graph.op_rows(op, rows.start, rows.stop)
        inputs = []
        for at, (given, wanted) in enumerate(zip(op.inputs, band.reads, strict=True)):
            has = need[given]
            own = Rows(wanted.start - has.start, wanted.stop - has.start)
            inputs.append(_cut(ops, f"{op.name}_rows{at}", reads[given], len(has), own))
        ops.append(Op(op.name, op.kind, tuple(inputs), band.attrs, tags=_tagged(op, band.attrs)))
        made = _computed(graph, op, band.attrs, [len(each) for each in band.reads])
        reads[op.name] = _cut(ops, f"{op.name}_band", op.name, made, Rows(band.skip, band.skip + len(rows)))
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
