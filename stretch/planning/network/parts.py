"""Parts: the pieces that bands of rows and branches of channels are planned for.

Branches that are scaled copies meet at the ends of stages. Bands of rows are
exact wherever they meet, and the fewer operators lie between two meetings, the
smaller is what two bands both compute; so they may also meet within a stage,
between its blocks.
"""

import itertools
from collections.abc import Collection, Sequence

from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.operators import kind_of
from predictors.rows import all_rows, height
from stretch.planning.network.segments import Segment, cut_segment
from stretch.planning.network.units import cut_points


def divide(graph: OpGraph, stage: Segment, clean: Collection[str], *, every: bool = False, vectors: bool = False) -> list[Segment]:
    """The parts of a stage: its blocks, and what is behind its last tensor with rows.

    Args:
        clean: Cut points that no kernel spans.
        every: Whether to divide it at every one of them that has rows, within blocks, too.
        vectors: Whether each linear layer that reads what another computed begins a part, too.
    """
    ends = [block.end for block in stage.blocks]
    tall = [
        name
        for name in cut_points(stage.graph)
        if len(stage.graph.by_name[name].shape) == 4 and height(stage.graph.by_name[name].shape) > 1
    ]
    order = {op.name: i for i, op in enumerate(stage.graph.ops)}
    behind = _linear_cuts(stage.graph) if vectors else []
    wanted = tall if every else (*ends, *tall[-1:])
    inner = sorted({name for name in (*wanted, *behind) if name in clean and name not in (stage.start, stage.end)}, key=order.__getitem__)
    if not inner:
        return [stage]
    bounds = [stage.start, *inner, stage.end]
    return [cut_segment(graph, f"{stage.name}_{i}", a, b) for i, (a, b) in enumerate(itertools.pairwise(bounds), start=1)]


def _linear_cuts(graph: OpGraph) -> list[str]:
    """What linear layers read that follow others."""
    layers, cuts = [op for op in graph.ops if op.kind == "linear"], set(cut_points(graph))
    return [op.inputs[0] for op in layers[1:] if op.inputs[0] in cuts]


def clean_cuts(graph: OpGraph, launched: Sequence[Sequence[Kernel]]) -> set[str]:
    """Cut points of a network that no kernel spans: none computes operators both before and behind them."""
    order = {op.name: i for i, op in enumerate(graph.ops)}
    spans = [(min(places), max(places)) for kernels in launched for k in kernels if (places := [order[name] for name in k.ops])]
    return {name for name in cut_points(graph) if not any(first <= order[name] < last for first, last in spans)}


def mixing(graph: OpGraph) -> list[str]:
    """Operators that need every row of what they read for any row of what they write, by name."""
    return [op.name for op in graph.ops if op.inputs and kind_of(op.kind).rows is all_rows and max(map(height, graph.input_shapes(op))) > 1]
