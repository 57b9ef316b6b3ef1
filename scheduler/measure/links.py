"""What it costs to hand a tensor to a processor and to take one back, from networks that hardly compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from time import monotonic, perf_counter_ns, thread_time_ns

import numpy as np

from scheduler.delegates.base import AsyncInvocation


@dataclass(frozen=True)
class Handover:
    """A network that was run for its hand-over."""

    in_bytes: int  # Bytes of its input.
    out_bytes: int  # Bytes of its output.
    ms: float  # Time of a run, that of its kernels taken away.


@dataclass(frozen=True)
class LinkTimes:
    """What hand-overs cost."""

    fixed_ms: float  # An exchange, there and back.
    to_gbs: float  # Rate on the way to the processor, 10⁹ bytes a second.
    back_gbs: float  # Rate on the way back.


#: No link is believed to be faster: what crosses nothing at all.
MOST_GBS = 1000.0


def fit_link(runs: Sequence[Handover]) -> LinkTimes:
    """Fixed cost and rates, none of them negative, by least squares on the relative error.

    Args:
        runs: Of different sizes, at least three.
    """
    from scipy.optimize import nnls

    times = np.maximum([run.ms for run in runs], 1e-4)
    rows = np.array([[1.0, run.in_bytes / 1e6, run.out_bytes / 1e6] for run in runs])
    (fixed, to, back), _ = nnls(rows / times[:, None], np.ones(len(runs)))
    return LinkTimes(float(fixed), *(MOST_GBS if per_mb * MOST_GBS <= 1 else 1 / per_mb for per_mb in (float(to), float(back))))


#: Exchanges in each state, and those that are made whatever the time.
READS, FEWEST = 25, 5


@dataclass(frozen=True)
class Reads:
    """Exchanges with a processor that has a queue, in turns: of an idle one, and behind a kernel that was running in it."""

    in_bytes: int  # Bytes that each hands over.
    out_bytes: int  # Bytes that it reads back.
    idle_ms: tuple[float, ...]  # What each took of the idle queue, its kernels' own time taken away.
    working_ms: tuple[float, ...]  # Behind a kernel: the same, from the moment on when that had ended.
    kernel_ms: float  # How long the kernel ran.
    feeding: float  # Share of its time that the calling thread computed, while the kernel ran.

    def spread(self, link: LinkTimes) -> tuple[float, float]:
        """Ends of the factor on a link's time that holds nine in ten exchanges of either state."""
        stated = max(link.fixed_ms + self.in_bytes / link.to_gbs / 1e6 + self.out_bytes / link.back_gbs / 1e6, 1e-4)
        ends = [np.quantile(some, at) / stated for some in (self.idle_ms, self.working_ms) for at in (0.05, 0.95)]
        return max(min(1.0, float(min(ends))), 0.01), max(1.0, float(max(ends)))


def time_reads(
    read: AsyncInvocation, kernel: AsyncInvocation, sizes: tuple[int, int], read_ms: float, *, turns: int = READS, end: float = inf
) -> Reads:
    """Exchange with an idle queue and behind a kernel, in turns.

    Args:
        read: A network that hardly computes; both are invocations of one delegate.
        kernel: One that computes for longer than an exchange takes.
        sizes: Bytes of the first one's input and output.
        read_ms: Time of its kernels.
        end: On the clock of `time.monotonic`: few turns are made after it.
    """
    idle: list[float] = []
    working: list[float] = []
    alone: list[float] = []
    feeding: list[float] = []
    for turn in range(turns):
        if turn >= FEWEST and monotonic() > end:
            break
        for invocation, times in ((read, idle), (kernel, alone)):
            computed, start = thread_time_ns(), perf_counter_ns()
            invocation.run()
            times.append((perf_counter_ns() - start) / 1e6)
        feeding.append((thread_time_ns() - computed) / 1e6 / alone[-1])
        kernel.enqueue()
        begun = perf_counter_ns()
        read.enqueue()
        read.wait()
        done = perf_counter_ns()
        kernel.wait()
        spans = kernel.times()
        # where the device tells no times, the kernel took as long as just before
        ended = spans[1] if spans is not None else begun + round(1e6 * alone[-1])
        # an exchange that is over before the kernel has not waited for it
        working.append((done - (ended if begun <= ended <= done else begun)) / 1e6)
    in_idle, in_working = (tuple(max(0.0, ms - read_ms) for ms in times) for times in (idle, working))
    return Reads(*sizes, in_idle, in_working, median(alone), min(1.0, median(feeding)))
