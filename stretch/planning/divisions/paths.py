"""Existing parallel paths of a network, such as in Inception, NASNet, or a shortcut with a convolution.

The last operator of a segment concatenates or adds them. If no operator is part of two paths, each path can
be computed separately. In the search every division of the paths is an option, on every subset of the processors.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations, pairwise, permutations

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import JoinKind
from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.design.branch_design import Division, Piece, SegmentDesign, Share, check_ranges, range_of
from stretch.planning.network.segments import Segment, cone
from stretch.planning.search.parts import PartSpace, part_costs, part_options
from stretch.planning.search.space import DesignSpace

#: The join for each kind of last operator.
JOINS: dict[str, JoinKind] = {"concat": "paths", "add": "terms"}


def find_paths(graph: OpGraph) -> tuple[tuple[int, int], ...]:
    """Return the paths of a segment as ranges of its last operator's inputs; readers of one intermediate tensor form one path."""
    last = graph.by_name[graph.output]
    # branches meet at feature maps
    if last.kind not in JOINS or len(last.shape) != 4:
        return ()
    cones = [cone(graph, [name]) for name in last.inputs]
    bounds = [0]
    for at in range(1, len(cones)):
        before, after = set().union(*cones[bounds[-1] : at]), set().union(*cones[at:])
        if not before & after:
            bounds.append(at)
    bounds.append(len(cones))
    result = tuple(pairwise(bounds))
    return result if len(result) > 1 else ()


def path_graph(graph: OpGraph, name: str, first: int, stop: int) -> OpGraph:
    """Return the graph of paths `first` up to `stop` of a segment, which ends with their part of the last operator's output."""
    paths = find_paths(graph)
    if not 0 <= first < stop <= len(paths):
        raise StretchError(f"`{name}` should compute paths {first} to {stop}, its segment has {len(paths) or 'no'} paths of its own")
    last = graph.by_name[graph.output]
    ends = last.inputs[paths[first][0] : paths[stop - 1][1]]
    inside = cone(graph, ends)
    if not inside:
        raise StretchError(f"`{name}` would compute nothing: its path hands on what arrives", "give its processor another path, too")
    ops = [op for op in graph.ops if op.kind == "input" or op.name in inside]
    if len(ends) > 1:
        ops.append(Op(last.name, last.kind, ends, last.attrs, tags=last.tags))
    return OpGraph.build(name, ops, last.name if len(ends) > 1 else ends[0])


#: Maximum number of paths to divide, because the number of divisions grows fast.
MAX_PATHS = 16


def path_candidates(space: DesignSpace, segment: Segment) -> list[SegmentOptions]:
    """Return options for a segment divided by its paths, one object per sequence of processors; empty without paths."""
    paths = find_paths(segment.graph)
    if not 2 <= len(paths) <= MAX_PATHS:
        return []
    graphs, known = {}, {}
    for part in combinations(range(len(paths) + 1), 2):
        # a path that only passes on its input is no branch
        with suppress(StretchError):
            graphs[part] = path_graph(segment.graph, segment.name, *part)
    for processor in space.processors:
        known[processor] = part_costs(space, processor, graphs, {part: part for part in graphs})
    result = []
    for count in range(2, min(len(space.processors), len(paths)) + 1):
        every = (tuple(pairwise((0, *cuts, len(paths)))) for cuts in combinations(range(1, len(paths)), count - 1))
        divisions = [parts for parts in every if all(part in graphs for part in parts)]
        orders = permutations(space.processors, count) if divisions else ()
        join = JOINS[segment.graph.by_name[segment.end].kind]
        for order in orders:
            rows = [[known[p][part] for p, part in zip(order, parts, strict=True)] for parts in divisions]
            result.append(part_options(space, segment, join, rows, DIVISION.word))
    return result


class _OwnPaths(Division):
    kind, joins, what = "graph", tuple(JOINS.values()), "some paths"

    def join(self, segment: Segment) -> JoinKind:
        return JOINS.get(segment.graph.by_name[segment.end].kind, "paths")

    def check(self, segment: Segment, design: SegmentDesign, shares: Sequence[Share]) -> None:
        """Refuse shares that do not compute every path once, in order."""
        where, kind, count = f"segment `{segment.name}`", segment.graph.by_name[segment.end].kind, len(find_paths(segment.graph))
        if JOINS.get(kind) != design.join or not count:
            reason = f"{where} ends with `{segment.end}` ({kind}), which does not join paths of its own by `{design.join}`"
            raise StretchError(reason, "let it start and end where the network branches and meets")
        check_ranges(where, self, design.names, shares, count, "paths", "its own")

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        return [Piece(path_graph(graph, name, *range_of(share))) for name, share in zip(names, shares, strict=True)]

    def candidates(self, parts: PartSpace) -> list[tuple[int, SegmentOptions]]:
        return [
            (first, parts.run_options(options, first, last))
            for segment, first, last, _ in parts.pieces()
            for options in path_candidates(parts.space, segment)
        ]

    def divisible_tensors(self, graph: OpGraph) -> tuple[str, ...]:
        return ("paths",) if find_paths(graph) else ()


DIVISION = _OwnPaths()
