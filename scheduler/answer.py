"""Results of runs, checks and tuning as plain data; both JSON and the terminal's table read these structs, whose fields are JSON keys."""

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

    delegate: str  # Delegate that ran the subgraph.
    queue: str  # Queue of the subgraph.
    reason: str  # Reason for the placement.


class PlacedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of a processor of the device on this machine."""

    delegate: str  # Delegate here, or the backend on the device.
    cores: tuple[int, ...] = ()  # CPU cores on this machine.
    dispatch: Dispatch | None = None  # How work is started here; None on a device.
    stand_in: bool = False  # Whether this machine lacks the processor.
    reason: str  # Reason for the placement, in words.

    @classmethod
    def of(cls, place: Placement) -> "PlacedProcessor":
        """Return the answer for a placement on this machine."""
        return cls(delegate=place.delegate, cores=place.cores, dispatch=place.dispatch, stand_in=place.stand_in, reason=place.reason)


class ProcessorAnswer(PlacedProcessor, frozen=True, kw_only=True):
    """Placement of a processor of the device, with its busy time."""

    queue: str  # Queue of the processor's work.
    busy_ms: float  # Median busy time per inference.


class PlannedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's plan for its device."""

    makespan_ms: float | None  # Predicted time of an inference, ms; None, like the other fields, if the bundle states none.
    best_single_processor: str | None  # Fastest single processor for the original.
    best_single_ms: float | None  # Time on that processor, ms.
    recommended: str  # The planner's recommendation.


class BoardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The board that a bundle ran on."""

    host: str  # Name given by the user.
    arch: str  # ``x86_64`` or ``aarch64``.
    python: str  # Version of Python on the board.
    glibc: str  # Version of glibc on the board.
    cores: int  # Number of cores that programs may use on the board.
    folder: str  # Folder on the board with everything that was copied.
    copied_bytes: dict[str, int]  # Bytes copied to the board: ``packages``, ``nn_stretch``, ``bundle``.


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a bundle on this machine, in turns with its controls."""

    bundle: Path  # Folder of the bundle.
    model: str  # Name of the network.
    device: str  # Device of the plan.
    weights: WeightsInfo  # Source of the weights.
    planned: PlannedAnswer  # Prediction and recommendation of the plan.
    source: str = "measured"  # Source of the times.
    median_ms: float  # Median time of the bundle.
    p90_ms: float  # 90th percentile of the bundle's times.
    runs: int  # Number of counted rounds.
    seconds: float  # Duration of the rounds.
    sequential: Timing | None  # The original on one processor or on all cores, whichever was faster; None without controls.
    sequential_same_macs: Timing | None  # The original scaled to the bundle's multiply-accumulates; None without controls.
    best_sequential: Timing | None  # The faster of the last two; None without controls.
    same_net_whole_graph: Timing  # The branched network as one graph.
    same_net_whole_graph_ms: float  # Median time of that network.
    ratio: float | None  # Time of `sequential` over the bundle's.
    macs_ratio: float | None  # Multiply-accumulates over the original's; None if the original has none.
    ideal_ms: float  # Time if branches overlapped perfectly and joins cost nothing, ms.
    efficiency: float | None  # Ideal time over the bundle's time; None if processors share a core.
    max_error: float | None  # Largest difference of the output, relative to its largest element; None if a delegate computes nothing.
    check: CheckAnswer | None  # Comparison of the results with a reference; None if a delegate computes nothing.
    moved: dict[str, str]  # Subgraphs on another processor than the design's, with that processor.
    replaced: dict[str, ReplacedAnswer]  # Subgraphs that their delegate could not run, with their placement.
    cores: tuple[int, ...]  # Cores used by all measured networks.
    processors: dict[str, ProcessorAnswer]  # Placement of each processor's work.
    subgraphs_alone_ms: dict[str, float]  # Median time of each subgraph while everything else is idle.
    others: tuple[Timing, ...]  # Baselines that were slower than another baseline of the same kind.
    verdict: str  # The comparison in one sentence.
    winner: str | None  # ``branched`` or ``sequential``; None if it is too close to call.
    comparisons: tuple[ControlComparison, ...]  # Comparison of the bundle with each control.
    precisions: dict[str, tuple[str, ...]]  # Precisions of the bundle's subgraphs (``branched``) and of the ``controls``.
    equal_precision: bool  # Whether bundle and controls compute in the same precision.
    throughput: Throughput | None  # Throughput; None if not measured.
    trace: Path | None = None  # File of the timeline, if requested.
    csv: Path | None = None  # File of the table, if requested.
    priority: str | None = None  # Priority that chose the processors; None for the design's choice.
    energy_mj: float | None  # Measured energy per inference of all consumers that the counter covers; None if not measured.
    energy_counter: str | None  # Counter that measured the energy; None without one.
    energy_reason: str | None  # Reason why the energy was not measured, or None.
    warnings: list[str] = []
    on: BoardAnswer | None = None  # The board that the bundle ran on; None for this machine.


def read_run_answer(content: object) -> RunAnswer:
    """Return the result of a run on a board, from its JSON."""
    try:
        return msgspec.convert(content, RunAnswer, dec_hook=lambda kind, value: kind(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise StretchError(f"the answer of the board cannot be read: {error}") from error


def run_answer(
    session: Session, result: Benchmark, right: ReferenceComparison | None, rates: Throughput | None, energy: MeasuredEnergy
) -> RunAnswer:
    """Return the answer of a run from its measurements and checks.

    Args:
        right: Comparison of the results with the reference; None if a delegate computes nothing.
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
    """A bundle's kernels before and after tuning."""

    bundle: Path  # Folder of the bundle.
    device: str  # Device of the kernels, with its driver.
    mode: str  # Extent of the tuning.
    source: str = "measured"  # Source of the times.
    before_ms: float  # Sum over all kernels before tuning.
    after_ms: float  # Sum over all kernels after tuning.
    kernels: list[TunedKernel]  # All kernels.
    warnings: list[str]
