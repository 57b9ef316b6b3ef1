"""Where the parts beside the backbone run: each on the processor on which all of them together end first."""

from collections.abc import Sequence
from dataclasses import replace

from predictors.graph import OpGraph
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import SidedTimes
from stretch.planning.design.branch_design import BranchDesign, SideDesign
from stretch.planning.network.backbone import backbone_of
from stretch.planning.search.placing import TIE

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
    starts = [sides_on(graph, processor) for processor in processors]
    best = min(starts, key=lambda item: times.timeline(item).makespan_ms)
    best_ms = times.timeline(best).makespan_ms
    largest = sorted(range(len(sides)), key=lambda i: -sides[i].macs)
    for _ in range(ROUNDS):
        before = best_ms
        for i in largest:
            for processor in processors:
                moved = (*best[:i], replace(best[i], processor=processor), *best[i + 1 :])
                ms = times.timeline(moved).makespan_ms
                if ms < best_ms - TIE:
                    best, best_ms = moved, ms
        if best_ms >= before - TIE:
            break
    return replace(design, sides=best)
