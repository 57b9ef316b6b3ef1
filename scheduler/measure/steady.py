"""Steady times of networks on this machine: rounds in turns, intervals of ratios, times without interruptions, under load, of transfers."""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns, process_time_ns, thread_time_ns
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from predictors import system
from scheduler.cores import pinned
from scheduler.delegates import Compiled, Delegate
from scheduler.delegates.base import Allocate, AsyncInvocation, warm_up

T = TypeVar("T")


def play_round(contestants: Mapping[str, Callable[[], T]], number: int) -> dict[str, T]:
    """Run every variant once, in rotating order."""
    order = list(contestants)
    first = number % len(order) if order else 0
    return {name: contestants[name]() for name in order[first:] + order[:first]}


#: Number of batches of rounds, if there are enough rounds.
BATCHES = 8

#: 97.5 % quantiles of Student's t distribution with 1, 2, … degrees of freedom.
T_975 = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624)


def _interval_ends(value: float, logs: NDArray[np.float64]) -> tuple[float, float]:
    """Return Student's 95 % interval around the mean of logarithms, widened to contain `value`."""
    half = T_975[len(logs) - 2] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    centre = float(logs.mean())
    # beyond the largest float the interval is practically infinite
    return min(value, math.exp(max(centre - half, -700.0))), max(value, math.exp(min(centre + half, 700.0)))


#: Maximum ratio of the two ends of an interval that is shown.
MAX_END_RATIO = 100.0


@dataclass(frozen=True)
class RatioEstimate:
    """A positive number with a 95 % interval, whose ends are None with too few rounds."""

    value: float  # Median of all rounds.
    low: float | None = None  # Lower end of the 95 % interval.
    high: float | None = None  # Upper end of the interval.

    @property
    def side(self) -> int:
        """1 if the interval is above one, −1 if it is below, 0 if it contains one or there is none."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 1 else -1 if self.high < 1 else 0

    @property
    def width(self) -> float:
        """Relative distance of the value from the farther end of the interval; infinity without an interval."""
        if self.low is None or self.high is None:
            return math.inf
        return max(self.high / self.value - 1, 1 - self.low / self.value)

    def __str__(self) -> str:
        """Return the interval as ``0.97–1.06``, or words if there is no interval or it is too wide."""
        if self.low is None or self.high is None or self.high > MAX_END_RATIO * self.low:
            return "too few rounds for an interval"
        return f"{self.low:.2f}–{self.high:.2f}"


def ratio_interval(times: Sequence[float], baseline_times: Sequence[float]) -> RatioEstimate:
    """Return the ratio of the medians of two series measured in turns, with a 95 % interval.

    Non-overlapping batch means (Law, Simulation Modeling and Analysis, chapter
    9): the rounds are divided into `BATCHES` periods, each period gives one
    ratio of medians, and the interval is Student's around the mean of their
    logarithms. Consecutive rounds are correlated, and machines drift; whole
    periods are nearly independent, and the interval grows where they disagree,
    unlike an interval over single rounds. It is widened to contain the ratio of
    all rounds.
    """
    a, b = np.asarray(times, float), np.asarray(baseline_times, float)
    value = float(np.median(a) / np.median(b))
    count = min(BATCHES, len(a))
    if count < 2:
        return RatioEstimate(value)
    logs = np.array([np.log(np.median(x) / np.median(y)) for x, y in zip(np.array_split(a, count), np.array_split(b, count), strict=True)])
    return RatioEstimate(value, *_interval_ends(value, logs))


#: Minimum and maximum number of rounds.
MIN_ROUNDS, MAX_ROUNDS = 7, 25

#: Distance between the quartiles, relative to the median, above which times are unsteady.
UNSTEADY = 0.15

#: Relative uncertainty of a median at which measuring ends.
_PRECISION = 0.01

#: Requested niceness, where it is allowed: a thread with it rarely waits for others.
_NICE = -10


@dataclass(frozen=True)
class SteadyTime:
    """The time of one measured network."""

    ms: float  # Median of the counted runs.
    std_ms: float  # Standard deviation of the counted runs, from the quartiles (1.349 times as far apart in a normal distribution).
    runs: int  # Number of counted runs.
    least_ms: float = 0.0  # Fastest run.

    @classmethod
    def of(cls, times: Sequence[float]) -> "SteadyTime":
        """Return the summary of the times of runs, ms."""
        low, middle, high = np.percentile(times, [25, 50, 75])
        return cls(float(middle), float(high - low) / 1.349, len(times), float(min(times)))

    @property
    def spread(self) -> float:
        """Distance between the quartiles, relative to the median."""
        return 1.349 * self.std_ms / self.ms

    @property
    def unsteady(self) -> bool:
        """Whether the time is too unstable to use."""
        return self.spread > UNSTEADY


@contextlib.contextmanager
def high_priority() -> Iterator[None]:
    """Raise the priority of the calling thread, and of threads that it starts, if allowed."""
    previous = None
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            current = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, 0, min(current, _NICE))
            previous = current
    try:
        yield
    finally:
        if previous is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, previous)


#: Milliseconds of a run below which filling caches takes a noticeable share.
_SHORT_MS = 10.0


def time_steadily(
    contestants: Mapping[str, Callable[[], object]],
    serial: bool = False,
    min_rounds: int = MIN_ROUNDS,
    max_rounds: int = MAX_ROUNDS,
    end: float = math.inf,
) -> dict[str, SteadyTime]:
    """Time variants in turns, without the effect of other processes.

    Work on a single core counts with the core's computing time plus the second-shortest wait: that is its time even on a
    busy machine. For other work, runs in which the system gave a core to another process are left out if there are enough
    other runs. Rounds continue until the uncertainty of every median is small; unmeasured runs precede them. Before each short
    run there is an unmeasured one, because the other variants have evicted its data from the caches.
    """
    warm_up(lambda: [run() for run in contestants.values()])
    samples: dict[str, list[_Sample]] = {name: [] for name in contestants}
    timed_runs = {name: _timed(run) for name, run in contestants.items()}
    for number in range(max_rounds):
        if monotonic() > end:
            break
        for name, sample in play_round(timed_runs, number).items():
            samples[name].append(sample)
        if number + 1 >= min_rounds and all(_is_precise(_summarise(name_samples, serial)) for name_samples in samples.values()):
            break
    return {name: _summarise(times, serial) for name, times in samples.items() if len(times) >= min_rounds}


@dataclass(frozen=True)
class _Sample:
    """The time of one run, ms."""

    wall: float  # From start to end.
    computed: float  # Computing time of this process on all its threads.
    interrupted: bool  # Whether the system gave a core to another process in between.


def _timed(run: Callable[[], object]) -> Callable[[], _Sample]:
    def timed_run() -> _Sample:
        before, computed, start = _switches(), process_time_ns(), perf_counter_ns()
        run()
        wall, computed = perf_counter_ns() - start, process_time_ns() - computed
        return _Sample(wall / 1e6, computed / 1e6, _switches() > before)

    def second_run() -> _Sample:
        sample = timed_run()
        return timed_run() if sample.wall < _SHORT_MS else sample

    return second_run


def _switches() -> int:
    """Return the number of times that the system took a core away from this process."""
    return 0 if system.resource is None else system.resource.getrusage(system.resource.RUSAGE_SELF).ru_nivcsw


def _summarise(samples: list[_Sample], serial: bool) -> SteadyTime:
    uninterrupted_ms = [sample.wall for sample in samples if not sample.interrupted]
    if serial:
        # A thread that waits for its turn on a busy machine does not compute, but its shortest wait is part of the work.
        # The difference is negative if caller and device compute at the same time. The smallest one is left out: another
        # thread of this process may have computed in between, which makes the wait seem shorter.
        waits = sorted(sample.wall - sample.computed for sample in samples)[:2][-1]
        times = [max(0.1 * sample.computed, sample.computed + waits) for sample in samples]
    else:
        times = uninterrupted_ms if len(uninterrupted_ms) >= min(5, len(samples)) else [sample.wall for sample in samples]
    return SteadyTime.of(times)


def _is_precise(steady: SteadyTime) -> bool:
    # The standard error of the median of normally distributed times is 1.253 σ ÷ √n.
    return 1.253 * steady.std_ms <= _PRECISION * steady.ms * math.sqrt(steady.runs)


def buffers(shapes: Iterable[tuple[int, ...]], allocate: Allocate | None) -> list[NDArray[np.float32]]:
    """Return arrays of zeros in memory from `allocate`, or in ordinary memory without it."""
    sizes = [(shape, 4 * math.prod(shape)) for shape in shapes]
    return [np.zeros(s, np.float32) if allocate is None else allocate(n).view(np.float32).reshape(s) for s, n in sizes]


def runner(compiled: Compiled, cores: tuple[int, ...], allocate: Allocate | None = None) -> Callable[[], None]:
    """Return a function that runs a compiled network once on random inputs, with buffers from `allocate` if given."""
    rng = np.random.default_rng(0)
    inputs, outputs = (buffers(shapes.values(), allocate) for shapes in (compiled.inputs, compiled.outputs))
    for array in inputs:
        array[...] = rng.standard_normal(array.shape, np.float32)
    call = compiled.bind(inputs, outputs)

    def run() -> None:
        with pinned(cores[:1]):
            call.run()

    return run


def time_operators(delegate: Delegate, model: Path, cores: tuple[int, ...], operators: Sequence[str]) -> tuple[dict[str, float], float]:
    """Return the times in ms of operators inside a network, by the delegate's profiler, and the time of all other kernels."""
    names = set(operators)
    with pinned(cores[:1]):
        placements = delegate.node_placements(model)
    times: dict[str, float] = {}
    other_ms = 0.0
    for place in placements:
        owner = place.name if place.name in names else place.name.rpartition(".")[0]
        if place.ms is None:
            continue
        if owner in names:
            times[owner] = times.get(owner, 0.0) + place.ms
        else:
            other_ms += place.ms
    return times, other_ms


def time_kernels(operators: Mapping[str, float], kernels: Sequence[tuple[str, ...]]) -> list[float | None]:
    """Return the times of kernels from those of their operators, ms; None for a kernel without an operator that has a time."""
    sums = [[operators[name] for name in names if name in operators] for names in kernels]
    return [sum(durations) if durations and sum(durations) > 0 else None for durations in sums]


@dataclass(frozen=True)
class Handover:
    """A network run to measure its hand-over."""

    in_bytes: int  # Bytes of its input.
    out_bytes: int  # Bytes of its output.
    ms: float  # Time of a run without its kernels.


@dataclass(frozen=True)
class LinkTimes:
    """Cost of transfers."""

    fixed_ms: float  # Fixed time of an exchange, both ways.
    to_gbs: float  # Rate to the processor, 10⁹ bytes per second.
    back_gbs: float  # Rate back from the processor.


#: Maximum bandwidth of a link, which is that of a transfer within one memory.
MAX_GBS = 1000.0


def fit_link(runs: Sequence[Handover]) -> LinkTimes:
    """Return fixed cost and rates, none negative, by least squares on the relative error."""
    from scipy.optimize import nnls

    times = np.maximum([run.ms for run in runs], 1e-4)
    rows = np.array([[1.0, run.in_bytes / 1e6, run.out_bytes / 1e6] for run in runs])
    (fixed, to_cost, back_cost), _ = nnls(rows / times[:, None], np.ones(len(runs)))
    return LinkTimes(float(fixed), *(MAX_GBS if per_mb * MAX_GBS <= 1 else 1 / per_mb for per_mb in (float(to_cost), float(back_cost))))


#: Number of runs of the shorter work per phase, and number of phases, alone and together in turns.
RUNS, PHASES = 8, 5


def time_together(
    first: Callable[[], None], second: Callable[[], None], runs: int = RUNS, phases: int = PHASES, end: float = inf
) -> tuple[float, float]:
    """Run both functions alone and together in turns; return ratios of the medians, at least 1: other work cannot speed a processor up."""
    works = (first, second)
    alone_ms: tuple[list[float], list[float]] = ([], [])
    beside_ms: tuple[list[float], list[float]] = ([], [])
    for work in works:
        work()
    for phase in range(phases):
        if phase and monotonic() > end:
            break
        for number, work in enumerate(works):
            alone_ms[number].extend(_time(work) for _ in range(runs))
        for number in range(2):
            beside_ms[number].extend(_time_beside(works[number], works[1 - number], runs))
    ratios = [float(np.median(beside_ms[i]) / np.median(alone_ms[i])) for i in range(2)]
    return ratios[0], ratios[1]


def _time(work: Callable[[], None]) -> float:
    start = perf_counter_ns()
    work()
    return (perf_counter_ns() - start) / 1e6


def _time_beside(work: Callable[[], None], other: Callable[[], None], runs: int) -> list[float]:
    """Return the times in ms of one function while another one runs repeatedly."""
    started, stop = threading.Event(), threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            other()
            started.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        started.wait()
        return [_time(work) for _ in range(runs)]
    finally:
        stop.set()
        thread.join()


#: Number of exchanges in each state, and minimum number even after the time is over.
TRANSFERS, MIN_TRANSFERS = 25, 5


@dataclass(frozen=True)
class TransferTimes:
    """Exchanges in turns with a processor that has a queue: with an idle queue, and after a kernel that was running in it."""

    in_bytes: int  # Bytes sent per exchange.
    out_bytes: int  # Bytes read back per exchange.
    idle_ms: tuple[float, ...]  # Time of each exchange with the idle queue, without its kernels.
    working_ms: tuple[float, ...]  # Time of each exchange after a kernel, from the end of that kernel.
    kernel_ms: float  # Duration of the kernel, ms.
    feeding: float  # Computing time of the calling thread to enqueue the kernel, over the kernel's time; the thread may wait as well.
    resume_ms: float = 0.0  # Additional time of the CPU's next network after the CPU waited for the kernel.

    def spread(self, link: LinkTimes) -> tuple[float, float]:
        """Return the 90 % interval of the factor on a link's time with the CPU's wake-up, over the transfers of both states."""
        stated = self.resume_ms + max(link.fixed_ms + self.in_bytes / link.to_gbs / 1e6 + self.out_bytes / link.back_gbs / 1e6, 1e-4)
        states = (self.idle_ms, self.working_ms)
        ends = [(self.resume_ms + np.quantile(times, quantile)) / stated for times in states for quantile in (0.05, 0.95)]
        return max(min(1.0, float(min(ends))), 0.01), max(1.0, float(max(ends)))


def time_reads(
    read: AsyncInvocation, kernel: AsyncInvocation, sizes: tuple[int, int], read_ms: float, *, turns: int = TRANSFERS, end: float = inf
) -> TransferTimes:
    """Time exchanges with an idle queue and after a kernel, in turns."""
    idle: list[float] = []
    working: list[float] = []
    alone: list[float] = []
    feeding: list[float] = []
    for turn in range(turns):
        if turn >= MIN_TRANSFERS and monotonic() > end:
            break
        for invocation, times in ((read, idle), (kernel, alone)):
            start = perf_counter_ns()
            invocation.run()
            times.append((perf_counter_ns() - start) / 1e6)
        # a driver may wait actively, but the waiting thread has no other work
        computed = thread_time_ns()
        kernel.enqueue()
        feeding.append((thread_time_ns() - computed) / 1e6 / alone[-1])
        begun = perf_counter_ns()
        read.enqueue()
        read.wait()
        done = perf_counter_ns()
        kernel.wait()
        spans = kernel.times()
        # if the device reports no times, the kernel is assumed to take as long as just before
        ended = spans[1] if spans is not None else begun + round(1e6 * alone[-1])
        # an exchange that ends before the kernel has not waited for it
        working.append((done - (ended if begun <= ended <= done else begun)) / 1e6)
    in_idle, in_working = (tuple(max(0.0, ms - read_ms) for ms in times) for times in (idle, working))
    return TransferTimes(*sizes, in_idle, in_working, median(alone), min(1.0, median(feeding)))
