"""Processors that compute at the same time: their slowdown or speed-up, and its duration.

One model serves the planner, for the branches of a segment, and the simulation,
whose clock advances from event to event. A processor changes its speed only while
another one computes, not while it computes alone and not while tensors are
transferred. The CPU also loses the share of the threads that feed the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import NamedTuple

from predictors.devices import DeviceProfile, SlowdownFactors
from predictors.host import is_host, kind_of

#: Factor on a time by the kinds of processors that compute at the same time; 1 if not stated.
ContentionFactors = Mapping[frozenset[str], float]


class Shares(NamedTuple):
    """Shares of a time that other processors change; the rest, such as launches, stays the same."""

    arithmetic: float = 0.0  # Share of kernels that multiply.
    memory: float = 0.0  # Share of kernels that move memory.

    def time_factor(self, slowing: SlowdownFactors) -> float:
        """Return the factor on the whole time."""
        return 1 + (slowing.arithmetic - 1) * self.arithmetic + (slowing.memory - 1) * self.memory


def contention_factors(device: DeviceProfile, processor: str, shares: Shares, others: Iterable[str]) -> ContentionFactors:
    """Return the factors on a processor's time, for each set of other processors that may compute at the same time."""
    kinds = sorted({kind_of(other) for other in others} - {kind_of(processor)})
    sets = (kinds_set for count in range(1, len(kinds) + 1) for kinds_set in combinations(kinds, count))
    return {frozenset(processors): shares.time_factor(device.slowdown(processor, processors)) for processors in sets}


def worst_slowdown(device: DeviceProfile, processor: str, others: Iterable[str]) -> SlowdownFactors:
    """Return the factors if the overlap is unknown: others are assumed to compute all the time and to make nothing faster."""
    stated = device.slowdown(processor, others)
    return SlowdownFactors(max(1.0, stated.arithmetic), max(1.0, stated.memory))


@dataclass(frozen=True)
class ProcessorWork:
    """Work of one processor without pauses."""

    processor: str  # Name of the processor.
    start_ms: float  # Start of the work.
    ms: float  # Duration alone.
    contention: ContentionFactors = field(default_factory=dict)  # Factors on the duration while others compute.
    feeder: float = 0.0  # Share of the CPU taken by the thread that feeds the processor during the work.


def speed(processor: str, contention: ContentionFactors, feeders: Mapping[str, float]) -> float:
    """Return the speed of a processor relative to its speed alone.

    Args:
        processor: Name such as ``cpu[1large]``.
        contention: Factors on its time while others compute.
        feeders: For each other processor that computes, the share of the CPU of its feeding thread; empty if it computes alone.
    """
    if not feeders:
        return 1.0
    feeding = sum(feeders.values()) if is_host(processor) else 0.0
    return max(0.0, 1.0 - feeding) / contention.get(frozenset(map(kind_of, feeders)), 1.0)


class EndedWork(NamedTuple):
    """Finished work of one processor."""

    ms: float  # End of the work.
    together: Mapping[str, float]  # Time in ms for which each other kind of processor computed at the same time.


def end_times(works: Sequence[ProcessorWork]) -> list[EndedWork]:
    """Return the end of each processor's work, if all processors compute at the same time."""
    remaining_ms = [work.ms for work in works]
    start_ms = [work.start_ms for work in works]
    together: list[dict[str, float]] = [{} for _ in works]
    now = 0.0
    while any(remaining_ms):
        running = [i for i, work in enumerate(works) if remaining_ms[i] and work.start_ms <= now]
        rates = {
            i: speed(
                works[i].processor, works[i].contention, {works[other].processor: works[other].feeder for other in running if other != i}
            )
            for i in running
        }
        first = min((remaining_ms[i] / rate if rate else inf for i, rate in rates.items()), default=inf)
        start = min((work.start_ms for i, work in enumerate(works) if remaining_ms[i] and work.start_ms > now), default=inf)
        step = min(first, start - now)
        for i, rate in rates.items():
            done = rate > 0 and remaining_ms[i] / rate <= step
            remaining_ms[i] = 0.0 if done else remaining_ms[i] - step * rate
            start_ms[i] = now + step
            for kind in {kind_of(works[other].processor) for other in running if other != i}:
                together[i][kind] = together[i].get(kind, 0.0) + step
        now = start if start - now <= step else now + step
    return [EndedWork(*end) for end in zip(start_ms, together, strict=True)]
