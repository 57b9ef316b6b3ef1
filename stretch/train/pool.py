"""Designs for a supernet, drawn at random from those of equal cost."""

import random
from collections.abc import Mapping

from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.scale import scaled_graph
from stretch.planning.segments import Segment, split_segments
from stretch.planning.widths import legal_widths, partitions

#: Draws of a whole design before giving up.
_TRIES = 20_000


def random_designs(
    graph: OpGraph,
    device: str,
    processors: tuple[str, ...],
    align: Mapping[str, int],
    count: int,
    macs: tuple[float, float],
    *,
    min_depth: float = 0.25,
    min_width: float = 0.25,
    seed: int = 0,
) -> list[BranchDesign]:
    """Different designs that branch every stage over the same processors by `project` joins.

    Args:
        graph: The original network.
        device: Profile id.
        processors: A branch each.
        align: Width rounding by processor.
        count: Designs to draw.
        macs: Range of multiply-accumulates over the original's.
        min_depth: Depth ratio, at least.
        min_width: Width ratio, at least.
        seed: Of the draw.

    Raises:
        InfeasibleError: If too few designs are within the range.
    """
    draw = random.Random(seed)
    stages = split_segments(graph)
    found: dict[BranchDesign, None] = {}
    widths = {(s.name, p): legal_widths(s, align[p], min_width) for s in stages if s.branchable for p in processors}
    for _ in range(_TRIES):
        if len(found) == count:
            return list(found)
        parts = [_part(s, processors, align, widths, min_depth, draw) for s in stages]
        design = BranchDesign(graph.name, device, tuple(parts))
        if design not in found and macs[0] <= scaled_graph(graph, design).macs / graph.macs <= macs[1]:
            found[design] = None
    raise InfeasibleError(
        f"only {len(found)} of {count} designs have {macs[0]:g} to {macs[1]:g} of the original's MACs",
        "widen supernet.macs, or name designs",
    )


def _part(
    stage: Segment,
    processors: tuple[str, ...],
    align: Mapping[str, int],
    widths: Mapping[tuple[str, str], list[int]],
    min_depth: float,
    draw: random.Random,
) -> SegmentDesign:
    if not stage.branchable or stage.width < len(processors):
        first = processors[0]
        return SegmentDesign(stage.name, stage.start, stage.end, (BranchScale(first, stage.depth, stage.width, align=align[first]),))
    scales = []
    for processor in processors:
        width = draw.choice(widths[stage.name, processor])
        depth = draw.randint(max(stage.min_depth, round(min_depth * stage.depth)), stage.depth)
        entry = "project" if stage.arriving(width) not in (None, stage.in_width) else "none"
        scales.append(BranchScale(processor, depth, width, entry, 0, align[processor]))
    shares = partitions(stage.width, [b.width for b in scales], max(b.align for b in scales))
    branches = tuple(BranchScale(b.processor, b.depth, b.width, b.entry, s, b.align) for b, s in zip(scales, shares, strict=True))
    return SegmentDesign(stage.name, stage.start, stage.end, branches, "project")
