"""Measuring one processor: networks in small batches until the time is spent, each batch chosen by what is known by then."""

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

#: Networks that take turns with each other.
BATCH = 6

#: How often a time that does not hold is taken again.
TRIES = 3

#: Networks after which fits begin to choose, and by how much more their number grows until they are made anew.
FIRST, GROWTH = 56, 1.3

#: The machine is too noisy if so large a share of at least so many networks could not be timed.
NOISY, AT_LEAST = 0.5, 12

#: While a network that is always the same takes longer than this times its quickest run so far, others slow the machine down.
SLOWED = 1.15

#: Style and seed of that network, and its name among those that take turns.
_WATCHED, _WATCH = ("residual", 1), "watch"

#: The profiler's sum of kernels must be this much of the network's quickest run, and no more of its usual one: else something
#: disturbed the profiler.
_SUMS = (0.8, 1.25)

#: Seconds between saves.
_SAVE_S = 5.0

#: Channels in a slice: blocked layouts of CPUs with 512-bit and 256-bit vectors hold 16 and 8.
GRAIN = Grain(16, 1, 4)

Step = Callable[[str], None]


@dataclass
class Collected:
    """What came of measuring one processor."""

    place: Place  # The processor.
    measured: int = 0  # Networks that were timed in this run.
    unsteady: int = 0  # Networks whose times did not hold.
    slowed: int = 0  # Networks that were timed while the machine was slower than at best, whenever it was tried.
    refused: int = 0  # Networks that the delegate cannot run.

    def check_noise(self) -> None:
        """Refuse to go on where too few times hold."""
        tried = self.measured + self.unsteady
        if tried >= AT_LEAST and self.unsteady > NOISY * tried:
            raise StretchError(
                f"this machine is too noisy: the times of {self.unsteady} of {tried} networks on {self.place.name} "
                f"varied by more than {UNSTEADY:.0%} however often they were taken",
                "stop what else runs here, then go on with --resume",
            )


@dataclass
class _Sample:
    """A network that is being measured."""

    graph: OpGraph
    file: Path
    run: Callable[[], None]
    time: Steady | None = None


class Collector:
    """Measures networks on one processor.

    Args:
        place: The processor.
        device: Id of the profile that is made.
        table: What is measured goes there.
    """

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
        """Measure until the time is spent."""
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
        """The fits that choose, made anew once there is much more to fit to."""
        count = len(self._known())
        if count >= max(FIRST, self._appointed * GROWTH):
            rows = [Timed(row.network, row.cost, row.ms) for row in self.table.kernels if self._is_own(row)]
            self._committee, self._appointed = appoint(rows, self._formula, GRAIN, count), count
        return self._committee

    def _doubt(self, graph: OpGraph) -> float:
        assert self._committee is not None
        return doubt(self._committee, [kernel.cost for kernel in self._fuser.fuse(graph)], GRAIN)

    def _measure(self, graphs: Sequence[OpGraph], folder: Path, end: float) -> None:
        """One batch: compiled, then timed in turns; what does not hold is timed again."""
        samples: list[_Sample] = []
        for graph in graphs:
            # Where compiling takes long the time may be over before the batch is whole.
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
        for each in samples:
            # what the time did not suffice for is left out: --resume draws it again
            if each.time is not None and each.time.unsteady:
                self._result.unsteady += 1
            elif each.time is not None and monotonic() < end:
                self._add(each.graph, each.file, each.time)
            each.file.unlink()

    def _watched(self, folder: Path) -> Callable[[], None]:
        """The network by which the machine's speed is watched."""
        return runner(self._delegate.compile(write_network(draw(*_WATCHED), folder / "watch.onnx")), self.place.caller)

    def _time(self, samples: Sequence[_Sample], end: float) -> None:
        """Time a batch beside the network that is always the same; again what did not hold, or all if the machine was slowed down."""
        left = list(samples)
        slowed = False
        for _ in range(TRIES):
            found = time_steadily({_WATCH: self._watch} | {each.graph.name: each.run for each in left}, self.place.serial, end=end)
            if not found:
                break
            watched = found[_WATCH]
            self._quickest = min(self._quickest, watched.least_ms)
            slowed = watched.ms > SLOWED * self._quickest
            for each in left:
                time = found[each.graph.name]
                # What slows a machine down only ever adds to a time.
                if each.time is None or each.time.unsteady or (time.ms < each.time.ms and not time.unsteady):
                    each.time = time
            left = [each for each in samples if slowed or (each.time is not None and each.time.unsteady)]
            if not left:
                break
        self._result.slowed += len(samples) if slowed else 0

    def _add(self, graph: OpGraph, file: Path, time: Steady) -> None:
        launched = self._fuser.fuse(graph)
        found = self._kernels(graph, file, time, launched)
        place = self.place
        key = (self._device, graph.name, place.family, place.core_set, "fp32", place.runtime)
        rows = [
            KernelLatency(*key, kernel.name, "", *kernel.cost, ms) for kernel, ms in zip(launched, found, strict=True) if ms is not None
        ]
        self.table.add(graph, family_of(graph.name), Latency(*key, time.ms, time.std_ms), rows)
        self._result.measured += 1

    def _kernels(self, graph: OpGraph, file: Path, time: Steady, launched: Sequence[Kernel]) -> list[float | None]:
        """Times of kernels; none where the profiler was disturbed each time.

        Kernels that the delegate added, such as changes of layout, and what the profiler itself costs are shared out:
        together they take what the network takes.
        """
        for _ in range(TRIES):
            operators, added = time_operators(self._delegate, file, self.place.caller, [op.name for op in graph.ops])
            found = time_kernels(operators, [kernel.ops for kernel in launched])
            total = sum(operators.values())
            if total > 0 and _SUMS[0] * time.least_ms <= total + added <= _SUMS[1] * time.ms:
                return [None if ms is None else ms * time.ms / total for ms in found]
        return [None] * len(launched)
