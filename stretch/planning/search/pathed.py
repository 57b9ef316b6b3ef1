"""Designs in which paths that a segment has already run on processors of their own.

Every division of the paths is an option, in the order in which they meet, on every
subset of the processors in every order.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from math import prod

import numpy as np

from predictors.errors import StretchError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.joins import JoinKind
from stretch.planning.cost.branch import BranchCost
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.design.paths import JOINS, find_paths, path_graph
from stretch.planning.network.segments import Segment
from stretch.planning.search.space import DesignSpace

#: More paths than this are not divided: there would be too many ways.
MOST_PATHS = 16


def path_ways(space: DesignSpace, segment: Segment) -> list[SegmentOptions]:
    """Ways to compute a segment by its own paths, one object for each sequence of processors; none where it has no paths."""
    paths = find_paths(segment.graph)
    if not 2 <= len(paths) <= MOST_PATHS:
        return []
    graphs = _graphs(segment, len(paths))
    costs = space.costs
    known = {}
    for processor in space.processors:
        kernels = {part: costs.predictor.kernels(graph, processor) for part, graph in graphs.items()}
        # at once, since a fit's trees are walked for many kernels in little more time than for one
        costs.kernels_time([kernel for some in kernels.values() for kernel in some], processor)
        for part, graph in graphs.items():
            known[processor, part] = part_cost(space, segment, processor, graph, kernels[part])._replace(paths=part)
    result = []
    for count in range(2, min(len(space.processors), len(paths)) + 1):
        divisions = [parts for parts in _divisions(len(paths), count) if all(part in graphs for part in parts)]
        orders = permutations(space.processors, count) if divisions else ()
        rows = ([[known[p, part] for p, part in zip(order, parts, strict=True)] for parts in divisions] for order in orders)
        result += [part_options(space, segment, JOINS[segment.graph.by_name[segment.end].kind], row) for row in rows]
    return result


def _graphs(segment: Segment, count: int) -> dict[tuple[int, int], OpGraph]:
    """The graph of each range of paths that computes something."""
    graphs = {}
    for part in combinations(range(count + 1), 2):
        try:
            graphs[part] = path_graph(segment.graph, segment.name, *part)
        except StretchError:
            # what only hands on what arrives is no branch
            continue
    return graphs


def _divisions(count: int, branches: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges of paths of each branch, in order."""
    for cuts in combinations(range(1, count), branches - 1):
        yield tuple(pairwise((0, *cuts, count)))


def part_cost(space: DesignSpace, segment: Segment, processor: str, graph: OpGraph, kernels: Sequence[Kernel]) -> BranchCost:
    """What a part of a segment costs, which reads all that arrives."""
    costs = space.costs
    time, item = costs.kernels_time(kernels, processor), costs.item_bytes(processor)
    return BranchCost(
        processor,
        segment.depth,
        segment.width,
        "none",
        sum(kernel.macs for kernel in kernels),
        graph.params,
        time.ms,
        time.contended_ms,
        max(((k.cost.reads + k.cost.writes) * item for k in kernels), default=0),
        reads=prod(graph.input.shape),
        writes=prod(graph.by_name[graph.output].shape),
    )


def part_options(space: DesignSpace, segment: Segment, kind: JoinKind, rows: Sequence[Sequence[BranchCost]]) -> SegmentOptions:
    """One sequence of processors, a segment divided among them in each of several ways."""
    costs = space.costs
    computed = np.array([[b.contended_ms for b in row] for row in rows], float).T
    leaving = np.array([costs.transfers(b.processor, costs.host, np.array([row[i].writes for row in rows])) for i, b in enumerate(rows[0])])
    entering = np.array([[costs.transfer(holder, b.processor, b.reads) for b in rows[0]] for holder in space.holders], float)
    moved = entering[:, :, None] + leaving
    join = costs.join(segment, kind, segment.width, len(rows[0]))
    return SegmentOptions(
        segment,
        kind,
        tuple(tuple(row[i] for row in rows) for i in range(len(rows[0]))),
        macs=np.full(len(rows), segment.graph.macs),
        params=np.full(len(rows), segment.graph.params),
        ms=(computed + moved).max(axis=1) + join,
        allowed=np.ones((len(space.holders), len(rows)), bool),
        depth=np.full(len(rows), float(len(rows[0]))),
        exchange_ms=moved.max(axis=1) + join,
        slowest_ms=computed.max(axis=0),
        fastest_ms=computed.min(axis=0),
        peak_bytes=np.array([sum(b.peak_bytes for b in row) for row in rows]),
        busy=lambda: {b.processor: item for b, item in zip(rows[0], computed, strict=True)},
    )
