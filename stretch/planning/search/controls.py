"""What a branched design must beat, predicted on the same device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from predictors.devices import ITEM_BYTES
from predictors.graph import OpGraph
from predictors.joins import JoinKind
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.makespan import SidedTimes, single_ms, timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, SideDesign
from stretch.planning.design.scale import legal_widths
from stretch.planning.network.segments import Segment, backbone_of, join_kinds
from stretch.planning.search.exact import search_exact
from stretch.planning.search.layers import TIE, Layer, shortest_path
from stretch.planning.search.parts import PartSpace, merge_neighbours
from stretch.planning.search.space import DesignSpace, Rules

#: Largest width ratio of the sequential control: fewer, wider blocks.
WIDEST = 1.5
#: Rescaling gains up to about a third, so what is slower by more than this cannot catch up.
CATCH_UP = 1.35


@dataclass(frozen=True)
class Single:
    """A network on one processor."""

    processor: str  # With its core set where that is not the default.
    precision: str  # At what precision.
    ms: float  # Time, input and output transfers included.


def variants(costs: Costs, processors: Sequence[str]) -> list[tuple[str, str]]:
    """Every core set of the allowed processors at every precision as wide as the narrowest planned: a control must not win by being less accurate."""
    device = costs.predictor.device
    least = min(ITEM_BYTES[costs.precision[p]] for p in processors)
    result: list[tuple[str, str]] = []
    for name in processors:
        family = device.processor(name).family
        for variant in device.variants:
            processor = device.processor(variant)
            if processor.family == family:
                result += [(variant, precision) for precision in processor.precisions if ITEM_BYTES[precision] >= least]
    return result


def ranked_singles(graph: OpGraph, costs: Costs, processors: Sequence[str]) -> list[Single]:
    """Every way to run a network on one of the allowed processors, the fastest first."""
    singles = (Single(name, precision, single_ms(graph, name, precision, costs)) for name, precision in variants(costs, processors))
    return sorted(singles, key=lambda single: single.ms)


@dataclass(frozen=True)
class SequentialControl:
    """The sequential model scaled to the same multiply-accumulates."""

    design: BranchDesign  # One branch per segment, all on one processor; `scaled_graph` builds it.
    single: Single  # Where it runs fastest.
    macs: int  # Its multiply-accumulates.
    optimal: bool  # Whether no such model is faster on that processor.


def sequential_same_macs(
    graph: OpGraph, segments: Sequence[Segment], costs: Costs, singles: Sequence[Single], rules: Rules, macs: tuple[int, int]
) -> SequentialControl | None:
    """The fastest sequential model whose segments are rescaled under the same floors; rules on communication do not apply.

    Depths fall to the floor, widths range from it to `WIDEST`. Dynamic programming over the width that arrives at each segment.
    """
    best: SequentialControl | None = None
    for original in singles:
        if original.ms > CATCH_UP * singles[0].ms:
            break
        known = costs.at(original.processor, original.precision)
        rescaled = _rescale(graph, segments, known, original, rules, macs)
        if rescaled is not None and (best is None or rescaled.single.ms < best.single.ms):
            best = rescaled
    return best


def _rescale(
    graph: OpGraph, segments: Sequence[Segment], costs: Costs, original: Single, rules: Rules, macs: tuple[int, int]
) -> SequentialControl | None:
    processor, least = original.processor, rules.values["segment_macs"]
    align = costs.align(processor)
    arriving = [{segments[0].in_width: 0}]
    layers: list[Layer] = []
    choices: list[list[BranchCost]] = []
    for i, segment in enumerate(segments):
        following = segments[i + 1] if i + 1 < len(segments) else None
        free = segment.branchable and following is not None and "concat" in join_kinds(segment, following)
        leaving: dict[int, int] = {}
        depths = rules.depths(segment) if segment.branchable else [segment.depth]
        offered = _widths(segment, align, rules) if free else [segment.width]
        rewritten = costs.rewritten(segment, processor) if segment.branchable else segment
        costs.prepare(rewritten, processor, offered, arriving[-1])
        fewest = least * segment.graph.macs if segment.branchable else 0
        here: list[BranchCost] = []
        rows: list[tuple[int, int, int, float]] = []
        for channels, state in arriving[-1].items():
            for width in [segment.width] if segment.passes_input and channels != segment.in_width else offered:
                for depth in depths:
                    cost = costs.branch(rewritten, processor, depth, width, channels)
                    if cost.macs >= fewest:
                        here.append(cost)
                        rows.append((state, leaving.setdefault(width, len(leaving)), cost.macs, cost.ms))
        if not here:
            return None
        source, target, counts, times = (np.array(column) for column in zip(*rows, strict=True))
        layers.append(Layer(source, target, counts, times, np.arange(len(here))))
        choices.append(here)
        arriving.append(leaving)
    states = max(len(a) for a in arriving)
    path = shortest_path(layers, 0, np.zeros(states), *macs)
    if path is None:
        return None
    parts = []
    for segment, here, option in zip(segments, choices, path.options, strict=True):
        cost = here[option]
        branch = BranchScale(processor, cost.depth, cost.width, cost.entry, 0, align, rewrites=cost.rewrites)
        join: JoinKind = "none" if cost.width == segment.width else "concat"
        parts.append(SegmentDesign(segment.name, segment.start, segment.end, (branch,), join))
    design = BranchDesign(graph.name, costs.predictor.device.id, tuple(parts), sides=sides_on(graph, processor))
    run = timeline(graph, design, costs)
    return SequentialControl(design, replace(original, ms=run.makespan_ms), run.macs, path.optimal)


def _widths(segment: Segment, align: int, rules: Rules) -> list[int]:
    """Up to 25 widths from the floor to `WIDEST`, the original among them."""
    legal = [w for w in legal_widths(segment, align, ceiling=WIDEST) if rules.offers_width(segment, w)]
    if len(legal) <= 25:
        return legal
    targets = np.linspace(legal[0], legal[-1], 25)
    return sorted({min(legal, key=lambda w: abs(w - t)) for t in targets} | {segment.width})


# A network whose operators are split over processors, as a design that can be built.
#
# CoDL computes some of every operator on each processor and meets behind it. As
# a design of ours that is the original in its smallest parts: between two
# tensors where everything meets and no kernel is under way, one processor
# computes, or several compute bands of rows. Where a residual block has no such
# tensor within, the block is the part.


@dataclass(frozen=True)
class OperatorSplit:
    """The fastest design of kernel-sized parts."""

    design: BranchDesign  # Exact; parts that one processor computes one after the other are one segment.
    ms: float  # Its predicted makespan.


def operator_split(graph: OpGraph, stages: Sequence[Segment], costs: Costs, processors: Sequence[str]) -> OperatorSplit:
    """Each kernel-sized part on one processor, or its rows over several, so that all of them together are fastest; no rule binds it."""
    whole = DesignSpace(stages, processors, costs, Rules({}), stretched=False)
    backbone = backbone_of(graph).graph
    search_result = search_exact(PartSpace(backbone, whole, single=True).mixed(("rows",)), 0, backbone.macs, 0)
    assert search_result is not None  # every part may stay whole
    design = BranchDesign(graph.name, costs.predictor.device.id, merge_neighbours(backbone, stages, search_result.segments(costs)))
    design = place_sides(graph, design, costs, processors)
    return OperatorSplit(design, timeline(graph, design, costs).makespan_ms)


# Where the parts beside the backbone run: each on the processor on which all of them together end first.

#: Rounds in which each side is moved once, at most.
ROUNDS = 4


def sides_on(graph: OpGraph, processor: str) -> tuple[SideDesign, ...]:
    """Every side of a network on one processor."""
    return tuple(SideDesign(side.name, processor) for side in backbone_of(graph).sides)


def place_sides(graph: OpGraph, design: BranchDesign, costs: Costs, processors: Sequence[str]) -> BranchDesign:
    """A design whose sides run where the predicted makespan is shortest that single moves lead to.

    From all of them on each processor one side after the other, the largest first, goes where the run ends first, as long as
    that makes it shorter.
    """
    sides = backbone_of(graph).sides
    if not sides:
        return design
    times = SidedTimes(graph, design, costs)
    best_ms, best = min(((times.timeline(item).makespan_ms, item) for item in (sides_on(graph, p) for p in processors)), key=lambda x: x[0])
    for _ in range(ROUNDS):
        before = best_ms
        for i, processor in product(sorted(range(len(sides)), key=lambda i: -sides[i].macs), processors):
            moved = (*best[:i], replace(best[i], processor=processor), *best[i + 1 :])
            ms = times.timeline(moved).makespan_ms
            if ms < best_ms - TIE:
                best, best_ms = moved, ms
        if best_ms >= before - TIE:
            break
    return replace(design, sides=best)
