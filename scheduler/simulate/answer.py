"""What the simulation of a bundle showed, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from predictors.devices import DeviceProfile
from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.progress import Progress, silent
from scheduler.runtime.plan import make_plan
from scheduler.runtime.trace import Span, Trace
from scheduler.simulate.clock import Clock, Simulated
from scheduler.simulate.load import Load
from scheduler.simulate.scene import Scene
from scheduler.simulate.times import beside_factors, device_placements, step_times, with_times


class BusyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a processor was with the bundle's subgraphs.

    Args:
        ms: Of one inference, mean.
        share: Of the whole time.
    """

    ms: float
    share: float


class SimulateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle under the clock of the simulation.

    Args:
        bundle: Its folder.
        model: The network.
        device: What it was planned for, and is simulated on.
        calibrated: Whether the times it was planned with were fitted to measurements.
        source: Where the times come from.
        runs: Inferences.
        in_flight: How many of them there were at once.
        arrivals: When they were asked for; None for each as soon as there was a lane for it.
        busy_with_others: What else took a share of the processors.
        jitter: Standard deviation of the logarithm of computing times.
        seed: Of everything random.
        makespan_ms: One inference with nothing that disturbs it.
        p50_ms: Median latency, from request to output.
        p90_ms: What nine of ten stay under.
        p99_ms: What 99 of 100 stay under.
        elapsed_ms: From the start of the clock to the end of the last inference.
        per_second: Inferences a second in that time.
        busy: How long each processor computed.
        communication_ms: Exchanges and joins of one inference, mean, whatever went on beside them.
        deadline_ms: Latency allowed; None if none was stated.
        missed: Inferences over it.
        ideal_split_ms: The original divided over the processors without any loss, as planned; None where the bundle does not say.
        ideal_fraction: That over the median latency.
        efficiency: What the slowest branches take alone, as planned, over the median latency.
        trace: File with the timeline.
        warnings: What a person should know.
    """

    bundle: Path
    model: str
    device: str
    calibrated: bool
    source: str
    runs: int
    in_flight: int
    arrivals: str | None
    busy_with_others: tuple[Load, ...]
    jitter: float
    seed: int
    makespan_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    elapsed_ms: float
    per_second: float
    busy: dict[str, BusyAnswer]
    communication_ms: float
    deadline_ms: float | None
    missed: int | None
    ideal_split_ms: float | None
    ideal_fraction: float | None
    efficiency: float | None
    trace: Path | None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a simulation beyond its scene.

    Args:
        arrivals: How arrivals were written.
        deadline_ms: Latency allowed; None for any.
        trace: File that gets the timeline.

    Raises:
        UsageError: If the deadline makes no sense.
    """

    arrivals: str | None = None
    deadline_ms: float | None = None
    trace: Path | None = None

    def __post_init__(self) -> None:
        """Check the number."""
        if self.deadline_ms is not None and not (isfinite(self.deadline_ms) and self.deadline_ms > 0):
            raise UsageError(f"a deadline of {self.deadline_ms:g} ms makes no sense", "give the milliseconds that an inference may take")


def simulate(
    bundle: Bundle,
    device: DeviceProfile,
    scene: Scene,
    request: Request,
    warnings: list[str],
    warn: Callable[[str], None] | None = None,
    progress: Progress = silent,
) -> tuple[SimulateAnswer, Simulated]:
    """Run a bundle on its device under a clock that is only a number.

    Args:
        bundle: The bundle.
        device: The device it was planned for.
        scene: What is run, and what disturbs it.
        request: What else is asked.
        warnings: For the result.
        warn: Adds a warning to them; the list's own method if None.
        progress: Called after each `TOLD_EVERY` inferences.

    Raises:
        UnknownNameError: If the device lacks a processor of the bundle, or a load is on one that the bundle does not use.
        UsageError: If loads take more than all of a processor at once.
        StretchError: If nothing of the bundle takes time, or a subgraph without a planned time cannot be predicted.
    """
    warn = warn or warnings.append
    manifest = with_times(bundle, device)
    untimed = [entry.name for entry in bundle.manifest.subgraphs if entry.predicted_ms is None]
    if untimed:
        warn(f"the plan states no time of {', '.join(untimed)}: predicted from the bundle's files")
    times = step_times(manifest, device, beside_factors(bundle, device) if scene.in_flight > 1 else None)
    plan, places = make_plan(manifest), device_placements(manifest, device)
    (makespan,) = Clock(plan, places, times, Scene()).run().latencies_ms
    if not makespan:
        raise StretchError("the plan says that nothing of the bundle takes time, so there is nothing to simulate")
    found = Clock(plan, places, times, scene).run(progress)
    for load in scene.loads:
        if load.start_ms >= found.elapsed_ms:
            warn(f"the load on {load.processor} begins at {load.start_ms:g} ms, when all inferences have ended")
    return _answer(bundle, scene, request, makespan, found, warnings), found


def _answer(bundle: Bundle, scene: Scene, request: Request, makespan: float, found: Simulated, warnings: list[str]) -> SimulateAnswer:
    manifest, deadline = bundle.manifest, request.deadline_ms
    p50, p90, p99 = (float(each) for each in np.percentile(found.latencies_ms, (50, 90, 99)))
    ideal, efficiency, planned = (_number(manifest.predicted, key) for key in ("ideal_split_ms", "efficiency", "makespan_ms"))
    return SimulateAnswer(
        bundle=bundle.path,
        model=manifest.model.name,
        device=manifest.device,
        calibrated=manifest.calibrated,
        source="simulated",
        runs=scene.runs,
        in_flight=scene.in_flight,
        arrivals=request.arrivals,
        busy_with_others=scene.loads,
        jitter=scene.jitter,
        seed=scene.seed,
        makespan_ms=makespan,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        elapsed_ms=found.elapsed_ms,
        per_second=1e3 * scene.runs / found.elapsed_ms,
        busy={name: BusyAnswer(ms=ms / scene.runs, share=ms / found.elapsed_ms) for name, ms in found.busy_ms.items()},
        communication_ms=found.communication_ms / scene.runs,
        deadline_ms=deadline,
        missed=None if deadline is None else sum(latency > deadline for latency in found.latencies_ms),
        ideal_split_ms=ideal,
        ideal_fraction=None if ideal is None else ideal / p50,
        efficiency=None if efficiency is None or planned is None else efficiency * planned / p50,
        trace=request.trace,
        warnings=warnings,
    )


def tracks(answer: SimulateAnswer, found: Simulated) -> dict[str, tuple[Trace, ...]]:
    """The groups of a timeline: the inferences that were traced, at least one, and what others took of the processors meanwhile."""
    groups = {f"simulated on {answer.device}": found.traces}
    first, last = found.traces[0].start_ns, max(trace.end_ns for trace in found.traces)
    spans = []
    for load in answer.busy_with_others:
        start, end = (min(max(round(moment * 1e6), first), last) for moment in (load.start_ms, load.end_ms))
        if start < end:
            spans.append(Span(f"{load.share:g} of {load.processor}", load.processor, load.processor, "load", start, end))
    if spans:
        groups["taken by others"] = (Trace(tuple(spans), first, last),)
    return groups


def _number(stated: Mapping[str, Any], key: str) -> float | None:
    """A figure of the plan, if it has one that is above zero."""
    value = stated.get(key)
    return float(value) if isinstance(value, int | float) and isfinite(value) and value > 0 else None
