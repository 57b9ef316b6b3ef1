"""Portions: a segment's operators divided along its own graph, each operator computed once.

Tensors of NASNet skip over the ends of modules, those of HRNet go back and forth between resolutions. So each portion
only says which tensors it hands on, its ends. It computes what they need and no portion before it computes, and reads
what crosses. Nothing is joined: the last portion writes the segment's end.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from predictors.errors import StretchError, UnknownNameError
from predictors.fusion import Kernel
from predictors.graph import Op, OpGraph
from scheduler.simulate.schedule import schedule
from stretch.planning.cost.branch import BranchCost, Costs, SegmentOptions
from stretch.planning.cost.makespan import BranchTime, computed, subgraph_times
from stretch.planning.design.branch_design import BranchScale, SegmentDesign
from stretch.planning.design.division import Division, Piece, Share
from stretch.planning.network.segments import Segment
from stretch.planning.network.units import cone, runnable
from stretch.planning.search.layers import TIE
from stretch.planning.search.parts import PartSpace
from stretch.planning.search.placing import Placed, Problem, TaskGraph, find_tasks, place
from stretch.planning.search.space import DesignSpace


def subgraphs_of(graph: OpGraph, names: Sequence[str], ends: Sequence[Sequence[str]]) -> list[OpGraph]:
    """The graphs of a segment's portions: what each reads is in the order in which it reads it, its ends in that in which it computes them."""
    maker: dict[str, int] = {}
    inside: list[set[str]] = []
    for i, (name, current) in enumerate(zip(names, ends, strict=True)):
        _check_ends(graph, names, name, current, maker)
        computed_here = cone(graph, current, maker)
        maker.update(dict.fromkeys(computed_here, i))
        inside.append(computed_here)
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
                why = f"`{portion.name}` reads `{source.name}`, which `{owner}` computes and does not hand on"
                raise StretchError(why, f"add `{source.name}` to the ends of `{owner}`")
            read.add(source.name)
    for portion in portions:
        spare = next((end for end in portion.outputs if end not in read), None)
        if spare is not None:
            raise StretchError(f"`{portion.name}` hands on `{spare}`, which no later branch reads", "leave it out of its ends")


# Designs in which portions of a segment run on several processors, placed along its own graph.
#
# For each processor that may hold what arrives, and each that may write the end,
# one placement is searched for (`stretch.planning.search.placing`). Tasks that
# follow each other on one processor become portions, as few as cost no time, and
# the portions' own graphs say what the placement takes: the search's sums over
# tasks only choose it.

#: More tasks than this are not placed: no network has so many, and the search would take too long.
MOST_TASKS = 2000


def placed_ways(space: DesignSpace, segment: Segment, alone_ms: Sequence[float]) -> list[SegmentOptions]:
    """Ways to compute a segment in portions on several processors; none where that is not faster than one of them alone."""
    costs = space.costs
    launched = [costs.predictor.kernels(segment.graph, processor) for processor in space.processors]
    tasks = find_tasks(segment.graph, launched)
    if not tasks.parallel or len(tasks) > MOST_TASKS:
        return []

    @cache
    def moving(tensor: str, source: str, target: str) -> float:
        return costs.transfer(source, target, prod(segment.graph.by_name[tensor].shape))

    ms = task_times(tasks, launched, space)
    result: dict[tuple[tuple[str, tuple[str, ...]], ...], SegmentOptions] = {}
    for holder in space.holders:
        for end in range(len(space.processors)):
            # what arrives may be held by a host that computes nothing: then it has a number of its own
            names = (*space.processors, *(name for name in space.holders if name not in space.processors))
            problem = Problem(tasks, ms, lambda tensor, a, b, names=names: moving(tensor, names[a], names[b]), names.index(holder), end)
            placed = place(problem)
            scales = portions(problem, placed, space, segment)
            key = tuple((scale.processor, scale.ends or ()) for scale in scales)
            if len({scale.processor for scale in scales}) > 1 and key not in result:
                result[key] = _ways(space, segment, scales, alone_ms, moving)
    return [options for options in result.values() if np.isfinite(options.ms).any()]


def task_times(tasks: TaskGraph, launched: Sequence[Sequence[Kernel]], space: DesignSpace) -> np.ndarray:
    """Time of each task on each processor beside others, ms (tasks × processors)."""
    of = {name: number for number, ops in enumerate(tasks.ops) for name in ops}
    ms = np.zeros((len(tasks), len(space.processors)))
    for column, (processor, kernels) in enumerate(zip(space.processors, launched, strict=True)):
        # at once, since a fit's trees are walked for many kernels in little more time than for one
        space.costs.kernels_time(kernels, processor)
        for kernel in kernels:
            ms[of[kernel.ops[0]], column] += space.costs.kernels_time([kernel], processor).contended_ms
    return ms


@dataclass
class _Group:
    """Tasks that one processor computes one after the other."""

    place: int
    tasks: list[int]
    closed: bool = False


def portions(problem: Problem, placed: Placed, space: DesignSpace, segment: Segment) -> list[BranchScale]:
    """The portions of a placement, in an order in which they can run.

    At first a portion begins where a task reads something of another processor, and ends where one hands something to
    another, so that nothing waits longer than its task would. Then neighbours are merged as long as that costs no time.
    """
    tasks, processors = problem.tasks, placed.processors
    scheduled = schedule(problem.jobs([(task,) for task in placed.order], processors))
    begun = [placed.order[i] for i in sorted(range(len(tasks)), key=lambda i: (scheduled.starts[i], scheduled.ends[i], i))]
    groups: list[_Group] = []
    open_on: dict[int, _Group] = {}
    for task in runnable(begun, tasks.sources):
        on = processors[task]
        group = open_on.get(on)
        if group is None or group.closed or any(processors[source] != on for source in tasks.sources[task]):
            group = open_on[on] = _Group(on, [])
            groups.append(group)
        group.tasks.append(task)
        group.closed = any(processors[reader] != on for reader in tasks.readers[task])
    merged = _merged(problem, [group.tasks for group in groups], processors)
    ends = subgraph_ends(segment.graph, [{name for task in group for name in tasks.ops[task]} for group in merged])
    names = [space.processors[processors[group[0]]] for group in merged]
    return [
        BranchScale(name, segment.depth, segment.width, align=space.costs.align(name), ends=end)
        for name, end in zip(names, ends, strict=True)
    ]


def _merged(problem: Problem, groups: list[list[int]], processors: Sequence[int]) -> list[list[int]]:
    """Portions of which neighbours on one processor are one as long as that costs no time."""
    ms = schedule(problem.jobs(groups, processors)).ms
    at = 0
    while at < len(groups):
        after = next((i for i in range(at + 1, len(groups)) if processors[groups[i][0]] == processors[groups[at][0]]), None)
        if after is not None:
            other = _joined(problem, groups, at, after)
            if other is not None and (time := schedule(problem.jobs(other, processors)).ms) <= ms + TIE:
                groups, ms = other, time
                continue
        at += 1
    return groups


def _joined(problem: Problem, groups: list[list[int]], first: int, second: int) -> list[list[int]] | None:
    """Portions of which two are one: what waits for the first stays behind, what the second waits for goes before; None if that is impossible."""
    of = {task: number for number, group in enumerate(groups) for task in group}
    behind = {first}
    for number in range(first + 1, second):
        if any(of[source] in behind for task in groups[number] for source in problem.tasks.sources[task]):
            behind.add(number)
    needed = {of[source] for task in groups[second] for source in problem.tasks.sources[task]} - {first}
    if needed & behind:
        return None
    between = range(first + 1, second)
    before = [groups[i] for i in between if i not in behind]
    return [*groups[:first], *before, groups[first] + groups[second], *(groups[i] for i in between if i in behind), *groups[second + 1 :]]


def _ways(
    space: DesignSpace, segment: Segment, scales: Sequence[BranchScale], alone_ms: Sequence[float], moving: Callable[[str, str, str], float]
) -> SegmentOptions:
    """One placement as an option; it takes endless time from a holder from which one processor alone is as fast."""
    costs = space.costs
    graphs = subgraphs_of(segment.graph, [segment.name] * len(scales), [scale.ends or () for scale in scales])
    runs = [subgraph_times(scales, graphs, {segment.start: holder}, costs) for holder in space.holders]
    ms = np.array([[max(item.start_ms + item.total_ms for item in run)] for run in runs])
    busy = [computed(run) for run in runs]
    end = scales[-1].processor
    for i, holder in enumerate(space.holders):
        alone = min(
            moving(segment.start, holder, processor) + time + moving(segment.end, processor, end)
            for processor, time in zip(space.processors, alone_ms, strict=True)
        )
        if ms[i, 0] >= alone:
            ms[i, 0] = np.inf
    return SegmentOptions(
        segment,
        "placed",
        tuple((_cost(costs, run, graph.params),) for run, graph in zip(runs[0], graphs, strict=True)),
        macs=np.array([segment.graph.macs]),
        params=np.array([segment.graph.params]),
        ms=ms,
        exchange_ms=np.array([[max(0.0, float(row[0]) - max(item.values()))] for row, item in zip(ms, busy, strict=True)]),
        slowest_ms=np.array([max(busy[0].values())]),
        fastest_ms=np.array([min(busy[0].values())]),
        # the largest kernels that may run at once, one a processor
        peak_bytes=np.array([sum(max(_peak(costs, b) for b in runs[0] if b.scale.processor == name) for name in busy[0])]),
        alone_ms=min(alone_ms),
        busy=lambda: {name: np.array([[item[name]] for item in busy]) for name in busy[0]},
        division=DIVISION.word,
    )


def _cost(costs: Costs, run: BranchTime, params: int) -> BranchCost:
    sums = run.macs, params, run.ms, run.ms + run.contention_ms, _peak(costs, run)
    return BranchCost(run.scale.processor, 0, 0, "none", *sums, share=run.scale.ends)


def _peak(costs: Costs, run: BranchTime) -> int:
    return costs.peak_bytes((kernel.kernel for kernel in run.estimate.kernels), run.scale.processor)


class _Portions(Division):
    """Portions of a segment's operators."""

    kind, joins, what, example = "graph", ("placed",), "some operators", '["tensor", …]'

    def check(self, segment: Segment, design: SegmentDesign, shares: Sequence[Share]) -> None:
        """Whether they are the whole segment is seen when they are built."""

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        return [Piece(portion) for portion in subgraphs_of(graph, names, [tuple(map(str, share)) for share in shares])]

    def text(self, share: Share) -> str:
        """Names of tensors are too long."""
        return ""

    def ways(self, parts: PartSpace) -> list[tuple[int, SegmentOptions]]:
        return [
            (first, parts.run_options(options, first, last))
            for segment, first, last, ms in parts.pieces()
            for options in placed_ways(parts.space, segment, ms)
        ]


DIVISION = _Portions()
