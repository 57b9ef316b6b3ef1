"""Results of a run, a check or the tuning of a bundle, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from predictors.errors import StretchError
from scheduler.bundle.manifest import Manifest, WeightsInfo
from scheduler.checks.verify import CheckAnswer, ReferenceComparison
from scheduler.delegates.base import TunedKernel
from scheduler.measure.benchmark import CONTROLS, Benchmark, ControlComparison, Throughput, Timing, judge_speed
from scheduler.measure.energy import MeasuredEnergy
from scheduler.placement.place import Dispatch, Placement
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace


class ReplacedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The placement of a subgraph that its processor's delegate could not run."""

    delegate: str  # Which ran it.
    queue: str  # Queue that it shared with others.
    reason: str  # Why there.


class PlacedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """The placement on this machine of a processor of the device."""

    delegate: str  # The delegate here, or the backend on the device.
    cores: tuple[int, ...] = ()  # CPU cores here.
    dispatch: Dispatch | None = None  # How its work is started here; None on a device.
    stand_in: bool = False  # Whether this machine lacks the processor.
    reason: str  # Why there, in words.

    @classmethod
    def of(cls, place: Placement) -> "PlacedProcessor":
        """Return where a placement on this machine is."""
        return cls(delegate=place.delegate, cores=place.cores, dispatch=place.dispatch, stand_in=place.stand_in, reason=place.reason)


class ProcessorAnswer(PlacedProcessor, frozen=True, kw_only=True):
    """The placement of a processor of the device, and the time for which it was busy."""

    queue: str  # Queue that it shared with others.
    busy_ms: float  # Of one inference, median.


class PlannedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's plan for its device."""

    makespan_ms: float | None  # Predicted time of an inference, ms; None, like the other fields, where the bundle states none.
    best_single_processor: str | None  # The fastest single processor for the original.
    best_single_ms: float | None  # Its time, ms.
    recommended: str  # The planner's recommendation.


class BoardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The board that a bundle ran on."""

    host: str  # As it was named.
    arch: str  # ``x86_64`` or ``aarch64``.
    python: str  # Its version there.
    glibc: str  # Its version there.
    cores: int  # Number of cores that programs may use there.
    folder: str  # There, with all that was copied.
    copied_bytes: dict[str, int]  # Parts that were copied there: ``packages``, ``nn_stretch``, ``bundle``.


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle, measured on this machine in turns with its controls."""

    bundle: Path  # Its folder.
    model: str  # The network.
    device: str  # Device of the plan.
    weights: WeightsInfo  # Where its weights came from.
    planned: PlannedAnswer  # Prediction and recommendation of the plan.
    source: str = "measured"  # Where the times come from.
    median_ms: float  # Of the bundle.
    p90_ms: float  # Of the bundle.
    runs: int  # Rounds that counted.
    seconds: float  # How long they went on.
    sequential: Timing | None  # The original on the processor, or as many cores, that served it best; None without controls.
    sequential_same_macs: Timing | None  # The original scaled to the bundle's multiply-accumulates; None without controls.
    best_sequential: Timing | None  # The faster of these two; None without controls.
    same_net_whole_graph: Timing  # The branched net as one graph.
    same_net_whole_graph_ms: float  # Its median.
    ratio: float | None  # Time of `sequential` over the bundle's.
    macs_ratio: float | None  # Multiply-accumulates over the original's; None where that has none.
    ideal_ms: float  # Time if branches overlapped perfectly and joins cost nothing, ms.
    efficiency: float | None  # Ideal time over the bundle's time; None where processors share a core.
    max_error: float | None  # Largest difference of the output, relative to its largest element; None where a delegate computes nothing.
    check: CheckAnswer | None  # Comparison of the results with a reference; None where a delegate computes nothing.
    moved: dict[str, str]  # Subgraphs that run on another processor than the design's, and on which.
    replaced: dict[str, ReplacedAnswer]  # Subgraphs that their delegate could not run, and where they ran.
    cores: tuple[int, ...]  # Cores that every measured network used.
    processors: dict[str, ProcessorAnswer]  # Where each processor's work ran.
    subgraphs_alone_ms: dict[str, float]  # Median of each subgraph with everything else idle.
    others: tuple[Timing, ...]  # Baselines that another baseline of the same kind beat.
    verdict: str  # The comparison in one sentence.
    winner: str | None  # ``branched``, ``sequential``, or None where the times do not decide.
    comparisons: tuple[ControlComparison, ...]  # The bundle against each control.
    precisions: dict[str, tuple[str, ...]]  # Of the bundle's subgraphs (``branched``) and of the ``controls``.
    equal_precision: bool  # Whether bundle and controls compute in the same precision.
    throughput: Throughput | None  # Throughput; None if not measured.
    trace: Path | None = None  # File of the timeline, where one was asked for.
    csv: Path | None = None  # File of the table, where one was asked for.
    priority: str | None = None  # Priority that chose the processors; None: as the design says.
    energy_mj: float | None  # Measured energy of one inference, with all else that the counter covers; None where it could not be measured.
    energy_counter: str | None  # Counter that measured the energy; None without one.
    energy_reason: str | None  # Reason why the energy was not measured; None where it was.
    warnings: list[str] = []
    on: BoardAnswer | None = None  # The board that the bundle ran on; None for this machine.


def read_run_answer(content: object) -> RunAnswer:
    """Return the result of a run on a board, as in JSON."""
    try:
        return msgspec.convert(content, RunAnswer, dec_hook=lambda kind, value: kind(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise StretchError(f"the answer of the board cannot be read: {error}") from error


def run_answer(
    session: Session, result: Benchmark, right: ReferenceComparison | None, rates: Throughput | None, energy: MeasuredEnergy
) -> RunAnswer:
    """Summarise measurements and checks.

    Args:
        right: Of its results; None where a delegate computes nothing.
    """
    manifest = session.bundle.manifest
    simulated = [place.processor for place in session.placements.values() if place.simulated]
    original = manifest.own.precision if manifest.own else CONTROLS
    speed = judge_speed(result, [entry.precision for entry in manifest.subgraphs], simulated, original)
    return RunAnswer(
        bundle=session.bundle.path,
        model=manifest.model.name,
        device=manifest.device,
        weights=manifest.weights,
        planned=_planned(manifest),
        median_ms=result.branched.median_ms,
        p90_ms=result.branched.p90_ms,
        runs=result.runs,
        seconds=result.seconds,
        sequential=result.sequential,
        sequential_same_macs=result.same_macs,
        best_sequential=result.best_sequential,
        same_net_whole_graph=result.whole,
        same_net_whole_graph_ms=result.whole.median_ms,
        ratio=result.ratio,
        macs_ratio=manifest.model.macs / manifest.model.original_macs if manifest.model.original_macs else None,
        ideal_ms=result.ideal_ms,
        efficiency=result.efficiency,
        max_error=result.error,
        check=None if right is None else right.check,
        moved=dict(session.moved),
        replaced={name: ReplacedAnswer(delegate=p.delegate, queue=p.queue, reason=p.reason) for name, p in session.replaced.items()},
        cores=result.cores,
        processors=_processors(session.placements, result.traces),
        subgraphs_alone_ms=dict(result.alone_ms),
        others=result.others,
        verdict=speed.text,
        winner=speed.winner,
        comparisons=speed.comparisons,
        precisions={"branched": speed.precisions, "controls": speed.controls},
        equal_precision=speed.equal_precision,
        throughput=rates,
        energy_mj=energy.mj,
        energy_counter=energy.counter,
        energy_reason=energy.reason,
    )


def _planned(manifest: Manifest) -> PlannedAnswer:
    makespan, single = (manifest.predicted.get(name) for name in ("makespan_ms", "best_single_ms"))
    return PlannedAnswer(
        makespan_ms=float(makespan) if isinstance(makespan, int | float) else None,
        best_single_processor=str(manifest.predicted.get("best_single_processor", "")) or None,
        best_single_ms=float(single) if isinstance(single, int | float) else None,
        recommended=manifest.recommended,
    )


def _processors(placements: Mapping[str, Placement], traces: Iterable[Trace]) -> dict[str, ProcessorAnswer]:
    busy: dict[str, list[float]] = {}
    for trace in traces:
        for processor, ms in trace.busy_ms().items():
            busy.setdefault(processor, []).append(ms)
    return {
        name: ProcessorAnswer(
            delegate=place.delegate,
            cores=place.cores,
            dispatch=place.dispatch,
            stand_in=place.stand_in,
            reason=place.reason,
            queue=place.queue,
            busy_ms=float(np.median(busy[name])) if name in busy else 0.0,
        )
        for name, place in placements.items()
    }


class TuneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's kernels before and after they were tuned."""

    bundle: Path  # Its folder.
    device: str  # Device of the kernels, with its driver.
    mode: str  # Extent of the tuning.
    source: str = "measured"  # Where the times come from.
    before_ms: float  # Sum over the kernels.
    after_ms: float  # Sum over the kernels.
    kernels: list[TunedKernel]  # Each kernel.
    warnings: list[str]
