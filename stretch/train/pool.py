"""Designs for a supernet: drawn at random from those of equal cost, or the fastest of them."""

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from predictors.joins import DEFAULT, join_of
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import aligns, design_segments, legal_widths, partitions, scaled_graph
from stretch.planning.network.segments import Segment, split_segments
from stretch.planning.plan import plan
from stretch.train.sharing import envelope

#: Maximum number of drawn designs.
_TRIES = 20_000
#: Draws without any design in range after which to give up.
_HOPELESS = 1_000
#: Slices of the range of multiply-accumulates per requested design, as some slices have no design.
_SLICES = 3


def random_designs(
    graph: OpGraph,
    profile: DeviceProfile,
    processors: tuple[str, ...],
    count: int,
    macs: tuple[float, float],
    *,
    min_depth: float = 0.25,
    min_width: float = 0.25,
    seed: int = 0,
) -> list[BranchDesign]:
    """Distinct designs that branch every stage over the same processors with the planner's default join."""
    processors = processors or tuple(profile.processors)
    align = aligns(profile, processors)
    draw = random.Random(seed)
    stages = split_segments(graph)
    widths = {(s.name, p): legal_widths(s, align[p], min_width) for s in stages if s.branchable for p in processors}

    def part(stage: Segment) -> SegmentDesign:
        if not stage.branchable or stage.width < len(processors):
            first = processors[0]
            return SegmentDesign(stage.name, stage.start, stage.end, (BranchScale(first, stage.depth, stage.width, align=align[first]),))
        shallowest = max(stage.min_depth, round(min_depth * stage.depth))
        scales = [(p, draw.randint(shallowest, stage.depth), draw.choice(widths[stage.name, p]), align[p]) for p in processors]
        return _branched(stage, scales, DEFAULT)

    return _distinct(graph, lambda: BranchDesign(graph.name, profile.id, tuple(part(s) for s in stages)), count, macs)


def designs_between(
    graph: OpGraph, pool: Sequence[BranchDesign], count: int, macs: tuple[float, float], *, seed: int = 0
) -> list[BranchDesign]:
    """Distinct designs whose branches lie between the smallest and the largest of a pool."""
    draw = random.Random(seed)
    least, most = envelope(pool, min), envelope(pool, max)
    stages = design_segments(graph, most)

    def part(stage: Segment, low: SegmentDesign, high: SegmentDesign) -> SegmentDesign:
        if high.whole:
            return high
        scales = []
        for a, b in zip(low.branches, high.branches, strict=True):
            widths = [w for w in legal_widths(stage, b.align) if a.width <= w <= b.width] or [b.width]
            scales.append((b.processor, draw.randint(a.depth, b.depth), draw.choice(widths), b.align))
        return _branched(stage, scales, high.join)

    def one() -> BranchDesign:
        parts = [part(*arguments) for arguments in zip(stages, least.segments, most.segments, strict=True)]
        return BranchDesign(most.model, most.device, tuple(parts))

    return _distinct(graph, one, count, macs)


def fastest_designs(
    graph: OpGraph, profile: DeviceProfile, config: PlanConfig, count: int, macs: tuple[float, float]
) -> list[BranchDesign]:
    """The planner's fastest designs, one per slice of the range of multiply-accumulates.

    The fastest designs of the whole range differ in a few channels; one per slice
    gives a pool whose members are worth choosing between. All meet at the same points
    over the same processors, as a supernet's designs must.
    """
    makespans: dict[BranchDesign, float] = {}
    step = (macs[1] - macs[0]) / (_SLICES * count)
    shape = None
    refused: InfeasibleError | None = None
    for number in range(_SLICES * count):
        part = (macs[0] + number * step, macs[0] + (number + 1) * step)
        try:
            result = plan(graph, profile, msgspec.structs.replace(config, macs=part))
        except InfeasibleError as error:
            refused = error
            continue
        placements = [(s.start, s.end, s.join, [b.processor for b in s.branches]) for s in result.design.segments]
        shape = shape or placements
        if placements == shape:
            makespans[result.design] = result.run.makespan_ms
    if not makespans and refused is not None:
        raise refused
    if len(makespans) < count:
        raise InfeasibleError(
            f"the planner finds {len(makespans)} of {count} designs with {macs[0]:g} to {macs[1]:g} of the original's MACs",
            "widen supernet.macs, ask for fewer, or draw at random",
        )
    return sorted(makespans, key=lambda design: makespans[design])[:count]


def _distinct(graph: OpGraph, one: Callable[[], BranchDesign], count: int, macs: tuple[float, float]) -> list[BranchDesign]:
    """Distinct designs within a range of multiply-accumulates."""
    designs: dict[BranchDesign, None] = {}
    drawn: set[BranchDesign] = set()
    nearest = math.inf
    for tried in range(_TRIES):
        if len(designs) == count:
            return list(designs)
        if tried == _HOPELESS and not designs:
            break
        design = one()
        if design in drawn:
            continue
        drawn.add(design)
        ratio = scaled_graph(graph, design).macs / graph.macs
        nearest = min(nearest, ratio, key=lambda r: max(macs[0] - r, r - macs[1]))
        if macs[0] <= ratio <= macs[1]:
            designs[design] = None
    raise InfeasibleError(
        f"only {len(designs)} of {count} designs have {macs[0]:g} to {macs[1]:g} of the original's MACs",
        "widen supernet.macs" + (f", the nearest design drawn has {nearest:.3f}" if not designs else "") + "; or name designs",
    )


def _branched(stage: Segment, scales: Sequence[tuple[str, int, int, int]], join: str) -> SegmentDesign:
    """A segment with branches of these (processor, depth, width, align)."""
    shares = [0] * len(scales)
    if join_of(join).divides:
        shares = list(partitions(stage.width, [width for _, _, width, _ in scales], max(align for *_, align in scales)))
    branches = tuple(
        BranchScale(processor, depth, width, "project" if stage.arriving(width) not in (None, stage.in_width) else "none", share, align)
        for (processor, depth, width, align), share in zip(scales, shares, strict=True)
    )
    return SegmentDesign(stage.name, stage.start, stage.end, branches, join)
