"""Portions: a segment's operators divided along its own graph, each operator computed once.

A segment need not be a bundle of paths that meet in its last operator: tensors of
NASNet skip over the ends of modules, those of HRNet go back and forth between
resolutions. So each portion only says which tensors it hands on, its ends. It
computes what they need and no portion before it computes, and reads what
crosses. Nothing is joined: the last portion writes the segment's end.
"""

from collections.abc import Collection, Sequence

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import Op, OpGraph
from predictors.joins import join_of
from stretch.planning.design.branch_design import BranchScale, SegmentDesign, safe_name
from stretch.planning.network.segments import Segment


def check_subgraphs(segment: Segment, design: SegmentDesign) -> None:
    """Refuse a segment whose branches are not all portions of its operators and nothing else.

    Whether the portions are the whole segment is seen when they are made, by `subgraphs_of`.
    """
    where, alone = f"segment `{segment.name}`", BranchScale("", segment.depth, segment.width)
    if not join_of(design.join).placed:
        raise StretchError(f"{where} has branches with ends of their own, which `{design.join}` does not join", 'leave out its "join"')
    if len(design.branches) < 2:
        raise StretchError(
            f"{where} has one branch, and a segment divided along its graph has two or more", "leave out its ends and its join"
        )
    for name, branch in zip(design.names, design.branches, strict=True):
        if branch.ends is None:
            raise StretchError(f"`{segment.name}.{name}` does not say which tensors it hands on, others of its segment do", "name its ends")
        if (branch.depth, branch.width, branch.entry, branch.rows, branch.paths) != (alone.depth, alone.width, "none", None, None):
            raise StretchError(
                f"branch `{segment.name}.{name}` computes some of the operators, so it has all {segment.depth} blocks, width "
                f"{segment.width}, no entry, rows or paths",
                "leave out what it has beside processor and ends",
            )
    safe = [safe_name(name) for name in design.names]
    if len(set(safe)) < len(safe):
        raise StretchError(
            f"{where} has processors whose names cannot be told apart: {', '.join(design.names)}", "use one core set of each"
        )


def subgraphs_of(graph: OpGraph, names: Sequence[str], ends: Sequence[Sequence[str]]) -> list[OpGraph]:
    """The graphs of a segment's portions.

    Operators keep their names. What a portion reads are its inputs, in the order in which its operators
    read them; its ends are its outputs, in the order in which it computes them.
    """
    maker: dict[str, int] = {}
    inside: list[set[str]] = []
    for i, (name, current) in enumerate(zip(names, ends, strict=True)):
        _check_ends(graph, names, name, current, maker)
        cone = _cone(graph, current, maker)
        maker.update(dict.fromkeys(cone, i))
        inside.append(cone)
    _check_whole(graph, names, ends, maker)
    graphs = []
    for i, name in enumerate(names):
        ops = [op for op in graph.ops if op.name in inside[i]]
        reads = dict.fromkeys(read for op in ops for read in op.inputs if read not in inside[i])
        sources = [Op(read, "input", attrs={"shape": graph.by_name[read].shape}) for read in reads]
        graphs.append(OpGraph.build(name, [*sources, *ops], [op.name for op in ops if op.name in ends[i]]))
    _check_crossing(graph, graphs)
    return graphs


def subgraph_ends(graph: OpGraph, inside: Sequence[Collection[str]]) -> list[tuple[str, ...]]:
    """What each of several sets of operators hands on: what others read, and the segment's end."""
    result = []
    for current in inside:
        read = {name for name in current if name == graph.output or any(reader not in current for reader in graph.consumers[name])}
        result.append(tuple(op.name for op in graph.ops if op.name in read))
    return result


def _cone(graph: OpGraph, ends: Sequence[str], there: dict[str, int]) -> set[str]:
    """Operators that tensors are computed by, without those that are there already."""
    members: set[str] = set()
    left = list(ends)
    while left:
        op = graph.by_name[left.pop()]
        if op.name not in members and op.name not in there and op.kind != "input":
            members.add(op.name)
            left += op.inputs
    return members


def _check_ends(graph: OpGraph, names: Sequence[str], name: str, current: Sequence[str], maker: dict[str, int]) -> None:
    """The ends of a portion are tensors of the segment that nothing before it computes."""
    if not current:
        raise StretchError(f"`{name}` hands on no tensor, so it computes nothing", "name its ends, or leave it out")
    for end in current:
        if end not in graph.by_name:
            raise UnknownNameError.among("tensor", end, [op.name for op in graph.ops if op.kind != "input"])
        if graph.by_name[end].kind == "input":
            raise StretchError(f"`{name}` hands on `{end}`, which arrives at the segment", "name tensors that it computes")
        if end in maker:
            raise StretchError(f"`{name}` hands on `{end}`, which `{names[maker[end]]}` computes before it", "name it in one of the two")
    if len(set(current)) < len(current):
        twice = next(end for end in current if list(current).count(end) > 1)
        raise StretchError(f"`{name}` hands on `{twice}` twice", "name each of its ends once")


def _check_whole(graph: OpGraph, names: Sequence[str], ends: Sequence[Sequence[str]], maker: dict[str, int]) -> None:
    """Every operator is in a portion, and the last one writes the segment's end."""
    if graph.output not in ends[-1]:
        what = f"is computed by `{names[maker[graph.output]]}`" if graph.output in maker else "is computed by none"
        raise StretchError(f"the segment's end `{graph.output}` {what}", f"let the last branch `{names[-1]}` hand it on")
    left = next((op.name for op in graph.ops if op.kind != "input" and op.name not in maker), None)
    if left is not None:
        raise StretchError(f"no branch computes `{left}`", "name a tensor behind it in one of the ends")


def _check_crossing(graph: OpGraph, portions: Sequence[OpGraph]) -> None:
    """What a portion reads of another is among the ends of that, and each end is read."""
    handed = {graph.input.name, *(end for portion in portions for end in portion.outputs)}
    read = {graph.output}
    for portion in portions:
        for source in portion.inputs:
            if source.name not in handed:
                owner = next(other.name for other in portions if source.name in other.by_name)
                raise StretchError(
                    f"`{portion.name}` reads `{source.name}`, which `{owner}` computes and does not hand on",
                    f"add `{source.name}` to the ends of `{owner}`",
                )
            read.add(source.name)
    for portion in portions:
        spare = next((end for end in portion.outputs if end not in read), None)
        if spare is not None:
            raise StretchError(f"`{portion.name}` hands on `{spare}`, which no later branch reads", "leave it out of its ends")
