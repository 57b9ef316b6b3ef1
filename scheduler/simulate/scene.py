"""What goes on around a bundle while it is simulated."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import numpy as np

from predictors.errors import UsageError
from scheduler.runtime.inputs import checked_priority
from scheduler.simulate.arrivals import Arrivals
from scheduler.simulate.load import Frequency, Load

#: Inferences at once, as `stretch run --in-flight` has it.
MOST_IN_FLIGHT = 64

#: Inferences of one simulation: their times fit into memory.
MOST_RUNS = 1_000_000

#: Standard deviation of a time's logarithm; at this one a time in twenty is over five times the predicted one.
MOST_JITTER = 1.0

#: Random numbers are drawn for so many inferences at a time.
_CHUNK = 256


@dataclass(frozen=True)
class Scene:
    """What is run, and what disturbs it."""

    runs: int = 1  # Inferences.
    in_flight: int = 1  # How many of them there may be at once.
    arrivals: Arrivals | None = None  # When they are asked for; None for each as soon as there is a lane for it.
    loads: tuple[Load, ...] = ()  # What else takes a share of the processors.
    frequencies: tuple[Frequency, ...] = ()  # When processors run at other speeds.
    jitter: float = 0.0  # Standard deviation of the logarithm of each subgraph's computing time, in each inference anew.
    seed: int = 0  # Of everything random.
    traced: int = 0  # Inferences of which the spans are kept, the first ones.
    deadline_ms: float | None = None  # Latency allowed, which counts where users take turns (`scheduler.simulate.sharing`); None for any.
    priority: int = 0  # Likewise, the higher the sooner.

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 1 <= self.runs <= MOST_RUNS:
            raise UsageError(f"{self.runs} inferences cannot be simulated", f"from 1 to {MOST_RUNS} can")
        if not 1 <= self.in_flight <= MOST_IN_FLIGHT:
            raise UsageError(f"{self.in_flight} inferences cannot be in flight", f"from 1 to {MOST_IN_FLIGHT} can")
        if not (isfinite(self.jitter) and 0 <= self.jitter <= MOST_JITTER):
            raise UsageError(
                f"a jitter of {self.jitter:g} is out of range", f"it is from 0 to {MOST_JITTER:g}; 0.05 is about 5 % of a time"
            )
        if self.seed < 0:
            raise UsageError(f"{self.seed} is no seed", "a seed is 0 or a positive whole number")
        if self.deadline_ms is not None and not (isfinite(self.deadline_ms) and self.deadline_ms > 0):
            raise UsageError(
                f"a deadline of {self.deadline_ms:g} ms is not positive and finite", "give the milliseconds that an inference may take"
            )
        checked_priority(self.priority)

    def factors(self, subgraphs: int, user: int = 0) -> Iterator[list[float] | None]:
        """Of each inference in turn the factors on its subgraphs' times, in the order of the plan; None where nothing jitters.

        They depend on the seed, the user and the number of the inference alone: whatever disturbs a run, its jitter is the same.
        """
        rng = np.random.default_rng([self.seed, 0, user] if user else [self.seed, 0])
        while True:
            if self.jitter:
                yield from rng.lognormal(0.0, self.jitter, (_CHUNK, subgraphs)).tolist()
            else:
                yield None
