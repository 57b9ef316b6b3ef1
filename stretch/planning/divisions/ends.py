"""Portions: a segment's operators divided along the segment's graph; each operator is computed once.

Tensors of NASNet skip over the ends of modules, and tensors of HRNet cross between resolutions. So each portion
only names its ends, the tensors that it passes on. It computes the operators that its ends need and no earlier portion computes,
and reads tensors of other portions. There is no join: the last portion writes the segment's end.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from predictors.errors import StretchError, UnknownNameError
from predictors.fusion import Kernel
from predictors.graph import OpGraph
from predictors.order import stable_order
from scheduler.simulate.schedule import Job, run, schedule, waiting
from stretch.planning.cost.branch import BranchCost, Floats, SegmentOptions
from stretch.planning.cost.makespan import computed_ms, subgraph_times
from stretch.planning.design.branch_design import BranchScale, Division, Piece, SegmentDesign, Share, shares_of
from stretch.planning.network.segments import Segment, components, cone, operators_read_outside, part_graph
from stretch.planning.search.layers import TIE
from stretch.planning.search.parts import PartSpace
from stretch.planning.search.space import DesignSpace

# Placement of a segment's tasks: list scheduling, improved step by step.
#
# List scheduling is HEFT: tasks in the order of their longest path to the end, transfers included, each on the processor where it ends first
# (Topcuoglu et al., 2002). Moves of tasks improve its result. A task moves alone, together with tasks that only it needs, or together with
# all readers of a tensor, as long as the time decreases.

#: Number of the segment's input, in place of a task's.
ARRIVING = -1


@dataclass(frozen=True)
class TaskGraph:
    """The tasks of a segment, in a valid execution order; the last task writes its end.

    A task is a set of operators that no placement should separate: operators that some backend fuses, and chains, in which each waits for the
    previous operator. The result is a graph of tasks that can run side by side.
    """

    ops: tuple[tuple[str, ...], ...]  # Names of each task's operators.
    #: Tensors that each task reads from others: number of the writing task, or `ARRIVING`, and the tensor's name.
    reads: tuple[tuple[tuple[int, str], ...], ...]

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.ops)

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the tasks from which each task reads."""
        return tuple(tuple(dict.fromkeys(source for source, _ in read if source != ARRIVING)) for read in self.reads)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the tasks that read from each task."""
        return tuple(map(tuple, waiting(self.sources)[0]))

    @property
    def parallel(self) -> bool:
        """Whether any two tasks can run side by side; if not, each task waits for the previous one."""
        return any(number - 1 not in self.sources[number] for number in range(1, len(self)))


def find_tasks(graph: OpGraph, launched: Sequence[Sequence[Kernel]], *, chained: bool = True) -> TaskGraph:
    """Return the tasks of a segment; without `chained`, the operators of a chain stay separate tasks."""
    sets = [kernel.ops for kernels in launched for kernel in kernels]
    fused = _quotient_graph(graph, components((op.name for op in graph.ops if op.kind != "input"), sets))
    return _quotient_graph(graph, _chain_groups(fused)) if chained else fused


def _quotient_graph(graph: OpGraph, groups: Sequence[Sequence[str]]) -> TaskGraph:
    """Return groups of operators as tasks, in a valid execution order; inner operators of a kernel have no other readers, so no cycle exists."""
    of = {name: number for number, names in enumerate(groups) for name in names}
    reads: list[dict[tuple[int, str], None]] = [{} for _ in groups]
    for name, current in of.items():
        for read in graph.by_name[name].inputs:
            source = of.get(read, ARRIVING)
            if source != current:
                reads[current][source, read] = None
    first = [min(graph.position[name] for name in names) for names in groups]
    sources = [{source for source, _ in read if source != ARRIVING} for read in reads]
    order = stable_order({number: sources[number] for number in sorted(range(len(groups)), key=first.__getitem__)})
    place = {number: i for i, number in enumerate(order)} | {ARRIVING: ARRIVING}
    return TaskGraph(
        tuple(tuple(sorted(groups[number], key=graph.position.__getitem__)) for number in order),
        tuple(tuple((place[source], read) for source, read in reads[number]) for number in order),
    )


def _chain_groups(tasks: TaskGraph) -> list[list[str]]:
    """Return the operators of each chain: a run of tasks in which each task is the only one that waits for the previous one.

    A tensor that skips over a task does not break the chain, because the reader of the tensor waits for the task as well. So
    only edges of the transitive reduction count: a source for which no other source of the same task waits.
    """
    ancestors: list[frozenset[int]] = []
    last: list[list[int]] = []
    for sources in tasks.sources:
        earlier = frozenset[int]().union(*(ancestors[source] for source in sources))
        last.append([source for source in sources if source not in earlier])
        ancestors.append(earlier.union(sources))
    follow = Counter(source for waits in last for source in waits)
    groups: list[list[str]] = []
    group_of: list[int] = []
    for number, op in enumerate(tasks.ops):
        if len(last[number]) == 1 and follow[last[number][0]] == 1:
            group_of.append(group_of[last[number][0]])
            groups[group_of[number]] += op
        else:
            group_of.append(len(groups))
            groups.append(list(op))
    return groups


#: Maximum number of schedules that one search computes.
MAX_TRIED = 4000
#: Maximum number of tasks to place, above any known network, because the search would take too long.
MAX_TASKS = 2000


class PlacementProblem:
    """Tasks to place, with their times on each processor while others compute, ms (tasks × processors).

    `holder` is the number of the processor that holds the input and may compute nothing. `end` is the number of the processor that must write
    the segment's end.
    """

    def __init__(self, tasks: TaskGraph, ms: Floats, transfer: Callable[[str, int, int], float], holder: int, end: int) -> None:
        self.tasks, self.ms, self.holder, self.end = tasks, ms.tolist(), holder, end
        self.count = ms.shape[1]
        everywhere = range(max(self.count, holder + 1))
        tensors = {tensor for read in tasks.reads for _, tensor in read}
        #: Transfer time of each tensor from one processor to another, ms.
        self.moving = {tensor: [[transfer(tensor, a, b) for b in range(self.count)] for a in everywhere] for tensor in tensors}
        self._waiting: tuple[tuple[int, ...], list[list[int]], list[int]] = ((), [], [])

    def jobs(self, groups: Sequence[Sequence[int]], processors: Sequence[int]) -> list[Job]:
        """Return one job per group of consecutive tasks on a processor; a tensor that several tasks of a group read is transferred once."""
        of = {task: number for number, group in enumerate(groups) for task in group}
        result = []
        for number, group in enumerate(groups):
            place = processors[group[0]]
            reads: dict[tuple[int, str], None] = {}
            for task in group:
                for read in self.tasks.reads[task]:
                    if read[0] == ARRIVING or of[read[0]] != number:
                        reads[read] = None
            ms = sum(self.ms[task][place] for task in group)
            for source, tensor in reads:
                ms += self.moving[tensor][self.holder if source == ARRIVING else processors[source]][place]
            sources = dict.fromkeys(of[source] for source, _ in reads if source != ARRIVING)
            result.append(Job(str(place), ms, tuple(sources)))
        return result

    def time(self, processors: Sequence[int], order: Sequence[int]) -> float:
        """Return the time of the tasks on these processors, ms; `order` is the order of preference."""
        if self._waiting[0] != tuple(order):
            number = {task: i for i, task in enumerate(order)}
            self._waiting = (tuple(order), *waiting([[number[source] for source in self.tasks.sources[task]] for task in order]))
        _, readers, missing = self._waiting
        moving, holder, ms, assigned = self.moving, self.holder, [], [processors[task] for task in order]
        for task, place in zip(order, assigned, strict=True):
            took = self.ms[task][place]
            for source, tensor in self.tasks.reads[task]:
                held = holder if source == ARRIVING else processors[source]
                if held != place:
                    took += moving[tensor][held][place]
            ms.append(took)
        return max(run(assigned, ms, readers, missing, self.count)[1])


def ranks(problem: PlacementProblem) -> list[float]:
    """Return HEFT's upward rank of each task, ms: the longest path from its start to the end, averaged over processors."""
    pairs = [(a, b) for a in range(problem.count) for b in range(problem.count)]
    result = [0.0] * len(problem.tasks)
    for task in reversed(range(len(problem.tasks))):
        remaining = 0.0
        for reader in problem.tasks.readers[task]:
            tensors = [tensor for source, tensor in problem.tasks.reads[reader] if source == task]
            moving = sum(problem.moving[tensor][a][b] for tensor in tensors for a, b in pairs) / len(pairs)
            remaining = max(remaining, moving + result[reader])
        result[task] = sum(problem.ms[task]) / problem.count + remaining
    return result


def place(problem: PlacementProblem) -> tuple[list[int], list[int], float]:
    """Return the fastest found placement: starts are list scheduling and each processor alone, each improved by moves.

    Returns:
        The number of the processor of each task, the tasks in the order in which processors prefer them, and the time of all tasks, ms.
    """
    rank, last = ranks(problem), len(problem.tasks) - 1
    order = sorted(range(last + 1), key=lambda task: (-rank[task], task))
    starts = [_list_schedule(problem, order), *([processor] * last + [problem.end] for processor in range(problem.count))]
    moves = list(product(dict.fromkeys(_neighbour_moves(problem.tasks)), range(problem.count)))
    tried = 0
    best, best_ms = starts[0], np.inf
    for processors in starts:
        ms, improved = problem.time(processors, order), True
        while improved and tried < MAX_TRIED:
            improved = False
            for tasks, target in moves:
                changed = list(processors)
                for task in tasks:
                    changed[task] = target
                changed[-1] = problem.end
                if changed != processors:
                    tried += 1
                    time = problem.time(changed, order)
                    if time < ms - TIE:
                        processors, ms, improved = changed, time, True
        if ms < best_ms - TIE:
            best, best_ms = processors, ms
    return best, order, best_ms


def _list_schedule(problem: PlacementProblem, order: Sequence[int]) -> list[int]:
    """Return the processor of each task: in this order, each task goes where it ends first."""
    free, ends = [0.0] * problem.count, [0.0] * len(problem.tasks)
    processors = [0] * len(problem.tasks)
    last = len(problem.tasks) - 1
    for task in order:
        best = np.inf
        ready = max((ends[source] for source in problem.tasks.sources[task]), default=0.0)
        read = [(problem.holder if source == ARRIVING else processors[source], tensor) for source, tensor in problem.tasks.reads[task]]
        for place in range(problem.count) if task != last else (problem.end,):
            ms = problem.ms[task][place] + sum(problem.moving[tensor][holder][place] for holder, tensor in read)
            end = max(ready, free[place]) + ms
            if end < best:
                best, processors[task] = end, place
        free[processors[task]] = ends[task] = best
    return processors


def _neighbour_moves(tasks: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Yield sets of tasks to move together: one task; a task and the tasks computed only for it; all readers of a task."""
    for task in range(len(tasks)):
        yield (task,)
        moves, left = {task}, list(tasks.sources[task])
        while left:
            source = left.pop()
            if source not in moves and all(reader in moves for reader in tasks.readers[source]):
                moves.add(source)
                left += tasks.sources[source]
        yield tuple(sorted(moves))
        if len(tasks.readers[task]) > 1:
            yield tasks.readers[task]


def subgraphs_of(graph: OpGraph, names: Sequence[str], ends: Sequence[Sequence[str]]) -> list[OpGraph]:
    """Build the graphs of a segment's portions; inputs are in the order of reading, ends in the order of computing.

    Raises:
        StretchError: If an end is invalid or computed earlier, if portions do not cover the segment, or if they do not pass on exactly
            the tensors that others read.
    """
    maker: dict[str, str] = {}
    graphs: list[OpGraph] = []
    for name, current in zip(names, ends, strict=True):
        if not current:
            raise StretchError(f"`{name}` hands on no tensor, so it computes nothing", "name its ends, or leave it out")
        for end in current:
            if end not in graph.by_name:
                raise UnknownNameError.among("tensor", end, [op.name for op in graph.ops if op.kind != "input"])
            if graph.by_name[end].kind == "input":
                raise StretchError(f"`{name}` hands on `{end}`, which arrives at the segment", "name tensors that it computes")
            if end in maker:
                raise StretchError(f"`{name}` hands on `{end}`, which `{maker[end]}` computes before it", "name it in one of the two")
            if list(current).count(end) > 1:
                raise StretchError(f"`{name}` hands on `{end}` twice", "name each of its ends once")
        inside = cone(graph, current, maker)
        maker.update(dict.fromkeys(inside, name))
        graphs.append(part_graph(graph, name, [op for op in graph.ops if op.name in inside], current))
    if graph.output not in ends[-1]:
        owner = f"`{maker[graph.output]}`" if graph.output in maker else "none"
        raise StretchError(f"the segment's end `{graph.output}` is computed by {owner}", f"let the last branch `{names[-1]}` hand it on")
    left = next((op.name for op in graph.ops if op.kind != "input" and op.name not in maker), None)
    if left is not None:
        raise StretchError(f"no branch computes `{left}`", "name a tensor behind it in one of the ends")
    handed = {graph.input.name, *(end for portion in graphs for end in portion.outputs)}
    reads = [(portion, source.name) for portion in graphs for source in portion.inputs]
    for portion, source in reads:
        if source not in handed:
            reason = f"`{portion.name}` reads `{source}`, which `{maker[source]}` computes and does not hand on"
            raise StretchError(reason, f"add `{source}` to the ends of `{maker[source]}`")
    read = {graph.output, *(source for _, source in reads)}
    for name, graph in zip(names, graphs, strict=True):
        if spare := next((end for end in graph.outputs if end not in read), None):
            raise StretchError(f"`{name}` hands on `{spare}`, which no later branch reads", "leave it out of its ends")
    return graphs


# Designs in which portions of a segment run on several processors.
#
# `place` searches one placement for each processor that may hold the input, and each processor that may write the end. Consecutive
# tasks on one processor become portions, as few as possible without additional time. The graphs of the portions define the placement's
# time; sums over tasks only guide the search.


def placed_candidates(space: DesignSpace, segment: Segment, alone_ms: Sequence[float]) -> list[SegmentOptions]:
    """Return options for a segment in portions on several processors; empty if none is faster than the best single processor."""
    costs = space.costs
    launched = {processor: costs.predictor.kernels(segment.graph, processor) for processor in space.processors}
    tasks = find_tasks(segment.graph, list(launched.values()))
    if not tasks.parallel or len(tasks) > MAX_TASKS:
        return []

    @cache
    def moving(tensor: str, source: str, target: str) -> float:
        moved_ms: float = costs.transfer(source, target, prod(segment.graph.by_name[tensor].shape))
        return moved_ms

    ms = costs.group_times(launched, tasks.ops)[1]
    # a host that computes nothing may hold the input; then it gets an additional number
    names = (*space.processors, *(name for name in space.holders if name not in space.processors))
    result: dict[Any, SegmentOptions] = {}
    for holder in space.holders:
        for end in range(len(space.processors)):
            problem = PlacementProblem(tasks, ms, lambda tensor, a, b: moving(tensor, names[a], names[b]), names.index(holder), end)
            processors, order, _ = place(problem)
            scales = portions(problem, processors, order, space, segment)
            key = tuple((scale.processor, _ends(scale)) for scale in scales)
            if len({scale.processor for scale in scales}) > 1 and key not in result:
                result[key] = _candidates(space, segment, scales, alone_ms, moving)
    return [options for options in result.values() if np.isfinite(options.ms).any()]


def portions(
    problem: PlacementProblem, processors: Sequence[int], order: Sequence[int], space: DesignSpace, segment: Segment
) -> list[BranchScale]:
    """Return the portions of a placement (the first two results of `place`), in a valid execution order.

    At first a portion begins where a task reads from another processor, and ends where a task passes a tensor on.
    This delays no transfer. Then neighbours are merged as long as this costs no time.
    """
    tasks = problem.tasks
    scheduled = schedule(problem.jobs([(task,) for task in order], processors))
    begun = [order[i] for i in sorted(range(len(tasks)), key=lambda i: (scheduled.starts[i], scheduled.ends[i], i))]
    groups: list[list[int]] = []
    last_on: dict[int, list[int]] = {}
    for task in stable_order({task: tasks.sources[task] for task in begun}):
        on = processors[task]
        if on not in last_on or any(processors[source] != on for source in tasks.sources[task]):
            groups.append([])
            last_on[on] = groups[-1]
        last_on[on].append(task)
        if any(processors[reader] != on for reader in tasks.readers[task]):
            del last_on[on]
    merged = _merge_groups(problem, groups, processors)
    scales = []
    for group in merged:
        inside, name = {name for task in group for name in tasks.ops[task]}, space.processors[processors[group[0]]]
        ends = tuple(operators_read_outside(segment.graph, [op for op in segment.graph.ops if op.name in inside]))
        share: dict[str, Any] = {DIVISION.word: ends}
        scales.append(BranchScale(name, segment.depth, segment.width, align=space.costs.align(name), **share))
    return scales


def _ends(scale: BranchScale) -> tuple[str, ...]:
    return tuple(map(str, shares_of(scale).get(DIVISION.word, ())))


def _merge_groups(problem: PlacementProblem, groups: list[list[int]], processors: Sequence[int]) -> list[list[int]]:
    """Return the portions with neighbours on one processor merged as long as this costs no time."""
    ms = schedule(problem.jobs(groups, processors)).ms
    at = 0
    while at < len(groups):
        after = next((i for i in range(at + 1, len(groups)) if processors[groups[i][0]] == processors[groups[at][0]]), None)
        if after is not None:
            joined = _join_groups(problem, groups, at, after)
            if joined is not None and (time := schedule(problem.jobs(joined, processors)).ms) <= ms + TIE:
                groups, ms = joined, time
                continue
        at += 1
    return groups


def _join_groups(problem: PlacementProblem, groups: list[list[int]], first: int, second: int) -> list[list[int]] | None:
    """Return the portions after two are joined, with those that depend on the first moved behind both; None if impossible."""
    of = {task: number for number, group in enumerate(groups) for task in group}
    later = {first}
    for number in range(first + 1, second):
        if any(of[source] in later for task in groups[number] for source in problem.tasks.sources[task]):
            later.add(number)
    needed = {of[source] for task in groups[second] for source in problem.tasks.sources[task]} - {first}
    if needed & later:
        return None
    between = range(first + 1, second)
    before = [groups[i] for i in between if i not in later]
    return [*groups[:first], *before, groups[first] + groups[second], *(groups[i] for i in between if i in later), *groups[second + 1 :]]


def _candidates(
    space: DesignSpace, segment: Segment, scales: Sequence[BranchScale], alone_ms: Sequence[float], moving: Callable[[str, str, str], float]
) -> SegmentOptions:
    """Return one placement as an option; its time is infinite for holders from which one single processor is as fast."""
    costs = space.costs
    graphs = subgraphs_of(segment.graph, [segment.name] * len(scales), list(map(_ends, scales)))
    runs = [subgraph_times(scales, graphs, {segment.start: holder}, costs) for holder in space.holders]
    ms = np.array([[max(item.start_ms + item.total_ms for item in run)] for run in runs])
    busy = [computed_ms(run) for run in runs]
    peaks = [costs.peak_bytes((kernel.kernel for kernel in run.estimate.kernels), run.scale.processor) for run in runs[0]]
    end, alone = scales[-1].processor, list(zip(space.processors, alone_ms, strict=True))
    for i, holder in enumerate(space.holders):
        if ms[i, 0] >= min(moving(segment.start, holder, name) + time + moving(segment.end, name, end) for name, time in alone):
            ms[i, 0] = np.inf
    timed = list(zip(runs[0], peaks, strict=True))
    branches = (
        BranchCost(run.scale.processor, 0, 0, "none", run.macs, run.params, *run.estimate.computing, peak, _ends(run.scale))
        for run, peak in timed
    )
    return SegmentOptions(
        segment,
        "placed",
        tuple((branch,) for branch in branches),
        macs=np.array([segment.graph.macs]),
        params=np.array([segment.graph.params]),
        ms=ms,
        exchange_ms=np.array([[max(0.0, float(row[0]) - max(item.values()))] for row, item in zip(ms, busy, strict=True)]),
        slowest_ms=np.array([max(busy[0].values())]),
        fastest_ms=np.array([min(busy[0].values())]),
        # sum of the largest kernel of each processor, which may run at once
        peak_bytes=np.array([sum(max(peak for run, peak in timed if run.scale.processor == name) for name in busy[0])]),
        alone_ms=min(alone_ms),
        busy=lambda: {name: np.array([[item[name]] for item in busy]) for name in busy[0]},
        division=DIVISION.word,
    )


class _Portions(Division):
    kind, joins, what, example = "graph", ("placed",), "some operators", '["tensor", …]'

    def check(self, segment: Segment, design: SegmentDesign, shares: Sequence[Share]) -> None:
        """Accept all shares; `subgraphs_of` refuses wrong ones."""

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        return [Piece(portion) for portion in subgraphs_of(graph, names, [tuple(map(str, share)) for share in shares])]

    def text(self, share: Share) -> str:
        """Return an empty text, because names of tensors are too long."""
        return ""

    def candidates(self, parts: PartSpace) -> list[tuple[int, SegmentOptions]]:
        return [
            (first, parts.run_options(options, first, last))
            for segment, first, last, ms in parts.pieces()
            for options in placed_candidates(parts.space, segment, ms)
        ]


DIVISION = _Portions()
