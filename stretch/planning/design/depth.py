"""Depth scaling: a segment with fewer blocks (paper 003, R_depth)."""

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.planning.network.segments import Segment


def dropped_blocks(segment: Segment, depth: int) -> set[int]:
    """Numbers of the blocks that a segment with only `depth` of them does not have.

    Units go from the end of the run that keeps the largest part of its own, so
    that merged stages shrink evenly; the first blocks of a run stay.
    """
    if not segment.min_depth <= depth <= segment.depth:
        raise StretchError(
            f"segment `{segment.name}` cannot have depth {depth}",
            f"it has {segment.depth} blocks, {segment.min_depth} of which stay: choose {segment.min_depth} to {segment.depth}",
        )
    left: dict[int, list[int]] = {}
    total: dict[int, int] = {}
    for i, block in enumerate(segment.blocks):
        total[block.run] = total.get(block.run, 0) + 1
        if block.removable:
            left.setdefault(block.run, []).append(i)
    gone: set[int] = set()
    for _ in range(segment.depth - depth):
        run = max((r for r in left if left[r]), key=lambda r: (len(left[r]) / total[r], r))
        gone.add(left[run].pop())
    return gone


def drop_units(segment: Segment, depth: int) -> OpGraph:
    """The segment with only `depth` blocks left, as `dropped_blocks` has it."""
    gone = dropped_blocks(segment, depth)
    if not gone:
        return segment.graph
    renamed: dict[str, str] = {}
    dropped: set[str] = set()
    for i, block in enumerate(segment.blocks):
        if i in gone:
            renamed[block.end] = renamed.get(block.start, block.start)
            dropped.update(block.ops)
    ops = [
        Op(op.name, op.kind, tuple(renamed.get(n, n) for n in op.inputs), op.attrs, tags=op.tags)
        for op in segment.graph.ops
        if op.name not in dropped
    ]
    output = renamed.get(segment.graph.output, segment.graph.output)
    return OpGraph.build(segment.graph.name, ops, output)
