"""Measures a bundle and sequential models on equal cores in turns, compares them in one sentence, and measures throughput."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from time import perf_counter_ns

import numpy as np

from predictors.devices import Precision
from predictors.errors import MissingBackendError, StretchError
from predictors.host import is_host
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.recommended import whole_on
from scheduler.cores import available_cores
from scheduler.delegates.base import WARM_MS
from scheduler.measure.steady import RatioEstimate, play_round, ratio_interval
from scheduler.placement.mapping import bundle_precisions
from scheduler.runtime.inputs import Values, as_arrays, unwrap_single
from scheduler.runtime.own import SourceFileRunner
from scheduler.runtime.sequential import Sequential, max_error
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace

#: Name of the bundle among the variants.
BRANCHED = "branched"

#: Name of the turn in which each subgraph runs alone.
_SUBGRAPHS_ALONE = "alone"


#: Precision of a bundle's controls and of its whole model.
CONTROLS = "fp32"


@dataclass(frozen=True)
class Timing:
    """Measured time of one variant."""

    name: str  # Name of the variant.
    median_ms: float  # Median over the rounds.
    p90_ms: float  # Ninth decile of the rounds.


@dataclass(frozen=True)
class Benchmark:
    """Measured times of a bundle and its controls on the same cores."""

    branched: Timing  # The bundle.
    sequential: (
        Timing | None
    )  # The original on one processor or on all cores, whichever was faster; None if the bundle has no such control.
    same_macs: Timing | None  # The original rescaled to the bundle's MACs; None without such a control.
    whole: Timing  # The same branched network as one graph on all the cores.
    others: tuple[Timing, ...]  # Baselines that were slower than another baseline of the same kind.
    cores: tuple[int, ...]  # Cores used by all variants.
    rounds: Mapping[str, tuple[float, ...]]  # Milliseconds of each measured network by its name, in the order of the rounds.
    alone_ms: Mapping[str, float]  # Median time of each subgraph while everything else is idle.
    ideal_ms: float  # Median time over the rounds if branches overlapped perfectly and meeting cost nothing (see `ideal_ms`).
    efficiency: float | None  # Median of ideal time over the bundle's time in the same round, at most 1; None if processors share a core.
    #: Largest difference of the output from the whole model's, relative to its largest element; None if a delegate computes nothing.
    error: float | None
    traces: tuple[Trace, ...]  # Traces of the bundle's measured inferences.
    output: Values  # Output of the last inference.
    seconds: float  # Duration of the rounds, s.
    controls: tuple[str, ...] = (CONTROLS,)  # Precisions of the controls.

    @property
    def runs(self) -> int:
        """Number of counted rounds."""
        return len(self.traces)

    @property
    def best_sequential(self) -> Timing | None:
        """The faster of the original and the network with the same MACs, on any processor; None without controls."""
        runs = [run for run in (self.sequential, self.same_macs) if run is not None]
        return min(runs, key=lambda run: run.median_ms, default=None)

    @property
    def ratio(self) -> float | None:
        """Time of the original over the bundle's: above 1 branching is faster."""
        return None if self.sequential is None else self.sequential.median_ms / self.branched.median_ms


@dataclass(frozen=True)
class Effort:
    """Length of a measurement."""

    rounds: int = 30  # Number of counted rounds; the minimum number if `width` is set.
    warmup: int = 5  # Number of uncounted rounds before them.
    #: Width of a ratio's interval to either side, as a share of the ratio, at which measuring ends; None to measure `rounds` rounds.
    width: float | None = None
    least_seconds: float = 2.0  # Minimum duration, s: an interval describes only the period of its measurement.
    seconds: float = 10.0  # Maximum duration, s, after the first `rounds` rounds.

    def is_enough(self, seconds: float, narrow: Callable[[float], bool]) -> bool:
        """Return whether to stop, after the first `rounds` rounds."""
        return self.width is None or seconds > self.seconds or (seconds >= self.least_seconds and narrow(self.width))


def benchmark(session: Session, x: Values, effort: Effort | None = None, step: Callable[[], None] | None = None) -> Benchmark:
    """Measure a session against the controls of its bundle.

    Each round measures every network once, in rotating order, and every
    subgraph alone. If a processor is asynchronous, an unmeasured inference
    precedes each short one, because the processor was idle during the other
    turns and its clock frequencies fell.
    """
    effort = effort or Effort()
    bundle = session.bundle
    cores = used_cores(session)
    output = session.run(x)
    whole_model = Sequential(bundle.file(bundle.manifest.whole), cores)
    error = (
        max_error(output, unwrap_single(bundle.manifest.name_outputs(as_arrays(whole_model.run(x), bundle.manifest.outputs))))
        if session.computes
        else None
    )
    with ExitStack() as stack:
        elsewhere_controls = _controls_elsewhere(session, x, stack)
        baselines = {f"same net as one graph, {_threads(cores)}": whole_model.time} | _controls(session, x, cores)
        rounds = _Rounds(session, x, baselines | {name: time for name, (_, time) in elsewhere_controls.items()})
        for number in range(effort.warmup):
            rounds.play(number)
            if step is not None:
                step()
        rounds.reset()
        start = perf_counter_ns()
        while rounds.count < effort.rounds or not effort.is_enough((perf_counter_ns() - start) / 1e9, rounds.are_narrow):
            rounds.play(rounds.count)
            if step is not None:
                step()
        precisions = {CONTROLS, *(precision for precision, _ in elsewhere_controls.values())}
        return rounds.result(cores, error, (perf_counter_ns() - start) / 1e9, tuple(sorted(precisions)))


def _controls_elsewhere(session: Session, x: Values, stack: ExitStack) -> dict[str, tuple[Precision, Callable[[], float]]]:
    """Return each control on each delegate and in each precision of the bundle's subgraphs, with its precision.

    Controls in fp32 by ONNX Runtime on CPU cores are left out, as are controls that cannot run.
    """
    bundle, precisions = session.bundle, bundle_precisions(session.bundle.manifest)
    all_cores = "+".join(map(str, used_cores(session)))
    controls: dict[str, tuple[Precision, Callable[[], float]]] = {}
    floats = [*bundle.manifest.controls.items(), *_source_file_control(bundle.manifest)]
    for place in session.placements.values():
        if place.simulated or not session.computes:
            continue
        place_precisions = precisions.get(place.processor, set())
        candidates: list[tuple[Precision, str, str]] = []
        if place_precisions & {"fp32", "fp16"} and place.delegate != "cpu":
            candidates += [("fp32" if "fp32" in place_precisions else "fp16", *control) for control in floats]
        if "int8" in place_precisions:
            candidates += [("int8", *control) for control in bundle.manifest.int8_controls.items()]
        target = place.delegate + all_cores if is_host(place.processor) and place.cores else place.target
        for precision, control, file in candidates:
            # a warning about a replacement delegate would concern a control, not the bundle
            with suppress(StretchError), warnings.catch_warnings(action="ignore"):
                whole_bundle = whole_on(bundle, control, file, place.processor, precision)
                values = dict(zip(whole_bundle.manifest.inputs, as_arrays(x, bundle.manifest.inputs).values(), strict=True))
                control_session = stack.enter_context(Session(whole_bundle, {place.processor: target}))
                control_session.run(values)
                if not control_session.replaced:
                    rounded = " in int8" if precision == "int8" else ""
                    runtime = "" if place.delegate == place.processor else f" on {place.delegate}"
                    controls[f"{control}, {place.processor}{rounded}{runtime}"] = (
                        precision,
                        partial(_timed, control_session, values),
                    )
    return controls


def _source_file_control(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the user's own file as a control in place of the captured original, if it has the same inputs and outputs."""
    own = manifest.own
    if own is None or own.precision != CONTROLS or not own.file.endswith(".onnx"):
        return []
    same_ends = all(end.dtype == "float32" and not end.order for end in (*own.inputs, *own.outputs))
    ends = tuple(tuple(end.tensor for end in side) for side in (own.inputs, own.outputs))
    return [("original", own.file)] if same_ends and ends == (manifest.inputs, manifest.outputs) else []


def _timed(session: Session, x: Values) -> float:
    """Run one inference, and return its time in ms."""
    session.run(x)
    return session.trace.makespan_ms


def _controls(session: Session, x: Values, cores: tuple[int, ...]) -> dict[str, Callable[[], float]]:
    """Return each control on all cores and on one core, as a function that returns its time in ms."""
    controls: dict[str, Callable[[], float]] = {}
    for control, file in session.bundle.manifest.controls.items():
        for thread_cores in dict.fromkeys((cores, cores[:1])):
            time = _original(session, x, thread_cores) if control == "original" else None
            if time is None:
                model = Sequential(session.bundle.file(file), thread_cores)
                model.run(x)
                time = model.time
            controls[f"{control}, {_threads(thread_cores)}"] = time
    return controls


def _original(session: Session, x: Values, cores: tuple[int, ...]) -> Callable[[], float] | None:
    """Return a function that times the user's own file, or None if the bundle lacks the file or this machine its runtime."""
    manifest = session.bundle.manifest
    if manifest.own is None:
        return None
    try:
        file = SourceFileRunner(session.bundle.file(manifest.own.file), manifest.own, cores)
    except MissingBackendError:
        return None
    file.run(as_arrays(x, manifest.inputs))
    return file.time


class _Rounds:
    """Measurements of all rounds so far."""

    def __init__(self, session: Session, x: Values, baselines: Mapping[str, Callable[[], float]]) -> None:
        self._session, self._x = session, x
        self._idles = session.computes and any(place.dispatch == "async" for place in session.placements.values())
        self._whole_name = next(iter(baselines))
        self._variants: dict[str, Callable[[], object]] = {
            BRANCHED: self._branched,
            **{name: partial(self._warm, time) for name, time in baselines.items()},
            _SUBGRAPHS_ALONE: self._each_alone,
        }
        self.reset()

    def reset(self) -> None:
        """Discard all measurements."""
        self.times: dict[str, list[float]] = {name: [] for name in self._variants if name != _SUBGRAPHS_ALONE}
        self._alone: dict[str, list[float]] = {name: [] for name in self._session.plan.subgraphs}
        self._traces: list[Trace] = []

    @property
    def count(self) -> int:
        """Number of rounds since the last reset."""
        return len(self._traces)

    def play(self, number: int) -> None:
        """Run one more round; `number` decides which variant comes first."""
        for name, ms in play_round(self._variants, number).items():
            if isinstance(ms, float):
                self.times[name].append(ms)

    def are_narrow(self, width: float) -> bool:
        """Return whether the interval of every ratio of a baseline to the bundle is at most `width` wide."""
        intervals = [ratio_interval(times, self.times[BRANCHED]) for name, times in self.times.items() if name != BRANCHED]
        return all(ratio.width <= width for ratio in intervals)

    def result(self, cores: tuple[int, ...], error: float | None, seconds: float, controls: tuple[str, ...]) -> Benchmark:
        """Return the summary of all rounds."""
        timings = {n: Timing(n, float(np.median(v)), float(np.percentile(v, 90))) for n, v in self.times.items()}
        ideal = [ideal_ms(self._session, self._fastest_ms(number)) for number in range(self.count)]
        efficiency = float(np.median([ms / trace.makespan_ms for ms, trace in zip(ideal, self._traces, strict=True)]))
        sequential, same_macs = _fastest(timings, "original"), _fastest(timings, "sequential_same_macs")
        reported = [timings[BRANCHED], timings[self._whole_name], sequential, same_macs]
        return Benchmark(
            branched=timings[BRANCHED],
            sequential=sequential,
            same_macs=same_macs,
            whole=timings[self._whole_name],
            others=tuple(timing for timing in timings.values() if timing not in reported),
            cores=cores,
            rounds={name: tuple(values) for name, values in self.times.items()},
            alone_ms={name: float(np.median(values)) for name, values in self._alone.items()},
            ideal_ms=float(np.median(ideal)),
            efficiency=None if shares_a_core(self._session) else efficiency,
            error=error,
            traces=tuple(self._traces),
            output=self._output,
            seconds=seconds,
            controls=controls,
        )

    def _branched(self) -> float:
        ms = self._warm(self._run)
        self._traces.append(self._session.trace)
        return ms

    def _run(self) -> float:
        self._output = self._session.run(self._x)
        return self._session.trace.makespan_ms

    def _each_alone(self) -> None:
        for name, values in self._alone.items():
            values.append(self._warm(partial(self._session.time_alone, name)))

    def _warm(self, time: Callable[[], float]) -> float:
        """Return the ms of one inference; if a processor has been idle, of the first one that begins after `WARM_MS`."""
        passed = ms = time()
        while self._idles and passed < WARM_MS:
            ms = time()
            passed += ms
        return ms

    def _fastest_ms(self, number: int) -> dict[str, float]:
        """Return the time of each subgraph in a round: alone, or within the inference if it was faster there.

        Other work cannot speed a processor up. A subgraph that was slower alone was therefore measured with
        the costs of a separate run: caches filled by other work, a thread that had to be woken.
        """
        in_inference = {span.name: span.ms for span in self._traces[number].spans if span.kind == "subgraph"}
        return {name: min(values[number], in_inference[name]) for name, values in self._alone.items()}


def used_cores(session: Session) -> tuple[int, ...]:
    """Return the cores of a session's placements, or all cores of this process if no placement has one."""
    return tuple(sorted({core for place in session.subgraph_placements.values() for core in place.cores})) or available_cores()


def shares_a_core(session: Session) -> bool:
    """Return whether two branches of a segment run on one core or one queue."""
    if session.moved:
        return True
    return any(
        first.processor != second.processor and (first.queue == second.queue or not set(first.cores).isdisjoint(second.cores))
        for first, second in combinations(dict.fromkeys(session.subgraph_placements.values()), 2)
    )


def ideal_ms(session: Session, alone_ms: Mapping[str, float]) -> float:
    """Return the time in ms if branches overlapped perfectly: Σ over segments of the slowest branch alone.

    A branch with several subgraphs counts with their sum.
    """
    segments: dict[str, dict[str, float]] = {}
    for name, subgraph in session.plan.subgraphs.items():
        branches = segments.setdefault(subgraph.segment, {})
        branches[subgraph.processor] = branches.get(subgraph.processor, 0.0) + alone_ms[name]
    return sum(max(branches.values()) for branches in segments.values())


def _fastest(timings: Mapping[str, Timing], control: str) -> Timing | None:
    candidates = [timing for name, timing in timings.items() if name.partition(", ")[0] == control]
    return min(candidates, key=lambda timing: timing.median_ms) if candidates else None


def _threads(cores: tuple[int, ...]) -> str:
    return f"{len(cores)} thread{'s' if len(cores) != 1 else ''}"


@dataclass(frozen=True)
class ControlComparison:
    """A control's time over the bundle's: above 1 branching is faster."""

    name: str  # Name of the control.
    ratio: float  # Ratio of the medians.
    low: float  # Lower end of the 95 % interval.
    high: float | None  # Upper end; None with too few rounds for an interval.


@dataclass(frozen=True)
class Verdict:
    """The comparison of a bundle with its controls."""

    text: str  # One sentence.
    winner: str | None  # ``branched`` or ``sequential``; None if it is too close to call.
    ratios: Mapping[str, RatioEstimate]  # Time of each control over the bundle's, by the control's name: above 1 branching is faster.
    precisions: tuple[str, ...]  # Precisions of the bundle's subgraphs.
    controls: tuple[str, ...] = (CONTROLS,)  # Precisions of the controls.

    @property
    def equal_precision(self) -> bool:
        """Whether the bundle and its controls have exactly the same precisions."""
        return self.precisions == self.controls

    @property
    def comparisons(self) -> tuple[ControlComparison, ...]:
        """Comparison of the bundle with each control."""
        return tuple(ControlComparison(name, ratio.value, ratio.low or 0.0, ratio.high) for name, ratio in self.ratios.items())


def judge_speed(
    result: Benchmark, precisions: Sequence[str] = (CONTROLS,), simulated: Sequence[str] = (), original: str = CONTROLS
) -> Verdict:
    """Return which network is faster, if the intervals allow it; `original` is the precision of the user's own file."""
    kinds, controls = tuple(sorted(set(precisions))), tuple(sorted({*result.controls, original}))
    baselines = [timing for timing in (result.sequential, result.same_macs, result.whole) if timing is not None]
    ratios = {baseline.name: ratio_interval(result.rounds[baseline.name], result.rounds[result.branched.name]) for baseline in baselines}
    if simulated:
        names = ", ".join(simulated)
        text = f"no verdict on speed: the {names} is simulated here, so the numbers of the output count and the times do not"
        return Verdict(text, None, ratios, kinds, controls)
    text, winner = _compare(result, baselines, ratios)
    verdict = Verdict(text, winner, ratios, kinds, controls)
    if verdict.equal_precision:
        return verdict
    precision_note = f"; the subgraphs are {' and '.join(kinds)} and the controls {' and '.join(controls)}, so this compares precisions too"
    return replace(verdict, text=text + precision_note)


def _compare(result: Benchmark, baselines: Sequence[Timing], ratios: Mapping[str, RatioEstimate]) -> tuple[str, str | None]:
    cores = f"{len(result.cores)} core{'s' if len(result.cores) != 1 else ''}"
    if result.sequential is None:
        whole_text = f"the same net as one graph takes {result.whole.median_ms:.2f} ms on the same {cores}"
        return f"no comparison with the original: it ran without controls; {whole_text}", None
    ratio, fastest = ratios[result.sequential.name], result.best_sequential or result.sequential
    comparison = (
        f"{ratios[fastest.name].value:.2f}× ({ratios[fastest.name]}) against the best sequential run ({fastest.name}: the fastest of the "
        f"original and the network of the same MACs, on each processor alone) on the same {cores}"
    )
    faster = [baseline for baseline in baselines if ratios[baseline.name].side < 0]
    even = [baseline for baseline in baselines if ratios[baseline.name].side == 0]
    best = min(faster, key=lambda baseline: baseline.median_ms, default=None)
    if ratio.side < 0:
        return (
            f"branching loses here: {comparison}; this is expected on cores of one kind, branches help on processors of different kinds",
            "sequential",
        )
    if best is not None:
        start = "branching beats the original here" if ratio.side > 0 else "branching or the original: too close to call here"
        return (
            f"{start} ({ratio.value:.2f}×, {ratio}, its speed), but loses to a sequential baseline on the same {cores}: "
            f"{best.name} takes {best.median_ms:.2f} ms",
            "sequential",
        )
    if ratio.side == 0:
        return f"too close to call: branching has {comparison}; rounds of this length do not decide", None
    if even:
        baseline = min(even, key=lambda timing: timing.median_ms)
        return (
            f"branching beats the original here ({ratio.value:.2f}×, {ratio}, its speed); too close to call against {baseline.name} "
            f"({ratios[baseline.name]}) on the same {cores}",
            None,
        )
    return f"branching wins here: {comparison}", "branched"


@dataclass(frozen=True)
class Rate:
    """Inferences per second of one measured network: the median over rounds, and the lowest tenth."""

    name: str
    per_second: float
    p10_per_second: float


@dataclass(frozen=True)
class Throughput:
    """Inferences per second of all variants, on the cores of the session."""

    in_flight: int  # Number of inferences at once.
    rounds: int  # Number of counted rounds.
    burst: int  # Number of inferences per round of each network.
    over_one_core: float  # Rate with several in flight over the rate of the network as one graph on one core.
    #: The bundle with several in flight, the bundle one at a time, the network as one graph on one core, and on all the cores.
    contestants: tuple[Rate, ...]


def throughput(
    session: Session, x: Values, in_flight: int, rounds: int = 10, burst: int = 8, warmup: int = 1, step: Callable[[], None] | None = None
) -> Throughput:
    """Measure a session's rates: each round runs a burst of every variant, in rotating order."""
    cores = used_cores(session)
    network_file = session.bundle.file(session.bundle.manifest.whole)
    single_core, all_cores = Sequential(network_file, cores[:1]), Sequential(network_file, cores)
    for model in (single_core, all_cores):
        model.run(x)

    def submit_burst() -> None:
        for future in [session.submit(x) for _ in range(burst)]:
            future.result()

    def rate(burst_of: Callable[[], object]) -> float:
        start = perf_counter_ns()
        burst_of()
        return burst / ((perf_counter_ns() - start) / 1e9)

    def repeat(call: Callable[[], object]) -> None:
        for _ in range(burst):
            call()

    variants = {
        f"branched, {in_flight} in flight": partial(rate, submit_burst),
        "branched, one at a time": partial(rate, partial(repeat, lambda: session.run(x))),
        "same net as one graph, 1 thread": partial(rate, partial(repeat, single_core.time)),
        f"same net as one graph, {len(cores)} threads": partial(rate, partial(repeat, all_cores.time)),
    }
    measured: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warmup + rounds):
        for name, per_second in play_round(variants, number).items():
            if number >= warmup:
                measured[name].append(per_second)
        if step is not None:
            step()
    rates = [Rate(name, float(np.median(values)), float(np.percentile(values, 10))) for name, values in measured.items()]
    return Throughput(in_flight, rounds, burst, rates[0].per_second / rates[2].per_second, tuple(rates))
