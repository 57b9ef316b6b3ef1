"""Parallel paths that a network has already: Inception's, NASNet's, a shortcut with a convolution.

The last operator of a segment puts the results of paths together, side by side or
added. Where no operator is part of two paths, each can be computed by itself, and
what meets at the end is what met there before.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import JoinKind, join_of
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.network.segments import Segment

#: The join that puts paths together as an operator of the original does.
JOINS: dict[str, JoinKind] = {"concat": "paths", "add": "terms"}


def find_paths(graph: OpGraph) -> tuple[tuple[int, int], ...]:
    """Paths of a segment, as ranges of what its last operator reads: first, and the one behind the last.

    What reads the same intermediate tensor is one path with everything between.
    """
    last = graph.by_name[graph.output]
    # branches meet at feature maps
    if last.kind not in JOINS or len(last.shape) != 4:
        return ()
    cones = [_cone(graph, name) for name in last.inputs]
    bounds = [0]
    for at in range(1, len(cones)):
        before, behind = set().union(*cones[bounds[-1] : at]), set().union(*cones[at:])
        if not before & behind:
            bounds.append(at)
    bounds.append(len(cones))
    result = tuple(pairwise(bounds))
    return result if len(result) > 1 else ()


def path_graph(graph: OpGraph, name: str, first: int, stop: int) -> OpGraph:
    """The graph of some of a segment's paths, which ends in their part of what the last operator writes."""
    paths = find_paths(graph)
    if not 0 <= first < stop <= len(paths):
        raise StretchError(f"`{name}` should compute paths {first} to {stop}, its segment has {len(paths) or 'no'} paths of its own")
    last = graph.by_name[graph.output]
    ends = last.inputs[paths[first][0] : paths[stop - 1][1]]
    inside = set().union(*(_cone(graph, end) for end in ends))
    if not inside:
        raise StretchError(f"`{name}` would compute nothing: its path hands on what arrives", "give its processor another path, too")
    ops = [op for op in graph.ops if op.kind == "input" or op.name in inside]
    if len(ends) > 1:
        ops.append(Op(last.name, last.kind, ends, last.attrs, tags=last.tags))
    return OpGraph.build(name, ops, last.name if len(ends) > 1 else ends[0])


def whole_paths(parts: Sequence[tuple[int, int]], count: int) -> bool:
    """Whether ranges of paths follow each other from the first path to the last, none of them empty."""
    starts = [0, *accumulate(stop - first for first, stop in parts)]
    return all(first == at and stop > first for (first, stop), at in zip(parts, starts, strict=False)) and starts[-1] == count


def _cone(graph: OpGraph, name: str) -> set[str]:
    """Operators that a tensor is computed by; none for what arrives."""
    members: set[str] = set()
    left = [name]
    while left:
        op = graph.by_name[left.pop()]
        if op.name not in members and op.kind != "input":
            members.add(op.name)
            left += op.inputs
    return members


def check_paths(segment: Segment, design: SegmentDesign) -> None:
    """See that the branches compute every path once, in order."""
    where, join = f"segment `{segment.name}`", join_of(design.join)
    if not join.paths:
        if any(b.paths is not None for b in design.branches):
            raise StretchError(f"{where} has branches of some paths, which `{design.join}` does not join", 'leave out its "join"')
        return
    kind, count = segment.graph.by_name[segment.end].kind, len(find_paths(segment.graph))
    if JOINS.get(kind) != design.join or not count:
        raise StretchError(
            f"{where} ends with `{segment.end}` ({kind}), which does not join paths of its own by `{design.join}`",
            "let it start and end where the network branches and meets",
        )
    parts = [b.paths for b in design.branches if b.paths is not None]
    if len(parts) < len(design.branches) or not whole_paths(parts, count):
        raise StretchError(
            f"{where} has {count} paths, and its branches do not compute each of them once, in order",
            "say paths = [first, behind the last]",
        )
