"""Processors that compute at the same time: how much slower each is then, and for how long.

One model for the planner, which asks it for the branches of a segment, and for the
simulation, whose clock goes from event to event. A processor loses something only
while another one computes: not while it computes alone, and not while tensors move.
The CPU also loses what the threads take that feed the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from predictors.host import is_host


@dataclass(frozen=True)
class ProcessorWork:
    """What one processor computes without a pause."""

    processor: str  # Which.
    start_ms: float  # When it begins.
    ms: float  # How long it takes alone.
    contention: float  # Factor on that while another processor computes, at least 1.
    feeder: float = 0.0  # Share of the CPU that the thread takes which feeds the processor meanwhile.


def speed(processor: str, contention: float, feeders: Iterable[float]) -> float:
    """Speed of a processor as a share of its speed alone.

    Args:
        processor: Such as ``cpu[1large]``.
        contention: Factor on its time beside others.
        feeders: Of each other processor that computes, what its thread takes of the CPU; none where it computes alone.
    """
    others = tuple(feeders)
    if not others:
        return 1.0
    fed = sum(others) if is_host(processor) else 0.0
    return max(0.0, 1.0 - fed) / contention


def ends(works: Sequence[ProcessorWork]) -> list[float]:
    """When each of some pieces of work on processors of their own ends, ms."""
    left = [work.ms for work in works]
    start_ms = [work.start_ms for work in works]
    now = 0.0
    while any(left):
        running = [i for i, work in enumerate(works) if left[i] and work.start_ms <= now]
        rates = {
            i: speed(works[i].processor, works[i].contention, [works[other].feeder for other in running if other != i]) for i in running
        }
        first = min((left[i] / rate if rate else inf for i, rate in rates.items()), default=inf)
        start = min((work.start_ms for i, work in enumerate(works) if left[i] and work.start_ms > now), default=inf)
        step = min(first, start - now)
        for i, rate in rates.items():
            done = rate > 0 and left[i] / rate <= step
            left[i] = 0.0 if done else left[i] - step * rate
            start_ms[i] = now + step
        now = start if start - now <= step else now + step
    return start_ms
