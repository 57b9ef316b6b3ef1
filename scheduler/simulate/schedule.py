"""Schedules of dependent jobs on several processors, in the order of the runtime.

A free processor runs the first job in its list whose inputs are ready; it never waits for an earlier job while a later one can
start. The state machine (`scheduler.runtime.machine`) does the same with the subgraphs of a bundle, and
`scheduler.simulate.clock` does it with steps whose rates change.

The planner's timelines, the placement of portions, the baselines and the predictions of bundles use this module: `schedule` decides
the order of jobs, and `longest_path` computes the ends of jobs in that order with other times.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from graphlib import TopologicalSorter
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """Work that occupies one processor."""

    processor: str  # Name of the processor.
    ms: float  # Duration, including transfers of inputs.
    reads: tuple[int, ...] = ()  # Numbers of the jobs that write its inputs.


@dataclass(frozen=True)
class Schedule:
    """Start and end of each job."""

    starts: tuple[float, ...]  # Start of each job, ms.
    ends: tuple[float, ...]  # End of each job, ms.
    #: For each job, the jobs that it waits for: those that write its inputs, and the previous one on its processor. It starts when the
    #: last of these ends.
    waits: tuple[tuple[int, ...], ...]

    @property
    def ms(self) -> float:
        """Time from the start of the first job to the end of the last, ms."""
        return max(self.ends, default=0.0)


def schedule(jobs: Sequence[Job]) -> Schedule:
    """Return a schedule of the jobs, each on its processor."""
    readers, missing = waiting([job.reads for job in jobs])
    names = sorted({job.processor for job in jobs})
    starts, ends, before = run([names.index(job.processor) for job in jobs], [job.ms for job in jobs], readers, missing, len(names))
    waits = tuple(
        tuple(dict.fromkeys((*job.reads, *(() if earlier is None else (earlier,))))) for job, earlier in zip(jobs, before, strict=True)
    )
    return Schedule(tuple(starts), tuple(ends), waits)


def waiting(reads: Sequence[Collection[int]]) -> tuple[list[list[int]], list[int]]:
    """Return the jobs that read from each job, and the number of jobs that each reads from."""
    readers: list[list[int]] = [[] for _ in reads]
    missing = []
    for number, read in enumerate(reads):
        sources = set(read)
        missing.append(len(sources))
        for source in sources:
            readers[source].append(number)
    return readers, missing


def run(
    processors: Sequence[int], ms: Sequence[float], readers: Sequence[Sequence[int]], missing: Sequence[int], count: int
) -> tuple[list[float], list[float], list[int | None]]:
    """Return starts, ends and the previous job on each job's processor: `schedule` for frequent callers, with the results of `waiting`."""
    left = list(missing)
    ready: list[list[int]] = [[] for _ in range(count)]
    for number, processor in enumerate(processors):
        if not left[number]:
            ready[processor].append(number)  # in ascending order, so it is a heap
    starts, ends = [0.0] * len(processors), [0.0] * len(processors)
    before: list[int | None] = [None] * len(processors)
    last: list[int | None] = [None] * count
    idle = [True] * count
    running: list[tuple[float, int, int]] = []
    started, now = 0, 0.0
    touched: Iterable[int] = range(count)
    while True:
        for processor in touched:
            if idle[processor] and ready[processor]:
                number = heapq.heappop(ready[processor])
                starts[number], ends[number] = now, now + ms[number]
                before[number], last[processor] = last[processor], number
                idle[processor] = False
                heapq.heappush(running, (ends[number], started, number))
                started += 1
        if not running:
            break
        now, _, number = heapq.heappop(running)
        idle[processors[number]] = True
        touched = {processors[number]}
        for reader in readers[number]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready[processors[reader]], reader)
                touched.add(processors[reader])
    if started < len(processors):
        raise ValueError("jobs wait for each other in a circle")
    return starts, ends, before


def longest_path(ms: Sequence[Any], waits: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the end of each job if it starts when the last job that it waits for ends.

    Args:
        ms: Duration of each job: a number, or an array with one element per draw.
        waits: Numbers of the jobs that each job waits for, as in `Schedule.waits`.
    """
    ends: list[Any] = [0.0] * len(ms)
    for number in execution_order(tuple(waits)):
        ends[number] = ms[number] + reduce(np.maximum, [ends[earlier] for earlier in waits[number]] or [0.0])
    return ends


@lru_cache(maxsize=256)
def execution_order(waits: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the numbers of all jobs, each after the jobs that it waits for."""
    return tuple(TopologicalSorter(dict(enumerate(waits))).static_order())
