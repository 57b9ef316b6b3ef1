"""Where the tasks of a segment run: list scheduling, improved step by step, and exact where they are few.

List scheduling is HEFT: tasks in the order of the longest way from them to the end,
transfers counted, each where it would end first (Topcuoglu et al., 2002). What it
gives is improved by moving tasks, alone and together with what only they need or
what reads the same tensor, as long as that is faster. Few tasks are placed in every
way that a bound does not rule out. Times are those of
`stretch.planning.cost.makespan`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from predictors.fusion import Kernel
from predictors.graph import OpGraph
from scheduler.simulate.schedule import Job, run, waiting
from stretch.planning.cost.branch import Costs, Floats
from stretch.planning.cost.makespan import SidedTimes
from stretch.planning.design.branch_design import BranchDesign, SideDesign
from stretch.planning.network.backbone import backbone_of
from stretch.planning.network.units import components, runnable
from stretch.planning.search.layers import TIE

# Tasks: a segment's operators in the coarse units that are placed on processors.
#
# A task is what no placement should cut: operators that some backend fuses, and
# chains, in which each waits for the one before. What is left is a graph of tasks
# that really can run side by side.

#: In place of a task's number: what arrives at the segment.
ARRIVING = -1


@dataclass(frozen=True)
class TaskGraph:
    """The tasks of a segment, in an order in which they can run; the last one ends it."""

    ops: tuple[tuple[str, ...], ...]  # Names of the operators of each.
    #: For each the tensors that it reads of others: who writes it, or `ARRIVING`, and its name.
    reads: tuple[tuple[tuple[int, str], ...], ...]

    def __len__(self) -> int:
        """How many tasks there are."""
        return len(self.ops)

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Tasks that each reads from."""
        return tuple(tuple(dict.fromkeys(source for source, _ in read if source != ARRIVING)) for read in self.reads)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Tasks that read from each."""
        result: list[list[int]] = [[] for _ in self.ops]
        for number, sources in enumerate(self.sources):
            for source in sources:
                result[source].append(number)
        return tuple(map(tuple, result))

    @property
    def parallel(self) -> bool:
        """Whether any two tasks can run side by side: else each waits for the one before."""
        return any(number - 1 not in self.sources[number] for number in range(1, len(self)))


def find_tasks(graph: OpGraph, launched: Sequence[Sequence[Kernel]]) -> TaskGraph:
    """The tasks of a segment."""
    return _quotient(graph, _chained(fused_tasks(graph, launched)))


def fused_tasks(graph: OpGraph, launched: Sequence[Sequence[Kernel]]) -> TaskGraph:
    """The finest tasks: operators that some backend fuses are one, every other is one of its own."""
    sets = [kernel.ops for kernels in launched for kernel in kernels]
    return _quotient(graph, components((op.name for op in graph.ops if op.kind != "input"), sets))


def _quotient(graph: OpGraph, groups: Sequence[Sequence[str]]) -> TaskGraph:
    """Groups of operators as tasks, in an order in which they can run; a kernel's inner operators have no other reader, so there is no circle."""
    of = {name: number for number, names in enumerate(groups) for name in names}
    reads: list[dict[tuple[int, str], None]] = [{} for _ in groups]
    position = {op.name: i for i, op in enumerate(graph.ops)}
    for name, current in of.items():
        for read in graph.by_name[name].inputs:
            source = of.get(read, ARRIVING)
            if source != current:
                reads[current][source, read] = None
    first = [min(position[name] for name in names) for names in groups]
    sources = [{source for source, _ in read if source != ARRIVING} for read in reads]
    order = runnable(sorted(range(len(groups)), key=first.__getitem__), sources)
    place = {number: i for i, number in enumerate(order)} | {ARRIVING: ARRIVING}
    return TaskGraph(
        tuple(tuple(sorted(groups[number], key=position.__getitem__)) for number in order),
        tuple(tuple((place[source], read) for source, read in reads[number]) for number in order),
    )


def _chained(tasks: TaskGraph) -> list[list[str]]:
    """Operators of each run of tasks in which each is all that the next one waits for, and nothing else waits for it.

    A tensor that skips over a task does not part it from its neighbours: what reads it waits for the task as well. So
    of what a task waits for only the last count, those that no other of them waits for (the transitive reduction).
    """
    ancestors: list[int] = []
    last: list[list[int]] = []
    for number in range(len(tasks)):
        sources = tasks.sources[number]
        behind = 0
        for source in sources:
            behind |= ancestors[source]
        last.append([source for source in sources if not behind >> source & 1])
        for source in sources:
            behind |= 1 << source
        ancestors.append(behind)
    follow = [0] * len(tasks)
    for sources in last:
        for source in sources:
            follow[source] += 1
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


#: Assignments of tasks to processors that are all looked at.
MOST_EXACT = 1024

#: Schedules that one search computes at most.
MOST_TRIED = 4000


@dataclass(frozen=True)
class Placed:
    """Tasks on processors."""

    processors: tuple[int, ...]  # Number of the processor of each task.
    order: tuple[int, ...]  # Tasks in the order in which processors prefer them.
    ms: float  # Until the last has ended.
    optimal: bool = False  # Whether no placement is faster.


class Problem:
    """Tasks to be placed, by their times on each processor beside others, ms (tasks × processors).

    `holder` is the number of the processor that holds what arrives, which may compute nothing, `end` that of the one that has to write
    the segment's end.
    """

    def __init__(self, tasks: TaskGraph, ms: Floats, transfer: Callable[[str, int, int], float], holder: int, end: int) -> None:
        self.tasks, self.ms, self.holder, self.end = tasks, ms.tolist(), holder, end
        self.count = ms.shape[1]
        everywhere = range(max(self.count, holder + 1))
        tensors = {tensor for read in tasks.reads for _, tensor in read}
        #: Milliseconds of a tensor from one processor to another.
        self.moving = {tensor: [[transfer(tensor, a, b) for b in range(self.count)] for a in everywhere] for tensor in tensors}
        self._waiting: tuple[tuple[int, ...], list[list[int]], list[int]] = ((), [], [])

    def jobs(self, groups: Sequence[Sequence[int]], processors: Sequence[int]) -> list[Job]:
        """Groups of tasks, which run one after the other on a processor, as jobs; a tensor that several of a group read crosses once."""
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
        """Milliseconds of tasks on processors, in an order of preference."""
        if self._waiting[0] != tuple(order):
            number = {task: i for i, task in enumerate(order)}
            self._waiting = (tuple(order), *waiting([[number[source] for source in self.tasks.sources[task]] for task in order]))
        _, readers, missing = self._waiting
        moving, holder, ms, places = self.moving, self.holder, [], [processors[task] for task in order]
        for task, place in zip(order, places, strict=True):
            took = self.ms[task][place]
            for source, tensor in self.tasks.reads[task]:
                held = holder if source == ARRIVING else processors[source]
                if held != place:
                    took += moving[tensor][held][place]
            ms.append(took)
        return max(run(places, ms, readers, missing, self.count)[1])


def place(problem: Problem) -> Placed:
    """The fastest placement that is found; of few tasks the fastest there is."""
    improved = _improved(problem)
    return _exact(problem, improved) if problem.count ** (len(problem.tasks) - 1) <= MOST_EXACT else improved


def ranks(problem: Problem) -> list[float]:
    """The longest way from the start of each task to the end, with times and transfers averaged over processors: HEFT's upward rank."""
    pairs = [(a, b) for a in range(problem.count) for b in range(problem.count)]
    result = [0.0] * len(problem.tasks)
    for task in reversed(range(len(problem.tasks))):
        behind = 0.0
        for reader in problem.tasks.readers[task]:
            tensors = [tensor for source, tensor in problem.tasks.reads[reader] if source == task]
            moving = sum(problem.moving[tensor][a][b] for tensor in tensors for a, b in pairs) / len(pairs)
            behind = max(behind, moving + result[reader])
        result[task] = sum(problem.ms[task]) / problem.count + behind
    return result


def _improved(problem: Problem) -> Placed:
    """List scheduling and everything on one processor, each improved by moves; the fastest."""
    rank, last = ranks(problem), len(problem.tasks) - 1
    order = sorted(range(last + 1), key=lambda task: (-rank[task], task))
    starts = [_listed(problem, order), *([processor] * last + [problem.end] for processor in range(problem.count))]
    moves = list(product(dict.fromkeys(_moves(problem.tasks)), range(problem.count)))
    tried, placed = 0, []
    for processors in starts:
        ms, improved = problem.time(processors, order), True
        while improved and tried < MOST_TRIED:
            improved = False
            for tasks, target in moves:
                other = list(processors)
                for task in tasks:
                    other[task] = target
                other[-1] = problem.end
                if other != processors:
                    tried += 1
                    time = problem.time(other, order)
                    if time < ms - TIE:
                        processors, ms, improved = other, time, True
        if not placed or ms < placed[-1].ms - TIE:
            placed.append(Placed(tuple(processors), tuple(order), ms))
    return placed[-1]


def _listed(problem: Problem, order: Sequence[int]) -> list[int]:
    """Each task where it would end first, one after the other in this order."""
    free, ends = [0.0] * problem.count, [0.0] * len(problem.tasks)
    processors = [0] * len(problem.tasks)
    last = len(problem.tasks) - 1
    for task in order:
        best = np.inf
        for place in range(problem.count) if task != last else (problem.end,):
            ready = max((ends[source] for source in problem.tasks.sources[task]), default=0.0)
            ms = problem.ms[task][place] + sum(
                problem.moving[tensor][problem.holder if source == ARRIVING else processors[source]][place]
                for source, tensor in problem.tasks.reads[task]
            )
            end = max(ready, free[place]) + ms
            if end < best:
                best, processors[task] = end, place
        free[processors[task]] = ends[task] = best
    return processors


def _moves(tasks: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Tasks that are worth moving together: one; with what is computed for it alone; what reads the same tensor."""
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


def _exact(problem: Problem, known: Placed) -> Placed:
    """The fastest of all placements, unless that which is known is as fast."""
    best = known
    last = len(problem.tasks) - 1
    for some in product(range(problem.count), repeat=last):
        processors = (*some, problem.end)
        jobs = problem.jobs([(task,) for task in range(last + 1)], processors)
        best_order = _best_order(jobs, best.ms)
        if best_order is not None:
            best = Placed(processors, *best_order)
    return Placed(best.processors, best.order, best.ms, optimal=True)


def _best_order(jobs: Sequence[Job], limit: float) -> tuple[tuple[int, ...], float] | None:
    """An order of preference in which jobs end before `limit`, the best there is, and when; None if there is none.

    Wherever a processor has several jobs that could start, each is tried. What is left of a way is bounded from below by
    the longest chain that has yet to run and by the load of each processor.
    """
    tail = [0.0] * len(jobs)
    for number in reversed(range(len(jobs))):
        tail[number] += jobs[number].ms
        for source in jobs[number].reads:
            tail[source] = max(tail[source], tail[number])
    best: tuple[tuple[int, ...], float] | None = None

    def search(now: float, started: tuple[int, ...], running: dict[str, tuple[float, int]], ended: frozenset[int]) -> None:
        nonlocal best, limit
        waiting = [number for number in range(len(jobs)) if number not in started]
        load: dict[str, float] = {}
        for number in waiting:
            load[jobs[number].processor] = load.get(jobs[number].processor, 0.0) + jobs[number].ms
        bound = max(
            [now + tail[number] for number in waiting] + [end + tail[number] - jobs[number].ms for end, number in running.values()],
            default=now,
        )
        bound = max([bound, *(max(now, running.get(place, (now, 0))[0]) + ms for place, ms in load.items())])
        if bound >= limit - TIE:
            return
        if not waiting:
            best, limit = (started, bound), bound
            return
        able = [number for number in waiting if jobs[number].processor not in running and ended.issuperset(jobs[number].reads)]
        if able:
            place = jobs[able[0]].processor
            for number in able:
                if jobs[number].processor == place:
                    search(now, (*started, number), {**running, place: (now + jobs[number].ms, number)}, ended)
            return
        place, (end, number) = min(running.items(), key=lambda item: item[1])
        search(end, started, {key: value for key, value in running.items() if key != place}, ended | {number})

    search(0.0, (), {}, frozenset())
    return best


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
