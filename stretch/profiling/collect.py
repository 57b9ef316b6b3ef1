"""Measurement of one processor: small batches of networks, each chosen by the current fits, until the time is used up."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from predictors.errors import StretchError
from predictors.fitting.formula import load_formula
from predictors.fitting.single import Timed
from predictors.fusion import Fuser, Kernel, load_rules
from predictors.graph import OpGraph
from predictors.measurements.tables import KernelLatency, Latency
from predictors.models.terms import Grain
from scheduler.delegates import Delegate
from scheduler.delegates.base import UnableError
from scheduler.measure.networks import runner, time_kernels, time_operators
from scheduler.measure.steady import UNSTEADY, Steady, time_steadily
from stretch.profiling.choose import Chooser, Committee, appoint, doubt, family_of
from stretch.profiling.files import write_network
from stretch.profiling.places import Place
from stretch.profiling.styles import draw
from stretch.profiling.table import Table

#: Number of networks timed in turns.
BATCH = 6

#: Maximum number of repetitions of an unstable measurement.
TRIES = 3

#: Number of networks before the first committee, and growth factor before it is fitted again.
FIRST, GROWTH = 56, 1.3

#: The machine is too noisy if at least this share of at least this many networks could not be timed.
NOISY, AT_LEAST = 0.5, 12

#: The machine is considered slowed down while a reference network takes longer than this factor times its fastest run.
SLOWED = 1.15

#: Style and seed of the reference network, and its name among those timed in turns.
_WATCHED, _WATCH = ("residual", 1), "watch"

#: Range of the profiler's sum of kernels relative to the network's fastest and median run; outside of it something
#: disturbed the profiler.
_SUMS = (0.8, 1.25)

#: Seconds between saves.
_SAVE_S = 5.0

#: Channels per slice: 16 and 8 in blocked layouts of CPUs with 512-bit and 256-bit vectors.
GRAIN = Grain(16, 1, 4)

Step = Callable[[str], None]


@dataclass
class Collected:
    """Result of measuring one processor."""

    place: Place
    measured: int = 0  # Networks timed in this run.
    unsteady: int = 0  # Networks with unstable times.
    slowed: int = 0  # Networks that were only timed while the machine was slowed down.
    refused: int = 0  # Networks that the delegate cannot run.

    def check_noise(self) -> None:
        """Raise an error if too many times are unstable."""
        tried = self.measured + self.unsteady
        if tried >= AT_LEAST and self.unsteady > NOISY * tried:
            raise StretchError(
                f"this machine is too noisy: the times of {self.unsteady} of {tried} networks on {self.place.name} "
                f"varied by more than {UNSTEADY:.0%} in every attempt",
                "stop other programs, then continue with --resume",
            )


@dataclass
class _Sample:
    """A network under measurement."""

    graph: OpGraph
    file: Path
    run: Callable[[], None]
    time: Steady | None = None


class Collector:
    """Measures networks on one processor."""

    def __init__(self, place: Place, device: str, table: Table) -> None:
        self.place, self.table, self._device = place, table, device
        self._fuser = Fuser(load_rules(place.backend))
        self._formula = load_formula(place.backend)
        self._delegate: Delegate = place.create()
        self._committee: Committee | None = None
        self._appointed = 0
        self._result = Collected(place)
        self._quickest = float("inf")

    def collect(self, seconds: float, step: Step = lambda doing: None, most: int | None = None) -> Collected:
        """Measure until the time is used up."""
        end, saved = monotonic() + seconds, monotonic()
        chooser = Chooser(self._known())
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._watch = self._watched(Path(folder))
                while monotonic() < end and (most is None or self._result.measured < most):
                    graphs = chooser.choose(BATCH, None if self._votes() is None else self._doubt)
                    self._measure(graphs, Path(folder), end)
                    self._result.check_noise()
                    if monotonic() > saved + _SAVE_S:
                        self.table.save()
                        saved = monotonic()
                    step(f"{self.place.name}: {len(self._known())} networks, {max(0.0, end - monotonic()):.0f} s left")
        finally:
            self._delegate.close()
            self.table.save()
        return self._result

    def _known(self) -> list[str]:
        return [row.network for row in self.table.latencies if self._is_own(row)]

    def _is_own(self, row: Latency | KernelLatency) -> bool:
        return (row.processor, row.core_set) == (self.place.family, self.place.core_set)

    def _votes(self) -> Committee | None:
        """The committee, fitted again once there is much more data."""
        count = len(self._known())
        if count >= max(FIRST, self._appointed * GROWTH):
            rows = [Timed(row.network, row.cost, row.ms) for row in self.table.kernels if self._is_own(row)]
            self._committee, self._appointed = appoint(rows, self._formula, GRAIN, count), count
        return self._committee

    def _doubt(self, graph: OpGraph) -> float:
        assert self._committee is not None
        return doubt(self._committee, [kernel.cost for kernel in self._fuser.fuse(graph)], GRAIN)

    def _measure(self, graphs: Sequence[OpGraph], folder: Path, end: float) -> None:
        """Compile a batch and time it in turns, repeating unstable measurements."""
        samples: list[_Sample] = []
        for graph in graphs:
            # If compilation is slow, the time may be over before the batch is complete.
            if samples and monotonic() > end:
                break
            file = write_network(graph, folder / f"{graph.name}.onnx")
            try:
                compiled = self._delegate.compile(file)
            except UnableError:
                self._result.refused += 1
                continue
            samples.append(_Sample(graph, file, runner(compiled, self.place.caller)))
        self._time(samples, end)
        for sample in samples:
            # networks without a time are dropped: --resume draws them again
            if sample.time is not None and sample.time.unsteady:
                self._result.unsteady += 1
            elif sample.time is not None and monotonic() < end:
                self._add(sample.graph, sample.file, sample.time)
            sample.file.unlink()

    def _watched(self, folder: Path) -> Callable[[], None]:
        """Run the reference network, which tracks the machine's speed."""
        return runner(self._delegate.compile(write_network(draw(*_WATCHED), folder / "watch.onnx")), self.place.caller)

    def _time(self, samples: Sequence[_Sample], end: float) -> None:
        """Time a batch in turns with the reference network; repeat unstable times, or all if the machine was slowed down."""
        left = list(samples)
        slowed = False
        for _ in range(TRIES):
            times = time_steadily({_WATCH: self._watch} | {sample.graph.name: sample.run for sample in left}, self.place.serial, end=end)
            if not times:
                break
            watched = times[_WATCH]
            self._quickest = min(self._quickest, watched.least_ms)
            slowed = watched.ms > SLOWED * self._quickest
            for sample in left:
                time = times[sample.graph.name]
                # Disturbances only increase a time.
                if sample.time is None or sample.time.unsteady or (time.ms < sample.time.ms and not time.unsteady):
                    sample.time = time
            left = [sample for sample in samples if slowed or (sample.time is not None and sample.time.unsteady)]
            if not left:
                break
        self._result.slowed += len(samples) if slowed else 0

    def _add(self, graph: OpGraph, file: Path, time: Steady) -> None:
        launched = self._fuser.fuse(graph)
        kernel_times = self._kernels(graph, file, time, launched)
        place = self.place
        key = (self._device, graph.name, place.family, place.core_set, "fp32", place.runtime)
        rows = [
            KernelLatency(*key, kernel.name, "", *kernel.cost, ms)
            for kernel, ms in zip(launched, kernel_times, strict=True)
            if ms is not None
        ]
        self.table.add(graph, family_of(graph.name), Latency(*key, time.ms, time.std_ms), rows)
        self._result.measured += 1

    def _kernels(self, graph: OpGraph, file: Path, time: Steady, launched: Sequence[Kernel]) -> list[float | None]:
        """Times of kernels; None if every run of the profiler was disturbed.

        The times of kernels that the delegate added, such as layout changes, and the profiler's overhead are distributed:
        the sum is the network's time.
        """
        for _ in range(TRIES):
            operators, added = time_operators(self._delegate, file, self.place.caller, [op.name for op in graph.ops])
            kernel_times = time_kernels(operators, [kernel.ops for kernel in launched])
            total = sum(operators.values())
            if total > 0 and _SUMS[0] * time.least_ms <= total + added <= _SUMS[1] * time.ms:
                return [None if ms is None else ms * time.ms / total for ms in kernel_times]
        return [None] * len(launched)
