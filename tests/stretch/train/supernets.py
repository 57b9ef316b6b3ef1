"""Pools of designs for tests of supernets."""

from predictors.graph import OpGraph
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import partitions
from stretch.planning.network.segments import Segment
from tests.stretch.designs import branchable, divided, part_of


def part(segment: Segment, cpu: tuple[int, int], gpu: tuple[int, int], join: str) -> SegmentDesign:
    shares = partitions(segment.width, [cpu[1], gpu[1]], 8) if join == "project" else [0, 0]
    scales = [
        BranchScale(name, depth, width, segment.entry(width, segment.in_width), share)
        for name, (depth, width), share in zip(("cpu", "gpu"), (cpu, gpu), shares, strict=True)
    ]
    return part_of(segment, join, scales)


def design(graph: OpGraph, cpu: tuple[int, float], gpu: tuple[int, float], join: str = "project") -> BranchDesign:
    """Two branches in every stage, each with a depth and a width ratio."""
    return divided(graph, *(part(s, (cpu[0], round(s.width * cpu[1])), (gpu[0], round(s.width * gpu[1])), join) for s in branchable(graph)))


def pool(graph: OpGraph, join: str = "project") -> list[BranchDesign]:
    return [design(graph, (1, 1.0), (2, 1.0), join), design(graph, (3, 0.5), (2, 1.0), join), design(graph, (2, 0.5), (3, 0.5), join)]
