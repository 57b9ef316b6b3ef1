"""Where branches may meet: the ends of stages (paper 003, section 4.3)."""

from itertools import groupby

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from stretch.planning.network.units import cut_points, feature_maps, is_block, push_past_weightless, regions, resolution

#: A net whose blocks all have one shape is divided into this many equal parts.
EQUAL_PARTS = 4


def find_stem_end(graph: OpGraph) -> str:
    """The cut point where the stem ends.

    The first block's start where that block changes the shape (ResNet: behind
    the pooling) or stands behind what only states its shape (class tokens), else the first weighted operator, pushed past weightless ones.
    """
    first_weighted = next((op for op in graph.ops if not kind_of(op.kind).weightless), None)
    if first_weighted is None:
        return graph.input.name
    cuts = cut_points(graph)
    position = {op.name: i for i, op in enumerate(graph.ops)}
    after = next((c for c in cuts if position[c] >= position[first_weighted.name]), graph.output)
    stem = push_past_weightless(graph, after)
    block = next((r for r in regions(graph) if is_block(graph, r)), None)
    if block is not None and position[block.start] > position[stem]:
        start, end = graph.by_name[block.start], graph.by_name[block.end]
        between = graph.ops[position[stem] + 1 : position[block.start] + 1]
        if start.shape != end.shape or any(kind_of(op.kind).stated for op in between):
            return block.start
    return stem


def find_meeting_points(graph: OpGraph) -> list[str]:
    """Ends of the stages, in order; the stem's end is not among them.

    Rule: blocks of one (resolution, channels) that follow each other are a run,
    and a run's end, pushed past weightless operators, is a boundary. A
    resolution without a run takes its last narrowest cut point. A net that is
    one long run is divided into parts of equal cost.
    """
    maps = feature_maps(graph)
    cuts = [name for name in cut_points(graph) if name in maps or len(graph.by_name[name].shape) != 4]
    position = {op.name: i for i, op in enumerate(graph.ops)}
    stem = find_stem_end(graph)
    ends_of = [r.end for r in regions(graph) if is_block(graph, r) and r.end in cuts and position[r.end] > position[stem]]
    blocks = [graph.by_name[name] for name in ends_of]
    runs = [list(run) for _, run in groupby(blocks, key=lambda op: (resolution(op), op.shape[1]))]
    ends = _equal_parts(graph, runs[0]) if len(runs) == 1 and len(runs[0]) > EQUAL_PARTS else [run[-1].name for run in runs]
    with_run = {resolution(op) for run in runs for op in run}
    for size, group in groupby((graph.by_name[c] for c in cuts if position[c] > position[stem]), key=resolution):
        members = list(group)
        if size in with_run or size == (1, 1) or not any(not kind_of(op.kind).weightless for op in members):
            continue
        narrowest = min(op.shape[1] for op in members)
        ends.append([op for op in members if op.shape[1] == narrowest][-1].name)
    pushed = {push_past_weightless(graph, name) for name in ends}
    return sorted((p for p in pushed if position[p] > position[stem]), key=position.__getitem__)


def _equal_parts(graph: OpGraph, run: list[Op]) -> list[str]:
    """Block ends that divide one long run into parts of about equal cost."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    total, costs = 0, []
    for op in graph.ops[: position[run[-1].name] + 1]:
        total += graph.op_macs(op)
        costs.append(total)
    ends = []
    for part in range(1, EQUAL_PARTS + 1):
        target = total * part / EQUAL_PARTS
        ends.append(min(run, key=lambda op: abs(costs[position[op.name]] - target)).name)
    return list(dict.fromkeys(ends))
