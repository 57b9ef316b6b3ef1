"""When jobs run that wait for each other on several processors: the order of the runtime, as arithmetic.

A processor that is free takes the first of its jobs, in the order of their list,
that has all it reads; it never waits for an earlier one while a later one can
start. The state machine (`scheduler.runtime.machine`) does the same with the
subgraphs of a bundle.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """Work that occupies one processor.

    Args:
        processor: Which.
        ms: How long, transfers of what it reads included.
        reads: Numbers of the jobs that write what it reads.
    """

    processor: str
    ms: float
    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """When each job runs.

    Args:
        starts: Start of each, ms.
        ends: End of each, ms.
        waits: For each the jobs that it waits for: those that it reads from, and the one before it on its processor. It
            starts when the last of them has ended.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    waits: tuple[tuple[int, ...], ...]

    @property
    def ms(self) -> float:
        """From the start of the first job to the end of the last."""
        return max(self.ends, default=0.0)


def schedule(jobs: Sequence[Job]) -> Schedule:
    """The schedule of some jobs, each on its processor.

    Args:
        jobs: In the order in which a processor prefers them.

    Raises:
        ValueError: If jobs wait for each other in a circle.
    """
    readers: list[list[int]] = [[] for _ in jobs]
    missing = []
    for number, job in enumerate(jobs):
        sources = set(job.reads)
        missing.append(len(sources))
        for source in sources:
            readers[source].append(number)
    ready: dict[str, list[int]] = {job.processor: [] for job in jobs}
    for number, job in enumerate(jobs):
        if not missing[number]:
            ready[job.processor].append(number)  # in order, so it is a heap
    starts, ends = [0.0] * len(jobs), [0.0] * len(jobs)
    before: list[int | None] = [None] * len(jobs)
    last: dict[str, int] = {}
    running: list[tuple[float, int, int]] = []
    busy: set[str] = set()
    started, now = 0, 0.0
    while True:
        for processor, waiting in ready.items():
            if waiting and processor not in busy:
                number = heapq.heappop(waiting)
                starts[number], ends[number] = now, now + jobs[number].ms
                before[number] = last.get(processor)
                last[processor] = number
                busy.add(processor)
                heapq.heappush(running, (ends[number], started, number))
                started += 1
        if not running:
            break
        now, _, number = heapq.heappop(running)
        busy.discard(jobs[number].processor)
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready[jobs[reader].processor], reader)
    if started < len(jobs):
        raise ValueError("jobs wait for each other in a circle")
    waits = tuple(
        tuple(dict.fromkeys((*job.reads, *(() if earlier is None else (earlier,))))) for job, earlier in zip(jobs, before, strict=True)
    )
    return Schedule(tuple(starts), tuple(ends), waits)
