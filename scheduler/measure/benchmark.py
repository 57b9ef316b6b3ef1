"""A bundle against the sequential models of equal cores, in turns, so that both see the same machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from scheduler.cores import available_cores
from scheduler.measure.interval import ratio_interval
from scheduler.measure.turns import play_round
from scheduler.runtime.inputs import Values, as_arrays, plain
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace

#: Name of the bundle among the contestants.
BRANCHED = "branched"

#: The turn in which each subgraph runs by itself.
_ALONE = "alone"


@dataclass(frozen=True)
class Timing:
    """How long one contestant took."""

    name: str
    median_ms: float
    p90_ms: float
    runs: int


@dataclass(frozen=True)
class Benchmark:
    """Measured times of a bundle and its controls on the same cores."""

    branched: Timing  # The bundle.
    sequential: Timing | None  # The original model, on as many threads as served it best; None if the bundle has no such control.
    same_macs: Timing | None  # The original rescaled to the bundle's MACs; None if there is none.
    whole: Timing  # The same branched net as one graph on all the cores.
    others: tuple[Timing, ...]  # Contestants that were beaten by one of the above.
    cores: tuple[int, ...]  # The cores that all of them used.
    rounds: Mapping[str, tuple[float, ...]]  # Milliseconds of each contestant, by its name, one a round, in the order of the rounds.
    alone_ms: Mapping[str, float]  # Median time of each subgraph with everything else idle.
    ideal_ms: float  # What the rounds would take if branches overlapped perfectly and meeting cost nothing, median (see `ideal_ms`).
    efficiency: float | None  # That over what the bundle took in the same round, median: at most 1; None where processors share a core.
    #: Largest difference of the output from the whole model's, relative to its largest element; None where a delegate computes nothing.
    error: float | None
    traces: tuple[Trace, ...]  # The measured inferences of the bundle.
    output: Values  # What the last of them gave.
    seconds: float  # How long the rounds went on.

    @property
    def best_sequential(self) -> Timing | None:
        """The fastest of the original and the network of the same MACs, on all the cores or on one; None without controls."""
        runs = [run for run in (self.sequential, self.same_macs) if run is not None]
        return min(runs, key=lambda run: run.median_ms, default=None)

    @property
    def ratio(self) -> float | None:
        """Time of the original over the bundle's: above 1 branching is faster than the original."""
        return None if self.sequential is None else self.sequential.median_ms / self.branched.median_ms


@dataclass(frozen=True)
class Effort:
    """How long a comparison goes on."""

    rounds: int = 30  # Rounds that count; with `width`, at least.
    warmup: int = 5  # Rounds before them that do not.
    #: Go on until no interval of a ratio is wider than this share of the ratio to either side; None for `rounds` rounds.
    width: float | None = None
    least_seconds: float = 2.0  # And not for less than this: an interval tells of the time it was taken in, and machines have moods.
    seconds: float = 10.0  # But no longer than this, once there are `rounds` rounds.

    def enough(self, seconds: float, narrow: Callable[[float], bool]) -> bool:
        """Whether to stop, once there are `rounds` rounds."""
        return self.width is None or seconds > self.seconds or (seconds >= self.least_seconds and narrow(self.width))


def benchmark(session: Session, x: Values, effort: Effort | None = None, step: Callable[[], None] | None = None) -> Benchmark:
    """Measure a session against the controls of its bundle.

    Each round runs every contestant once, in an order that rotates, and every
    subgraph alone.
    """
    effort = effort or Effort()
    bundle = session.bundle
    cores = used_cores(session)
    output = session.run(x)
    whole = Sequential(bundle.file(bundle.manifest.whole), cores)
    error = max_error(output, plain(bundle.manifest.named(as_arrays(whole.run(x), bundle.manifest.outputs)))) if session.computes else None
    rounds = _Rounds(session, x, {f"same net as one graph, {_threads(cores)}": whole.time} | _controls(session, x, cores))
    for number in range(effort.warmup):
        rounds.play(number)
        if step is not None:
            step()
    rounds.forget()
    start = perf_counter_ns()
    while rounds.count < effort.rounds or not effort.enough((perf_counter_ns() - start) / 1e9, rounds.narrow):
        rounds.play(rounds.count)
        if step is not None:
            step()
    return rounds.result(cores, error, (perf_counter_ns() - start) / 1e9)


def _controls(session: Session, x: Values, cores: tuple[int, ...]) -> dict[str, Callable[[], float]]:
    """Each control on all the cores and on one."""
    controls: dict[str, Callable[[], float]] = {}
    for control, file in session.bundle.manifest.controls.items():
        for used in dict.fromkeys((cores, cores[:1])):
            model = Sequential(session.bundle.file(file), used)
            model.run(x)
            controls[f"{control}, {_threads(used)}"] = model.time
    return controls


class _Rounds:
    """What the rounds of a comparison measured so far."""

    def __init__(self, session: Session, x: Values, rivals: Mapping[str, Callable[[], float]]) -> None:
        self._session, self._x = session, x
        self._whole = next(iter(rivals))
        self._contestants: dict[str, Callable[[], object]] = {BRANCHED: self._branched, **rivals, _ALONE: self._each_alone}
        self.forget()

    def forget(self) -> None:
        """Start again."""
        self.times: dict[str, list[float]] = {name: [] for name in self._contestants if name != _ALONE}
        self._alone: dict[str, list[float]] = {name: [] for name in self._session.plan.subgraphs}
        self._traces: list[Trace] = []

    @property
    def count(self) -> int:
        """Rounds since the start."""
        return len(self._traces)

    def play(self, number: int) -> None:
        """One more round; `number` says who is first."""
        for name, ms in play_round(self._contestants, number).items():
            if isinstance(ms, float):
                self.times[name].append(ms)

    def narrow(self, width: float) -> bool:
        """Whether every ratio of a rival to the bundle is known to `width` of itself."""
        intervals = [ratio_interval(times, self.times[BRANCHED]) for name, times in self.times.items() if name != BRANCHED]
        return all(ratio.high / ratio.value - 1 <= width and 1 - ratio.low / ratio.value <= width for ratio in intervals)

    def result(self, cores: tuple[int, ...], error: float | None, seconds: float) -> Benchmark:
        """The rounds summed up."""
        timings = {name: _timing(name, values) for name, values in self.times.items()}
        ideal = [ideal_ms(self._session, self._least(number)) for number in range(self.count)]
        efficiency = float(np.median([ms / trace.makespan_ms for ms, trace in zip(ideal, self._traces, strict=True)]))
        sequential, same_macs = _best(timings, "original"), _best(timings, "sequential_same_macs")
        chosen = [timings[BRANCHED], timings[self._whole], sequential, same_macs]
        return Benchmark(
            branched=timings[BRANCHED],
            sequential=sequential,
            same_macs=same_macs,
            whole=timings[self._whole],
            others=tuple(timing for timing in timings.values() if timing not in chosen),
            cores=cores,
            rounds={name: tuple(values) for name, values in self.times.items()},
            alone_ms={name: float(np.median(values)) for name, values in self._alone.items()},
            ideal_ms=float(np.median(ideal)),
            efficiency=None if shares_a_core(self._session) else efficiency,
            error=error,
            traces=tuple(self._traces),
            output=self._output,
            seconds=seconds,
        )

    def _branched(self) -> float:
        self._output = self._session.run(self._x)
        self._traces.append(self._session.trace)
        return self._session.trace.makespan_ms

    def _each_alone(self) -> None:
        for name, values in self._alone.items():
            values.append(self._session.time_alone(name))

    def _least(self, number: int) -> dict[str, float]:
        """What each subgraph needs in a round: alone, or within the inference if that was faster.

        Company cannot speed a processor up, so a subgraph that was slower alone was measured
        with what a run by itself adds: caches that others filled, a thread that had to wake.
        """
        within = {span.name: span.ms for span in self._traces[number].spans if span.kind == "subgraph"}
        return {name: min(values[number], within[name]) for name, values in self._alone.items()}


def used_cores(session: Session) -> tuple[int, ...]:
    """The cores that a session's processors are placed on; all of this process where one is not pinned."""
    places = list(session.places.values())
    if any(not place.cores for place in places):
        return available_cores()
    return tuple(sorted({core for place in places for core in place.cores}))


def shares_a_core(session: Session) -> bool:
    """Whether two branches of a segment run on one core or one queue."""
    if session.moved:
        return True
    places = list(dict.fromkeys(session.places.values()))
    for i, one in enumerate(places):
        for other in places[i + 1 :]:
            if one.processor != other.processor and (one.queue == other.queue or set(one.cores) & set(other.cores)):
                return True
    return False


def ideal_ms(session: Session, alone_ms: Mapping[str, float]) -> float:
    """Time if branches overlapped perfectly: Σ over segments of the slowest branch alone.

    A branch that consists of several subgraphs counts with their sum.
    """
    segments: dict[str, dict[str, float]] = {}
    for name, subgraph in session.plan.subgraphs.items():
        branches = segments.setdefault(subgraph.segment, {})
        branches[subgraph.processor] = branches.get(subgraph.processor, 0.0) + alone_ms[name]
    return sum(max(branches.values()) for branches in segments.values())


def _timing(name: str, values: Sequence[float]) -> Timing:
    return Timing(name, float(np.median(values)), float(np.percentile(values, 90)), len(values))


def _best(timings: Mapping[str, Timing], control: str) -> Timing | None:
    candidates = [timing for name, timing in timings.items() if name.partition(", ")[0] == control]
    return min(candidates, key=lambda timing: timing.median_ms) if candidates else None


def _threads(cores: tuple[int, ...]) -> str:
    return f"{len(cores)} thread{'s' if len(cores) != 1 else ''}"
