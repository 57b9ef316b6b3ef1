"""Plans of one network that may take each other's place, and what each of them takes where processors are slower than planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Work:
    """A step of a plan."""

    name: str  # Unique in its plan.
    processor: str  # Processor that it occupies.
    queue: str  # What runs one step at a time.
    computing_ms: float  # Time on the processor, which grows with whatever else uses it.
    other_ms: float  # Exchanges before and after it, which do not.
    after: tuple[str, ...]  # Steps of the plan that have to be over before it begins.


@dataclass(frozen=True)
class Alternative:
    """A plan, as the policy sees it."""

    name: str  # Unique among the alternatives.
    work: tuple[Work, ...]  # Its steps, each behind those that it waits for.
    #: Additional power of each computing processor; empty if energy is irrelevant.
    watts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def computing_ms(self) -> Mapping[str, float]:
        """What each processor computes in an inference, ms."""
        total: dict[str, float] = {}
        for work in self.work:
            total[work.processor] = total.get(work.processor, 0.0) + work.computing_ms
        return total

    def expected_mj(self, factors: Mapping[str, float]) -> float:
        """What processors take for an inference if they take longer than planned, mJ."""
        return sum(self.watts[name] * ms * factors.get(name, 1.0) for name, ms in self.computing_ms.items() if ms)

    def expected_ms(self, factors: Mapping[str, float]) -> float:
        """What an inference takes if processors take longer than planned.

        Each step begins when those before it are over and its queue has done
        what stands before it in the plan.

        Args:
            factors: Measured over expected computing time, by processor; 1 for those that are not named.
        """
        ends: dict[str, float] = {}
        queues: dict[str, float] = {}
        for work in self.work:
            begins = max((queues.get(work.queue, 0.0), *(ends[name] for name in work.after)))
            ends[work.name] = queues[work.queue] = begins + work.other_ms + work.computing_ms * factors.get(work.processor, 1.0)
        return max(ends.values(), default=0.0)
