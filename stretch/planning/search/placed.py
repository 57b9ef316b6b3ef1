"""Designs in which portions of a segment run on several processors, placed along its own graph.

For each processor that may hold what arrives, and each that may write the end,
one placement is searched for (`stretch.planning.search.placing`). Tasks that
follow each other on one processor become portions, as few as cost no time, and
the portions' own graphs say what the placement takes: the search's sums over
tasks only choose it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from predictors.fusion import Kernel
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.makespan import BranchTime, portion_times
from stretch.planning.cost.schedule import schedule
from stretch.planning.cost.ways import Ways
from stretch.planning.design.branch_design import BranchScale
from stretch.planning.design.portions import portion_ends, portion_graphs
from stretch.planning.network.segments import Segment
from stretch.planning.network.tasks import TaskGraph, find_tasks
from stretch.planning.search.placing import TIE, Placed, Problem, place
from stretch.planning.search.space import DesignSpace

#: More tasks than this are not placed: no network has so many, and the search would take too long.
MOST_TASKS = 2000


def placed_ways(space: DesignSpace, segment: Segment, alone_ms: Sequence[float]) -> list[Ways]:
    """Ways to compute a segment in portions on several processors; none where that is not faster than one of them alone."""
    costs = space.costs
    launched = [costs.predictor.kernels(segment.graph, processor) for processor in space.processors]
    tasks = find_tasks(segment.graph, launched)
    if not tasks.parallel or len(tasks) > MOST_TASKS:
        return []
    moving = _Moving(costs, segment)
    ms = task_times(tasks, launched, space)
    found: dict[tuple[tuple[str, tuple[str, ...]], ...], Ways] = {}
    for holder in space.holders:
        for end in range(len(space.processors)):
            # what arrives may be held by a host that computes nothing: then it has a number of its own
            names = (*space.processors, *(name for name in space.holders if name not in space.processors))
            problem = Problem(tasks, ms, lambda tensor, a, b, names=names: moving.ms(tensor, names[a], names[b]), names.index(holder), end)
            placed = place(problem)
            scales = portions(problem, placed, space, segment)
            key = tuple((each.processor, each.ends or ()) for each in scales)
            if len({each.processor for each in scales}) > 1 and key not in found:
                found[key] = _ways(space, segment, scales, alone_ms, moving)
    return [ways for ways in found.values() if np.isfinite(ways.ms).any()]


class _Moving:
    """Transfers of a segment's tensors, each worked out once."""

    def __init__(self, costs: Costs, segment: Segment) -> None:
        self._costs, self._graph = costs, segment.graph
        self._known: dict[tuple[int, str, str], float] = {}

    def ms(self, tensor: str, source: str, target: str) -> float:
        key = (prod(self._graph.by_name[tensor].shape), source, target)
        if key not in self._known:
            self._known[key] = self._costs.transfer(source, target, key[0])
        return self._known[key]


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
    found = schedule(problem.jobs([(task,) for task in placed.order], processors))
    begun = [placed.order[i] for i in sorted(range(len(tasks)), key=lambda i: (found.starts[i], found.ends[i], i))]
    groups: list[_Group] = []
    open_on: dict[int, _Group] = {}
    for task in _ordered(tasks, begun):
        on = processors[task]
        group = open_on.get(on)
        if group is None or group.closed or any(processors[source] != on for source in tasks.sources[task]):
            group = open_on[on] = _Group(on, [])
            groups.append(group)
        group.tasks.append(task)
        group.closed = any(processors[reader] != on for reader in tasks.readers[task])
    merged = _merged(problem, [group.tasks for group in groups], processors)
    ends = portion_ends(segment.graph, [{name for task in group for name in tasks.ops[task]} for group in merged])
    names = [space.processors[processors[group[0]]] for group in merged]
    return [
        BranchScale(name, segment.depth, segment.width, align=space.costs.align(name), ends=own)
        for name, own in zip(names, ends, strict=True)
    ]


def _ordered(tasks: TaskGraph, preferred: Sequence[int]) -> list[int]:
    """Tasks in an order in which they can run, as near to the preferred one as that allows."""
    there: set[int] = set()
    found: list[int] = []
    left = list(preferred)
    while left:
        task = next(each for each in left if there.issuperset(tasks.sources[each]))
        left.remove(task)
        there.add(task)
        found.append(task)
    return found


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
    """Portions of which two are one, in an order in which they can run; None if there is none.

    What lies between them and waits for the first stays behind, what the second waits for goes before.
    """
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


def _ways(space: DesignSpace, segment: Segment, scales: Sequence[BranchScale], alone_ms: Sequence[float], moving: _Moving) -> Ways:
    """One placement as an option; it takes endless time from a holder from which one processor alone is as fast."""
    costs = space.costs
    graphs = portion_graphs(segment.graph, [segment.name] * len(scales), [scale.ends or () for scale in scales])
    runs = [portion_times(scales, graphs, {segment.start: holder}, costs) for holder in space.holders]
    ms = np.array([[max(each.start_ms + each.total_ms for each in run)] for run in runs])
    computed = [_computing(run) for run in runs]
    end = scales[-1].processor
    for i, holder in enumerate(space.holders):
        alone = min(
            moving.ms(segment.start, holder, processor) + time + moving.ms(segment.end, processor, end)
            for processor, time in zip(space.processors, alone_ms, strict=True)
        )
        if ms[i, 0] >= alone:
            ms[i, 0] = np.inf
    return Ways(
        segment,
        "placed",
        tuple((_cost(costs, segment, run, graph.params),) for run, graph in zip(runs[0], graphs, strict=True)),
        macs=np.array([segment.graph.macs]),
        params=np.array([segment.graph.params]),
        ms=ms,
        allowed=np.ones((len(space.holders), 1), bool),
        depth=np.ones(1),
        exchange_ms=np.array([[max(0.0, float(row[0]) - max(each.values()))] for row, each in zip(ms, computed, strict=True)]),
        slowest_ms=np.array([max(computed[0].values())]),
        fastest_ms=np.array([min(computed[0].values())]),
        peak_bytes=np.array([_peak_bytes(costs, runs[0])]),
        alone_ms=min(alone_ms),
        busy=lambda: {name: np.array([[each[name]] for each in computed]) for name in computed[0]},
    )


def _computing(run: Sequence[BranchTime]) -> dict[str, float]:
    """How long each processor computes beside the others, ms."""
    found: dict[str, float] = {}
    for each in run:
        found[each.scale.processor] = found.get(each.scale.processor, 0.0) + each.ms + each.contention_ms
    return found


def _cost(costs: Costs, segment: Segment, run: BranchTime, params: int) -> BranchCost:
    return BranchCost(
        run.scale.processor,
        segment.depth,
        segment.width,
        "none",
        run.macs,
        params,
        run.ms,
        run.ms + run.contention_ms,
        _peak(costs, run),
        ends=run.scale.ends,
    )


def _peak(costs: Costs, run: BranchTime) -> int:
    """Most bytes that a kernel of a portion reads and writes."""
    item = costs.item_bytes(run.scale.processor)
    return max(((each.kernel.cost.reads + each.kernel.cost.writes) * item for each in run.estimate.kernels), default=0)


def _peak_bytes(costs: Costs, run: Sequence[BranchTime]) -> int:
    """Bytes of the largest kernels that may run at once, one a processor."""
    largest: dict[str, int] = {}
    for each in run:
        largest[each.scale.processor] = max(largest.get(each.scale.processor, 0), _peak(costs, each))
    return sum(largest.values())
