"""Times that hold: contestants in turns, runs that something interrupted told apart, what is still unsteady told."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter_ns, process_time_ns

import numpy as np

from scheduler.measure.turns import play_round

try:
    import resource
except ImportError:  # no such module on Windows, where every run counts as undisturbed
    resource = None  # type: ignore[assignment]

#: Rounds that count at least and at most, and rounds before them.
LEAST, MOST, WARMUP = 7, 25, 2

#: Relative distance between the quartiles of a contestant's times beyond which they say nothing.
UNSTEADY = 0.15

#: Uncertainty of a median, relative, at which a contestant was measured well enough.
_ENOUGH = 0.01

#: A thread with this niceness is seldom made to wait for others; what it asks for where it may.
_NICE = -10


@dataclass(frozen=True)
class Steady:
    """The time of one contestant."""

    ms: float  # Median of the runs that count.
    std_ms: float  # Their standard deviation, from the quartiles (1.349 of it lie between them in a normal distribution).
    runs: int  # How many count.
    interrupted: int  # During how many of all runs the system gave a core to somebody else.
    least_ms: float = 0.0  # The quickest run.

    @property
    def spread(self) -> float:
        """Distance between the quartiles, relative to the median."""
        return 1.349 * self.std_ms / self.ms

    @property
    def unsteady(self) -> bool:
        """Whether the time says nothing."""
        return self.spread > UNSTEADY


@contextlib.contextmanager
def preferred() -> Iterator[None]:
    """Ask the system to run the calling thread, and threads that it starts, before others; nothing where it must not."""
    before = None
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            was = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, min(was, _NICE))
            before = was
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, before)


def time_steadily(
    contestants: Mapping[str, Callable[[], object]], serial: bool = False, least: int = LEAST, most: int = MOST, end: float = math.inf
) -> dict[str, Steady]:
    """Time what runs without waiting for others, in turns.

    Work on a single core counts with the time that the core computed, and with the least that it waited in two runs: on a
    busy machine, too, that is what it takes. Of other work, runs during which the system gave a core to somebody else are
    left out as long as there are enough others. Rounds go on until every median is known well.

    Args:
        end: On the clock of `time.monotonic`: no round is begun after it.
    """
    samples: dict[str, list[_Sample]] = {name: [] for name in contestants}
    timed = {name: _timed(run) for name, run in contestants.items()}
    for number in range(-WARMUP, most):
        if monotonic() > end:
            break
        for name, sample in play_round(timed, number).items():
            if number >= 0:
                samples[name].append(sample)
        if number + 1 >= least and all(_known(_summed(some, serial)) for some in samples.values()):
            break
    return {name: _summed(some, serial) for name, some in samples.items() if len(some) >= least}


@dataclass(frozen=True)
class _Sample:
    """One run, ms."""

    wall: float  # From its start to its end.
    computed: float  # Of that, what this process computed, on all its threads.
    interrupted: bool  # Whether the system gave a core to somebody else meanwhile.


def _timed(run: Callable[[], object]) -> Callable[[], _Sample]:
    def once() -> _Sample:
        before, computed, start = _switches(), process_time_ns(), perf_counter_ns()
        run()
        wall, computed = perf_counter_ns() - start, process_time_ns() - computed
        return _Sample(wall / 1e6, computed / 1e6, _switches() > before)

    return once


def _switches() -> int:
    """How often the system took a core away from this process."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _summed(samples: list[_Sample], serial: bool) -> Steady:
    whole = [sample.wall for sample in samples if not sample.interrupted]
    if serial:
        # A thread that waits for its turn on a busy machine does not compute; what it waits at least is part of the work.
        # That is less than nothing where the caller and the device compute at the same time. The least of all is left out:
        # another thread of this process may have computed meanwhile, which makes it seem that the work waited less.
        waits = sorted(sample.wall - sample.computed for sample in samples)[:2][-1]
        used = [max(0.1 * sample.computed, sample.computed + waits) for sample in samples]
    else:
        used = whole if len(whole) >= min(5, len(samples)) else [sample.wall for sample in samples]
    low, middle, high = np.percentile(used, [25, 50, 75])
    return Steady(float(middle), float(high - low) / 1.349, len(used), len(samples) - len(whole), float(min(used)))


def _known(steady: Steady) -> bool:
    # The standard error of a median of normal times is 1.253 σ ÷ √n.
    return 1.253 * steady.std_ms <= _ENOUGH * steady.ms * math.sqrt(steady.runs)
