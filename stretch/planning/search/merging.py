"""Neighbouring stages as one segment, with fewer meeting points.

An exchange costs about the same whatever lies between two of them, so equation
4 of paper 003 rules out short stages. Several stages that become one segment
share one exchange. Their units are dropped evenly and their widths follow one
ratio.
"""

from collections.abc import Sequence
from itertools import combinations

from predictors.graph import OpGraph
from stretch.planning.network.segments import Segment
from stretch.planning.search.offers import Offer
from stretch.planning.search.space import DesignSpace


def merge_stages(graph: OpGraph, space: DesignSpace) -> DesignSpace:
    """The designs of a space, and those in which runs of stages that follow each other are merged."""
    stages = space.segments
    more: list[list[Offer]] = [[] for _ in stages]
    for first, last in combinations(range(len(stages)), 2):
        run = stages[first : last + 1]
        if not all(stage.branchable and stage.name not in space.kept for stage in run) or any(stage.tapped for stage in run[:-1]):
            continue
        segment = space.costs.cut(graph, merged_name(run), run[0].start, run[-1].end)
        more[first] += space.offered(segment, first, len(run))
    return space.with_runs(more)


def merged_name(stages: Sequence[Segment]) -> str:
    """Name of a segment of several stages, such as ``s2_to_s4``."""
    return f"{stages[0].name}_to_{stages[-1].name}"
