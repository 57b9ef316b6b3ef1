"""What the simulation of a bundle showed, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.progress import Progress, silent
from scheduler.runtime.trace import Span, Trace
from scheduler.simulate.clock import Clock, Served, Simulated
from scheduler.simulate.flow import Decided
from scheduler.simulate.load import Load
from scheduler.simulate.networks import Network
from scheduler.simulate.prepare import Guest, check_alternatives, check_guests, prepare
from scheduler.simulate.scene import MOST_RUNS, Scene


class BusyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a processor was with the bundle's subgraphs.

    Args:
        ms: Of one inference, mean.
        share: Of the whole time.
    """

    ms: float
    share: float


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that inferences could run.

    Args:
        bundle: Its folder.
        makespan_ms: One inference with nothing that disturbs it.
        inferences: How many ran it.
    """

    bundle: str
    makespan_ms: float
    inferences: int


class DecisionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on what the next inferences run.

    Args:
        inference: Number of the inference after which it was made, from 0.
        at_ms: When.
        kind: ``move``, ``probe``, ``return`` or ``stay away``.
        before: Bundle that was run.
        after: Bundle to run.
        reason: In words.
        factors: Measured over expected time of the processors that counted as contended.
    """

    inference: int
    at_ms: float
    kind: str
    before: str
    after: str
    reason: str
    factors: dict[str, float]


class BesideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that ran beside, for another user.

    Args:
        bundle: Its folder.
        model: Its network.
        arrivals: When its inferences were asked for; None for each as soon as the last one was over.
        makespan_ms: One inference with nothing that disturbs it.
        inferences: How many ended before the first bundle's last one did.
        p50_ms: Median latency of these, from request to output; None if none ended.
        p90_ms: What nine of ten stay under.
        p99_ms: What 99 of 100 stay under.
    """

    bundle: Path
    model: str
    arrivals: str | None
    makespan_ms: float
    inferences: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


class SimulateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle under the clock of the simulation.

    Args:
        bundle: Its folder.
        model: The network.
        device: What it is simulated on.
        planned_for: The device that it was planned for.
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
        busy: How long each processor computed, for this bundle and those beside.
        communication_ms: Exchanges and joins of one inference, mean, whatever went on beside them.
        deadline_ms: Latency allowed; None if none was stated.
        missed: Inferences over it.
        ideal_split_ms: The original divided over the processors without any loss, as planned; None where the bundle does not say.
        ideal_fraction: That over the median latency.
        efficiency: What the slowest branches take alone, as planned, over the median latency.
        plans: The bundles that inferences could run, this one first.
        decisions: Why which of them was run when.
        beside: Bundles of other users.
        energy_mj: Energy of the processors in an inference, those beside included, mean; None where the profile states no power of one.
        trace: File with the timeline.
        warnings: What a person should know.
    """

    bundle: Path
    model: str
    device: str
    planned_for: str
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
    plans: tuple[PlanAnswer, ...]
    decisions: tuple[DecisionAnswer, ...]
    beside: tuple[BesideAnswer, ...]
    energy_mj: float | None
    trace: Path | None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a simulation beyond its scene.

    Args:
        arrivals: How arrivals were written.
        deadline_ms: Latency allowed; None for any.
        trace: File that gets the timeline.
        alternatives: Other plans of the network, among which a policy chooses (`scheduler.adapt`).
        beside: Bundles of other users, which share the processors.

    Raises:
        UsageError: If the deadline makes no sense.
    """

    arrivals: str | None = None
    deadline_ms: float | None = None
    trace: Path | None = None
    alternatives: tuple[Bundle, ...] = ()
    beside: tuple[Guest, ...] = ()

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
        device: The device it was planned for, or another one: then times are those of its files by that profile.
        scene: What is run, and what disturbs it.
        request: What else is asked.
        warnings: For the result.
        warn: Adds a warning to them; the list's own method if None.
        progress: Called after each `TOLD_EVERY` inferences.

    Raises:
        UnknownNameError: If the device lacks a processor of the bundle, or a load is on one that the bundle does not use.
        UsageError: If loads take more than all of a processor at once, or bundles do not belong together.
        StretchError: If nothing of a bundle takes time, or a subgraph without a planned time cannot be predicted.
    """
    warn = warn or warnings.append
    if device.id == bundle.manifest.device:
        check_guests(bundle, request.beside)
    check_alternatives(bundle, request.alternatives)
    company = scene.in_flight > 1 or bool(request.beside)
    own = [prepare(each, device, company, warn) for each in (bundle, *request.alternatives)]
    guests = [prepare(each.bundle, device, True, warn) for each in request.beside]
    alone = [_makespan_ms(network) for network in (*own, *guests)]
    theirs = [
        Scene(runs=MOST_RUNS, arrivals=guest.arrivals, jitter=scene.jitter, seed=scene.seed, traced=scene.traced)
        for guest in request.beside
    ]
    found = Clock(own, scene, list(zip(guests, theirs, strict=True))).run(progress)
    for load in scene.loads:
        if load.start_ms >= found.elapsed_ms:
            warn(f"the load on {load.processor} begins at {load.start_ms:g} ms, when all inferences have ended")
    return _answer(bundle, device, scene, request, alone, found, warnings), found


def _makespan_ms(network: Network) -> float:
    """One inference with nothing that disturbs it.

    Raises:
        StretchError: If it takes no time.
    """
    (makespan,) = Clock(network, Scene()).run().latencies_ms
    if not makespan:
        raise StretchError(
            f"the plan says that nothing of {network.name} takes time, so there is nothing to simulate",
            "make the bundle anew with `stretch branch`, or name a device with --device",
        )
    return makespan


def _answer(
    bundle: Bundle, device: DeviceProfile, scene: Scene, request: Request, alone: Sequence[float], found: Simulated, warnings: list[str]
) -> SimulateAnswer:
    manifest, deadline, own = bundle.manifest, request.deadline_ms, found.users[0]
    p50, p90, p99 = (float(each) for each in np.percentile(found.latencies_ms, (50, 90, 99)))
    planned_here = device.id == manifest.device
    figures = manifest.predicted if planned_here else {}
    ideal, efficiency, planned = (_number(figures, key) for key in ("ideal_split_ms", "efficiency", "makespan_ms"))
    energy = EnergyModel(device).plan_mj(found.busy_ms, found.elapsed_ms)
    return SimulateAnswer(
        bundle=bundle.path,
        model=manifest.model.name,
        device=device.id,
        planned_for=manifest.device,
        calibrated=manifest.calibrated if planned_here else device.calibrated,
        source="simulated",
        runs=scene.runs,
        in_flight=scene.in_flight,
        arrivals=request.arrivals,
        busy_with_others=scene.loads,
        jitter=scene.jitter,
        seed=scene.seed,
        makespan_ms=alone[0],
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
        plans=tuple(
            PlanAnswer(bundle=name, makespan_ms=ms, inferences=count) for (name, count), ms in zip(own.ran.items(), alone, strict=False)
        ),
        decisions=tuple(_decision(each) for each in own.decided),
        beside=tuple(
            _beside(guest, ms, served) for guest, ms, served in zip(request.beside, alone[len(own.ran) :], found.users[1:], strict=True)
        ),
        energy_mj=None if energy is None else energy / scene.runs,
        trace=request.trace,
        warnings=warnings,
    )


def _decision(made: Decided) -> DecisionAnswer:
    what = made.decision
    return DecisionAnswer(
        inference=what.inference,
        at_ms=made.at_ms,
        kind=what.kind,
        before=what.before,
        after=what.after,
        reason=what.reason,
        factors=dict(what.factors),
    )


def _beside(guest: Guest, alone: float, served: Served) -> BesideAnswer:
    ended = served.latencies_ms
    p50, p90, p99 = (float(each) for each in np.percentile(ended, (50, 90, 99))) if ended else (None, None, None)
    return BesideAnswer(
        bundle=guest.bundle.path,
        model=guest.bundle.manifest.model.name,
        arrivals=guest.written,
        makespan_ms=alone,
        inferences=len(ended),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
    )


def tracks(answer: SimulateAnswer, found: Simulated) -> dict[str, tuple[Trace, ...]]:
    """The groups of a timeline.

    The inferences that were traced, at least one; those of other users; which
    plan was run and why; what else took of the processors meanwhile.
    """
    groups = {f"simulated on {answer.device}": found.traces}
    for guest, served in zip(answer.beside, found.users[1:], strict=True):
        if served.traces:
            groups[f"beside: {guest.bundle}"] = served.traces
    first, last = found.traces[0].start_ns, max(trace.end_ns for trace in found.traces)

    def within(name: str, track: str, kind: Literal["load", "plan"], start_ms: float, end_ms: float) -> list[Span]:
        start, end = (min(max(round(moment * 1e6), first), last) for moment in (start_ms, end_ms))
        return [Span(name, track, track, kind, start, end)] if start < end else []

    began = [0.0, *(each.at_ms for each in answer.decisions), answer.elapsed_ms]
    names = [answer.decisions[0].before if answer.decisions else "", *(f"{each.after}: {each.reason}" for each in answer.decisions)]
    plans = [span for name, *ends in zip(names, began, began[1:], strict=False) for span in within(name, "plan", "plan", *ends)]
    loads = [
        span
        for load in answer.busy_with_others
        for span in within(f"{load.share:g} of {load.processor}", load.processor, "load", load.start_ms, load.end_ms)
    ]
    if answer.decisions:
        groups["plan in use"] = (Trace(tuple(plans), first, last),)
    if loads:
        groups["taken by others"] = (Trace(tuple(loads), first, last),)
    return groups


def _number(stated: Mapping[str, Any], key: str) -> float | None:
    """A figure of the plan, if it has one that is above zero."""
    value = stated.get(key)
    return float(value) if isinstance(value, int | float) and isfinite(value) and value > 0 else None
