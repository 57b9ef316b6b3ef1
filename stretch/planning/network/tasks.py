"""Tasks: a segment's operators in the coarse units that are placed on processors.

A task is what no placement should cut: operators that some backend fuses, and
chains, in which each waits for the one before. What is left is a graph of tasks
that really can run side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from predictors.fusion import Kernel
from predictors.graph import OpGraph

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
    return _quotient(graph, _union(graph, [kernel.ops for kernels in launched for kernel in kernels]))


def _union(graph: OpGraph, sets: Sequence[Sequence[str]]) -> list[list[str]]:
    """Operators that are in one of the sets together, and those of overlapping sets."""
    root = {op.name: op.name for op in graph.ops if op.kind != "input"}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for names in sets:
        for name in names[1:]:
            root[find(name)] = find(names[0])
    union: dict[str, list[str]] = {}
    for name in root:
        union.setdefault(find(name), []).append(name)
    return list(union.values())


def _quotient(graph: OpGraph, groups: Sequence[Sequence[str]]) -> TaskGraph:
    """Groups of operators as tasks, in an order in which they can run.

    A kernel's operators but the last are read by nobody else, so groups of them never wait for each other in a circle.
    """
    of = {name: number for number, names in enumerate(groups) for name in names}
    reads: list[dict[tuple[int, str], None]] = [{} for _ in groups]
    position = {op.name: i for i, op in enumerate(graph.ops)}
    for name, current in of.items():
        for read in graph.by_name[name].inputs:
            source = of.get(read, ARRIVING)
            if source != current:
                reads[current][source, read] = None
    left = {number: {source for source, _ in read if source != ARRIVING} for number, read in enumerate(reads)}
    first = [min(position[name] for name in names) for names in groups]
    order: list[int] = []
    readers: list[list[int]] = [[] for _ in groups]
    for number, sources in left.items():
        for source in sources:
            readers[source].append(number)
    ready = [number for number in left if not left[number]]
    while ready:
        ready.sort(key=lambda number: first[number], reverse=True)
        number = ready.pop()
        order.append(number)
        for reader in readers[number]:
            left[reader].discard(number)
            if not left[reader]:
                ready.append(reader)
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
