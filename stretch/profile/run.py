"""Create a profile: measure every processor, fit, write."""

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from time import monotonic, perf_counter_ns
from timeit import timeit

import numpy as np
import tomli_w

from predictors.devices import DeviceProfile, load_device
from predictors.errors import StretchError, UsageError
from predictors.files import check_folder
from predictors.fits import Fit, FitFile, HeldOut, KernelGroup, LeftOut, Prior, PriorFile, fit_path, prior_path, write_fits
from predictors.fitting.fit import MIN_NETWORKS, TimedKernel, TooFewMeasurementsError, fit_device, fit_kernels
from predictors.fitting.fit import time_kernels as fitted_times
from predictors.fitting.networks import Formula, load_formula
from predictors.fusion import Fuser, Kernel, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.host import HOST
from predictors.measurements.networks import Source
from predictors.measurements.tables import KernelLatency, Latency
from predictors.models.fitted import Grain
from predictors.system import deferred_interrupts
from scheduler.cores import available_cores, pinned
from scheduler.delegates import Delegate
from scheduler.delegates.base import AsyncInvocation, Compiled, UnableError
from scheduler.measure.steady import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    UNSTEADY,
    Handover,
    SteadyTime,
    TransferTimes,
    buffers,
    fit_link,
    high_priority,
    runner,
    time_kernels,
    time_operators,
    time_reads,
    time_steadily,
    time_together,
)
from scheduler.runtime.threads import QueueThread
from stretch.profile.environment import processor_name
from stretch.profile.places import ProfiledProcessor, write_network
from stretch.profile.styles import MAX_MACS, STYLES, RandomNetwork, draw
from stretch.profile.writing import Crossing, MeasuredProcessor, MeasurementTable, make_profile, valid_id

# Active learning: next, measure the networks on which the current fits disagree most.
#
# Query by committee (Seung, Opper and Sompolinsky 1992): fits to different halves of
# the measurements agree if there is enough data.

#: Size of the committee, and number of candidates per selected network.
COMMITTEE, POOL = 4, 6

#: Share of networks selected at random, because the committee may agree on a wrong prediction.
EXPLORATION_SHARE = 0.5

#: Number of cross-validation groups.
GROUPS = 10

Committee = list[dict[str, KernelGroup]]


def fit_committee(rows: Sequence[TimedKernel], formula: Formula, grain: Grain, seed: int) -> Committee:
    """Fit each committee member to a random half of the measured networks."""
    names = sorted({row.network for row in rows})
    rng = np.random.default_rng(seed)
    committee = []
    with one_thread():
        for _ in range(COMMITTEE):
            half = set(rng.permutation(names)[: max(1, len(names) // 2)])
            committee.append(fit_kernels([row for row in rows if row.network in half], formula, grain))
    return committee


def one_thread() -> AbstractContextManager[object]:
    """Return a context that limits tree fitting to one thread, because on small tables and busy machines threads only wait for each other."""
    # The library must be loaded before it can be limited.
    import sklearn.ensemble  # noqa: F401
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="openmp")
    return limits


def disagreement(committee: Committee, costs: Sequence[KernelCost], grain: Grain) -> float:
    """Return the disagreement of the committee on a network: the standard deviation of the logarithm of its predicted time.

    A kernel without a group in a fit counts as much as all others together.
    """
    times = np.array([fitted_times(groups, costs, grain) for groups in committee])
    row_sums = np.nansum(times, axis=1)
    missing = np.isnan(times).sum(axis=1)
    totals = np.maximum(row_sums, 1e-6) * (1 + missing)
    return float(np.std(np.log(totals)))


#: Maximum time of a network with large images, ms, and maximum factor on the sides of images.
_LARGE_MS, _MAX_SCALE = 50.0, 4


class Chooser:
    """Draws and selects networks; each seed of a style is used once."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._seeds = dict.fromkeys(STYLES, 0)
        for name in taken:
            style, _, number = name.rpartition("-")
            if style in self._seeds:
                self._seeds[style] = max(self._seeds[style], int(number) + 1)
        self._drawn = len(taken)
        #: Multiply-accumulates per millisecond of the fastest network so far.
        self.rate = 0.0

    def _scale(self) -> int:
        """Return the factor on the sides of the next network's images: above 1 in every third round of styles, within `_LARGE_MS`."""
        largest = min(_MAX_SCALE, int((_LARGE_MS * self.rate / MAX_MACS) ** 0.5))
        turn, phase = divmod(self._drawn // len(STYLES), 3)
        return 1 if phase != 1 or largest < 2 else 2 + turn % (largest - 1)

    def draw(self, count: int) -> list[OpGraph]:
        """Draw networks, cycling through the styles."""
        networks = []
        for _ in range(count):
            style = STYLES[self._drawn % len(STYLES)]
            networks.append(draw(style, self._seeds[style], self._scale()))
            self._seeds[style] += 1
            self._drawn += 1
        return networks

    def choose(self, count: int, doubt_of: Callable[[OpGraph], float] | None) -> list[OpGraph]:
        """Select the networks to measure next."""
        if doubt_of is None:
            return self.draw(count)
        random_count = round(count * EXPLORATION_SHARE)
        pool = self.draw((count - random_count) * POOL)
        return self.draw(random_count) + sorted(pool, key=doubt_of, reverse=True)[: count - random_count]


def family_of(name: str) -> str:
    """Return the cross-validation group of a network; every group has all styles, because users' networks have measured styles too."""
    style, _, number = name.rpartition("-")
    return f"draws {(STYLES.index(style) + int(number)) % GROUPS}"


#: Number of networks timed in turns.
BATCH = 6

#: Maximum number of repetitions of an unstable measurement.
MAX_TRIES = 3

#: Number of networks before the first committee, and growth factor before it is fitted again.
FIRST, GROWTH = 56, 1.3

#: Share of untimed networks above which the machine is too noisy, and minimum number of networks for this decision.
NOISY, AT_LEAST = 0.5, 12

#: Factor on the reference network's fastest time, above which the machine counts as slowed down.
MAX_SLOWDOWN = 1.15

#: Style and seed of the reference network, and its name among the networks timed in turns.
_WATCHED, _WATCH = ("residual", 1), "watch"

#: Range of the profiler's sum of kernels relative to the network's fastest and median run. A sum outside of it was
#: disturbed. A profiler may slow all kernels down, because their times are scaled to the network's time.
_SUMS = (0.7, 1.5)

#: Seconds between saves.
_SAVE_S = 5.0

#: Channels per slice: 16 and 8 in blocked layouts of CPUs with 512-bit and 256-bit vectors.
GRAIN = Grain(16, 1, 4)

Step = Callable[[str], None]


@dataclass
class CollectedMeasurements:
    """Result of the measurements on one processor."""

    place: ProfiledProcessor
    measured: int = 0  # Number of networks timed in this run.
    unsteady: int = 0  # Number of networks with unstable times.
    slowed: int = 0  # Number of networks that were only timed while the machine was slowed down.
    refused: int = 0  # Number of networks that the delegate cannot run.

    def check_noise(self) -> None:
        """Refuse a machine with too many unstable times."""
        tried = self.measured + self.unsteady
        if tried >= AT_LEAST and self.unsteady > NOISY * tried:
            raise StretchError(
                f"this machine is too noisy: the times of {self.unsteady} of {tried} networks on {self.place.name} "
                f"varied by more than {UNSTEADY:.0%} in every attempt",
                "stop other programs, then continue with --resume",
            )


@dataclass
class _NetworkSample:
    """A network under measurement."""

    graph: OpGraph
    file: Path
    run: Callable[[], None]
    time: SteadyTime | None = None


class Collector:
    """Measures networks on one processor."""

    def __init__(self, place: ProfiledProcessor, device: str, table: MeasurementTable) -> None:
        self.place, self.table, self._device = place, table, device
        self._fuser = Fuser(load_rules(place.backend))
        self._formula = load_formula(place.backend)
        self._delegate: Delegate = place.create()
        self._committee: Committee | None = None
        self._appointed = 0
        self._result = CollectedMeasurements(place)
        self._chooser = Chooser(self._measured_names())
        self._quickest = float("inf")

    def collect(self, seconds: float, step: Step = lambda doing: None, most: int | None = None) -> CollectedMeasurements:
        """Measure for `seconds`, or until `most` networks are measured."""
        end, saved = monotonic() + seconds, monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                # the reference network tracks the machine's speed
                watched = write_network(draw(*_WATCHED), Path(folder) / "watch.onnx", self.place.precision)
                watch = self._runner(self._delegate.compile(watched))
                while monotonic() < end and (most is None or self._result.measured < most):
                    graphs = self._chooser.choose(BATCH, None if self._fit_committee() is None else self._disagreement)
                    self._measure(graphs, Path(folder), end, watch)
                    self._result.check_noise()
                    if monotonic() > saved + _SAVE_S:
                        self.table.save()
                        saved = monotonic()
                    step(f"{self.place.name}: {len(self._measured_names())} networks, {max(0.0, end - monotonic()):.0f} s left")
        finally:
            self._delegate.close()
            self.table.save()
        return self._result

    def _runner(self, compiled: Compiled) -> Callable[[], None]:
        """Return a function that runs a network as a session does, with input and output in the delegate's memory."""
        return runner(compiled, self.place.caller, self._delegate.allocator())

    def _measured_names(self) -> list[str]:
        return [row.network for row in self.table.latencies if self._is_own(row)]

    def _is_own(self, row: Latency | KernelLatency) -> bool:
        return (row.processor, row.core_set) == (self.place.family, self.place.core_set)

    def _fit_committee(self) -> Committee | None:
        """Return the committee, fitted again after enough new data; None before the first fit."""
        count = len(self._measured_names())
        if count >= max(FIRST, self._appointed * GROWTH):
            rows = [TimedKernel(row.network, row.cost, row.ms) for row in self.table.kernels if self._is_own(row)]
            self._committee, self._appointed = fit_committee(rows, self._formula, GRAIN, count), count
        return self._committee

    def _disagreement(self, graph: OpGraph) -> float:
        assert self._committee is not None
        return disagreement(self._committee, [kernel.cost for kernel in self._fuser.fuse(graph)], GRAIN)

    def _measure(self, graphs: Sequence[OpGraph], folder: Path, end: float, watch: Callable[[], None]) -> None:
        """Compile a batch of networks and time them in turns; repeat unstable measurements."""
        samples: list[_NetworkSample] = []
        for graph in graphs:
            # If compilation is slow, the time may be over before the batch is complete.
            if samples and monotonic() > end:
                break
            file = write_network(graph, folder / f"{graph.name}.onnx", self.place.precision)
            try:
                compiled = self._delegate.compile(file)
            except UnableError:
                self._result.refused += 1
                continue
            samples.append(_NetworkSample(graph, file, self._runner(compiled)))
        self._time(samples, end, watch)
        for sample in samples:
            # drop networks without a time: --resume draws them again
            if sample.time is not None and sample.time.unsteady:
                self._result.unsteady += 1
            elif sample.time is not None and monotonic() < end:
                self._add(sample.graph, sample.file, sample.time)
            sample.file.unlink()

    def _time(self, samples: Sequence[_NetworkSample], end: float, watch: Callable[[], None]) -> None:
        """Time a batch in turns with the reference network; repeat unstable times, or all if the machine was slowed down."""
        left = list(samples)
        slowed = False
        for _ in range(MAX_TRIES):
            times = time_steadily({_WATCH: watch} | {sample.graph.name: sample.run for sample in left}, self.place.serial, end=end)
            if not times:
                break
            watched = times[_WATCH]
            self._quickest = min(self._quickest, watched.least_ms)
            slowed = watched.ms > MAX_SLOWDOWN * self._quickest
            for sample in left:
                time = times[sample.graph.name]
                # Disturbances only increase a time.
                if sample.time is None or sample.time.unsteady or (time.ms < sample.time.ms and not time.unsteady):
                    sample.time = time
            left = [sample for sample in samples if slowed or (sample.time is not None and sample.time.unsteady)]
            if not left:
                break
        self._result.slowed += len(samples) if slowed else 0

    def _add(self, graph: OpGraph, file: Path, time: SteadyTime) -> None:
        launched = self._fuser.fuse(graph)
        kernel_times = self._kernels(graph, file, time, launched)
        place = self.place
        key = (self._device, graph.name, place.family, place.core_set, place.precision, place.runtime)
        rows = [
            KernelLatency(*key, kernel.name, "", **kernel.cost._asdict(), ms=ms)
            for kernel, ms in zip(launched, kernel_times, strict=True)
            if ms is not None
        ]
        self._chooser.rate = max(self._chooser.rate, graph.macs / time.ms)
        self.table.add(graph, family_of(graph.name), Latency(*key, time.ms, time.std_ms), rows)
        self._result.measured += 1

    def _kernels(self, graph: OpGraph, file: Path, time: SteadyTime, launched: Sequence[Kernel]) -> list[float | None]:
        """Return the times of kernels, ms; None for each if every run of the profiler was disturbed.

        The times of kernels that the delegate added, such as layout changes, and the profiler's overhead are distributed, so that
        the sum equals the network's time. On a processor with a queue, the network's time also includes the hand-over, which is
        measured separately; its kernels have the times of its clock.
        """
        for _ in range(MAX_TRIES):
            operators, added = time_operators(self._delegate, file, self.place.caller, [op.name for op in graph.ops])
            kernel_times = time_kernels(operators, [kernel.ops for kernel in launched])
            total = sum(operators.values())
            if not total or total + added > _SUMS[1] * time.ms:
                continue
            if self._delegate.asynchronous or total + added >= _SUMS[0] * time.least_ms:
                scale = (total + added if self._delegate.asynchronous else time.ms) / total
                return [None if ms is None else ms * scale for ms in kernel_times]
        return [None] * len(launched)


#: Channels, input rows and output rows of the networks for hand-overs: equal work on large and small tensors.
HANDOVERS = ((16, 16, 16), (16, 112, 112), (64, 112, 112), (64, 112, 1), (64, 56, 56), (128, 56, 1), (16, 32, 1))

#: Shape of the network that is also timed after a running kernel.
READ_SHAPE = (64, 56, 56)

#: Number of runs per hand-over; the result is their median.
_HANDINGS = 25

#: Channels and rows of the compute-bound and the memory-bound network.
_COMPUTING, _MOVING = (256, 28), (64, 160)


def measure_crossing(host: ProfiledProcessor, other: ProfiledProcessor, end: float = inf) -> Crossing:
    """Measure the link between the host and another processor, and their contention, until about `end`."""
    with tempfile.TemporaryDirectory() as folder:
        return Crossing(
            fit_link(_handovers(host, other, Path(folder), end)),
            _run_in_parallel(host, other, compute_bound_network, Path(folder), end),
            _run_in_parallel(host, other, memory_bound_network, Path(folder), end),
            other.runtime,
            _reads(host, other, Path(folder), end),
        )


def _handovers(host: ProfiledProcessor, place: ProfiledProcessor, folder: Path, end: float) -> list[Handover]:
    delegate = place.create()
    # a delegate that blocks its caller gets a thread when a bundle runs, and the hand-over to the thread and back is
    # part of every transfer
    worker = None if delegate.asynchronous else HandoverTimer(host.cores, place.cores)
    runs = {}
    files = {}
    for channels, rows, out in HANDOVERS:
        graph = handover_network(channels, rows, out)
        file = write_network(graph, folder / f"{graph.name}.onnx", place.precision)
        compiled = delegate.compile(file)
        runs[graph.name] = runner(compiled, place.caller if worker is None else (), delegate.allocator())
        files[graph.name] = (graph, file)
    if worker is None:
        spent = {
            name: time.ms - _kernels_ms(delegate, place, *files[name])
            for name, time in time_steadily(runs, place.serial, max_rounds=MIN_ROUNDS if monotonic() > end else MAX_ROUNDS).items()
        }
    else:
        # keep the processor busy on its thread, then the host on the caller's thread
        working, waiting = (
            processor.create().compile(write_network(compute_bound_network(), folder / f"{processor.family}.onnx", processor.precision))
            for processor in (place, host)
        )
        busy = worker.time_handover(runner(working, ())), runner(waiting, host.caller)
        spent = _after_work({name: worker.time_handover(run) for name, run in runs.items()}, busy, end)
        worker.close()
    delegate.close()
    return [Handover(*sizes(files[name][0]), max(0.0, ms)) for name, ms in spent.items()]


def handover_network(channels: int, rows: int, out: int) -> OpGraph:
    """Return a network with almost no computation, for hand-overs."""
    drawing = RandomNetwork(np.random.default_rng(0), "relu")
    x = drawing.act(drawing.add("input", shape=(1, channels, rows, rows)))
    if out == 1:
        x = drawing.add("global_avg_pool", x, keepdims=True)
    return OpGraph.build(f"handover-{channels}-{rows}-{out}", drawing.ops, x)


def sizes(graph: OpGraph) -> tuple[int, int]:
    """Return the sizes of a network's input and output, bytes."""
    read, written = (4 * int(np.prod(shape)) for shape in (graph.input.shape, graph.by_name[graph.output].shape))
    return read, written


def _reads(host: ProfiledProcessor, place: ProfiledProcessor, folder: Path, end: float) -> TransferTimes | None:
    """Return transfer times with an idle queue and after a kernel, and the host's wake-up time; None for a delegate without a queue."""
    delegate = place.create()
    try:
        invocations, graph = [], handover_network(*READ_SHAPE)
        file = write_network(graph, folder / f"read-{graph.name}.onnx", place.precision)
        for compiled in (delegate.compile(file), _long_network(delegate, place, compute_bound_network, folder)):
            invocation = compiled.bind(*(buffers(ends.values(), delegate.allocator()) for ends in (compiled.inputs, compiled.outputs)))
            if not isinstance(invocation, AsyncInvocation):
                return None
            invocations.append(invocation)
        with pinned(place.caller[:1]):
            reads = time_reads(invocations[0], invocations[1], sizes(graph), _kernels_ms(delegate, place, graph, file), end=end)

        def wait() -> None:
            with pinned(place.caller[:1]):
                invocations[1].run()

        # threads of the host's delegate inherit the cores of the compiling thread
        return replace(reads, resume_ms=_resume_ms(host, wait, folder, end))
    finally:
        delegate.close()


def _resume_ms(host: ProfiledProcessor, wait: Callable[[], object], folder: Path, end: float) -> float:
    """Return the additional time of a small network on a host after a wait for another processor, when its threads sleep, ms."""
    delegate = host.create()
    try:
        graph, times = handover_network(*READ_SHAPE), list[float]()
        file = write_network(graph, folder / f"resume-{graph.name}.onnx", host.precision)
        small = runner(delegate.compile(file), host.caller)
        for number in range(_HANDINGS):
            if number >= MIN_ROUNDS and monotonic() > end:
                break
            wait()
            times.append(1e3 * timeit(small, number=1))
        return max(0.0, median(times) - _kernels_ms(delegate, host, graph, file))
    finally:
        delegate.close()


def _kernels_ms(delegate: Delegate, place: ProfiledProcessor, graph: OpGraph, file: Path) -> float:
    """Return the total time of a network's kernels, including kernels that the delegate added, ms."""
    operators, added = time_operators(delegate, file, place.caller, [op.name for op in graph.ops])
    return sum(operators.values()) + added


def _after_work(runs: Mapping[str, Callable[[], float]], busy: Sequence[Callable[[], object]], end: float) -> dict[str, float]:
    """Return the median times of hand-overs, ms, measured in turns after work on both processors, which evicts caches and lets threads sleep."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(_HANDINGS):
        if number >= MIN_ROUNDS and monotonic() > end:
            break
        for name, run in runs.items():
            for work in busy:
                work()
            times[name].append(run())
    return {name: median(durations) for name, durations in times.items()}


class HandoverTimer:
    """A worker thread on a processor's cores and a waiting caller on the host's cores, as in the scheduler."""

    def __init__(self, host: tuple[int, ...], cores: tuple[int, ...]) -> None:
        self._host = host
        self._completions: SimpleQueue[tuple[BaseException | None, int, int]] = SimpleQueue()
        self._thread = QueueThread("profile", cores)
        self._thread.start()

    def time_handover(self, work: Callable[[], None]) -> Callable[[], float]:
        """Return a function that runs work on the thread, waits for its end, and returns the overhead in ms."""

        def timed() -> None:
            start, error = perf_counter_ns(), None
            try:
                work()
            except BaseException as raised:  # the caller raises it
                error = raised
            self._completions.put((error, start, perf_counter_ns()))

        def run() -> float:
            with pinned(self._host[:1]):
                handed_at = perf_counter_ns()
                self._thread.inbox.put(timed)
                error, start, end = self._completions.get()
                back = perf_counter_ns()
            if error is not None:
                raise error
            return (start - handed_at + back - end) / 1e6

        return run

    def close(self) -> None:
        """Stop the thread."""
        self._thread.inbox.put(None)
        self._thread.join()


def compute_bound_network(layers: int = 2) -> OpGraph:
    """Return a network that is limited by computation."""
    drawing = RandomNetwork(np.random.default_rng(0), "relu")
    x = drawing.add("input", shape=(1, _COMPUTING[0], _COMPUTING[1], _COMPUTING[1]))
    for _ in range(layers):
        x = drawing.act(drawing.conv(x, _COMPUTING[0], 3, bias=True))
    return OpGraph.build("computing", drawing.ops, x)


def memory_bound_network(layers: int = 4) -> OpGraph:
    """Return a network that is limited by memory bandwidth."""
    drawing = RandomNetwork(np.random.default_rng(0), "relu")
    x = drawing.add("input", shape=(1, _MOVING[0], _MOVING[1], _MOVING[1]))
    first = drawing.act(x)
    for _ in range(layers):
        x = drawing.add("add", drawing.add("mul", x, first), first)
    return OpGraph.build("moving", drawing.ops, x)


#: Minimum time of parallel work, ms, and maximum number of its layers; for shorter work, waking threads and filling a queue take a large share.
_LONG_MS, _MOST_LAYERS = 4.0, 64


def _long_network(delegate: Delegate, place: ProfiledProcessor, network: Callable[[int], OpGraph], folder: Path) -> Compiled:
    """Return a compiled network with enough layers to take at least `_LONG_MS`."""
    layers = 2
    while True:
        graph = network(layers)
        compiled = delegate.compile(write_network(graph, folder / f"{graph.name}-{place.family}.onnx", place.precision))
        run = runner(compiled, place.caller)
        run()
        ms = 1e3 * min(timeit(run, number=1) for _ in range(3))
        if ms >= _LONG_MS or layers >= _MOST_LAYERS:
            return compiled
        layers = min(_MOST_LAYERS, max(layers + 1, ceil(1.2 * layers * _LONG_MS / ms)))


def _run_in_parallel(
    host: ProfiledProcessor, other: ProfiledProcessor, network: Callable[[int], OpGraph], folder: Path, end: float
) -> tuple[float, float]:
    """Return the slowdown factors of the host and the other processor; `network` makes a network from a number of layers."""
    # when a bundle runs, the thread that feeds a queue has a separate core if possible
    free = tuple(core for core in other.caller if core not in host.cores) or other.caller
    runs, delegates = [], []
    for place, cores in ((host, host.caller), (other, free)):
        delegates.append(place.create())
        runs.append(runner(_long_network(delegates[-1], place, network, folder), cores))
    times = time_together(runs[0], runs[1], end=end)
    for delegate in delegates:
        delegate.close()
    return times


#: Seconds for the hand-overs and contention of a processor, and their maximum share of the total time.
_RESERVED_S, _RESERVED = 20.0, 0.3


@dataclass(frozen=True)
class ProfileResult:
    """Result of profiling a machine."""

    profile: Path
    measurements: Path  # Folder of the measurements.
    collected: list[CollectedMeasurements]  # Results of this run, by processor.
    crossings: Mapping[str, Crossing]  # Links and contention, by processor other than the CPU.
    fits: list[Fit | Prior]  # Fits to kernels, or to whole networks without times of kernels.


def open_table(name: str, out: Path, places: Sequence[ProfiledProcessor], resume: bool) -> MeasurementTable:
    """Open or create the folder of measurements of a profile."""
    check_target(name, out)
    runtimes = "; ".join(sorted({f"{place.family}: {place.runtime}" for place in places}))
    notes = f"{machine()}; {runtimes}; medians of runs in turns, kernels by the delegates' profilers, in networks with made-up weights"
    source = Source(f"random networks on {machine()}, measured by `stretch profile`", "", "", "CC0-1.0", notes)
    return MeasurementTable.open(out / f"{name}.measurements", source, resume)


def check_target(name: str, out: Path) -> None:
    """Check the name of a profile, and that its folder is writable."""
    if not valid_id(name):
        raise UsageError(f"`{name}` cannot be the name of a profile", "use letters, digits, `_`, `.` and `-`")
    check_folder(out / f"{name}.toml", "--out")


def machine() -> str:
    """Return a description of this machine."""
    cores = len(available_cores())
    return f"{processor_name()}, {cores} core{'s' if cores > 1 else ''} available, {platform.system()}"


def profile_machine(
    name: str,
    places: Sequence[ProfiledProcessor],
    table: MeasurementTable,
    seconds: float,
    step: Step = lambda doing: None,
    most: int | None = None,
) -> ProfileResult:
    """Measure and fit a machine, and write ``<name>.toml`` and ``<name>.fit.json`` next to the folder of measurements.

    Args:
        most: Maximum number of networks per processor; only limited by time if None.
    """
    crossings = {}
    end, others = monotonic() + seconds, [place for place in places if place.family != HOST]
    networks_end = end - min(_RESERVED_S * len(others), _RESERVED * seconds)
    collected = []
    with high_priority():
        for number, place in enumerate(places):
            # unused time goes to the following processors
            share = place.share / sum(later.share for later in places[number:])
            collected.append(Collector(place, name, table).collect(share * (networks_end - monotonic()), step, most))
        for place in places:
            measured = sum((row.processor, row.core_set) == (place.family, place.core_set) for row in table.latencies)
            if measured < MIN_NETWORKS:
                raise StretchError(
                    f"there was time for {measured} networks on {place.name}, a fit needs {MIN_NETWORKS}",
                    "go on with --resume, and a larger --budget",
                )
        for number, place in enumerate(others):
            step(f"{place.name}: hand-over and contention, {max(0.0, end - monotonic()):.0f} s left")
            crossings[place.family] = measure_crossing(places[0], place, monotonic() + max(0.0, end - monotonic()) / (len(others) - number))
    step("measured; fitting")
    fits = write_profile(name, places, table, crossings)
    return ProfileResult(_path(name, table), table.folder, collected, crossings, fits)


def _path(name: str, table: MeasurementTable) -> Path:
    return table.folder.parent / f"{name}.toml"


def write_profile(
    name: str, places: Sequence[MeasuredProcessor], table: MeasurementTable, crossings: Mapping[str, Crossing], title: str | None = None
) -> list[Fit | Prior]:
    """Fit the measurements, and write the profile with its fits; all files appear when all are complete.

    Args:
        title: Description of the machine; this machine if None.
    """
    path = _path(name, table)
    text = tomli_w.dumps(make_profile(name, title or machine(), places, table, crossings))
    command = f"stretch profile fit {table.folder.name} --device {path.name}"
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}.") as folder:
        draft = Path(folder) / path.name
        draft.write_text(text)
        device = load_device(draft)
        with one_thread():
            fits = _fit(device, table)
            fitted = {(fit.processor, fit.core_set, fit.precision) for fit in fits}
            unfitted = [place for place in places if (place.family, place.core_set, place.precision) not in fitted]
            calibrated = _calibrate(device, unfitted, table)
        write_fits(fit_path(draft), FitFile(name, command, tuple(fits)))
        if calibrated:
            write_fits(prior_path(draft), PriorFile(name, command, tuple(calibrated)))
        with deferred_interrupts():
            # remove old fits first, because a profile is valid without fits, but not with fits of another profile
            for beside in (fit_path, prior_path):
                beside(path).unlink(missing_ok=True)
            os.replace(draft, path)
            for beside in (fit_path, prior_path) if calibrated else (fit_path,):
                os.replace(beside(draft), beside(path))
    return [*fits, *calibrated]


def held_out(fit: Fit | Prior) -> HeldOut | LeftOut:
    """Return the errors of a fit on networks outside of it."""
    return fit.held_out if isinstance(fit, Fit) else fit.left_out


def _fit(draft: DeviceProfile, table: MeasurementTable) -> list[Fit]:
    """Return the fits of processors with times of kernels, or with a formula for whole networks; empty without any."""
    try:
        return [judged.fit for judged in fit_device(table, draft)]
    except TooFewMeasurementsError:
        return []


#: Maximum number of networks to calibrate a processor, because each is left out once for the error.
_CALIBRATING = 48


def _calibrate(draft: DeviceProfile, places: Sequence[MeasuredProcessor], table: MeasurementTable) -> list[Prior]:
    """Return priors of processors, fitted to the times of whole networks."""
    # import SciPy late: it takes half a second, which would delay the command line's help
    from predictors.fitting.priors import NetworkTime, calibrate

    priors: list[Prior] = []
    for place in places:
        name = f"{place.family}[{place.core_set}]"
        rows = [
            row
            for row in table.latencies
            if (row.processor, row.core_set, row.precision) == (place.family, place.core_set, place.precision)
        ]
        timed = [NetworkTime(model=row.network, processor=name, ms=row.ms, precision=row.precision) for row in rows]
        if len(timed) < MIN_NETWORKS:
            raise StretchError(
                f"{name} has times of {len(timed)} networks, a fit needs {MIN_NETWORKS}", "measure for longer: a larger --budget"
            )
        sample = timed[:: -(-len(timed) // _CALIBRATING)]
        _, news = calibrate(draft, "", sample, lambda row: table.graphs[row.model], {}, f"networks of {table.folder.name}")
        priors += [calibrated.prior for calibrated in news.values()]
    return priors
