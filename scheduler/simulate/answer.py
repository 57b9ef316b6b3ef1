"""Simulation of a bundle or of a table of steps, with results as plain data: the fields of the structs are the keys of the JSON."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import StretchError, UsageError
from predictors.thermal import Thermal
from scheduler.adapt.policy import AdaptationRules, PlanDecision, Prefer
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.bundle.manifest import Manifest
from scheduler.placement.mapping import choose_processors
from scheduler.progress import Progress, silent
from scheduler.runtime.inputs import check_deadline
from scheduler.runtime.plan import make_plan
from scheduler.runtime.trace import Span, Trace
from scheduler.simulate.admission import Admission, Demand, admit
from scheduler.simulate.clock import ClientResult, Clock, SimulationResult, TurnTaking
from scheduler.simulate.networks import (
    Network,
    StepTable,
    device_placements,
    network_of_steps,
    step_times,
    steps_without_bytes,
    with_predicted_times,
)
from scheduler.simulate.scene import MAX_RUNS, Arrivals, Frequency, Heat, Load, Scene, parse_arrivals, powers


class BusyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Utilisation of a processor by the bundle's subgraphs."""

    ms: float  # Mean computing time per inference.
    share: float  # Share of the elapsed time.


class SimulatedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative plan."""

    bundle: str  # Folder of the bundle.
    makespan_ms: float  # Latency without disturbances.
    inferences: int  # Number of inferences with this plan.


class DecisionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the policy."""

    inference: int  # Last inference before the decision, from 0.
    at_ms: float  # Simulated time.
    kind: str  # ``move``, ``probe``, ``return`` or ``stay away``.
    before: str  # Previous plan.
    after: str  # Next plan.
    reason: str
    factors: dict[str, float]  # Measured over expected time of the contended processors.


class HeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Temperature and throttling of the chip."""

    source: str  # Source of the thermal model.
    start_c: float  # Temperature at the start, °C.
    end_c: float  # Temperature at the end.
    hottest_c: float  # Highest temperature.
    slowest: float  # Lowest speed, as a share of full speed.
    throttled: float  # Share of the time with throttling.
    changes: int  # Number of changes of speed.
    first_tenth_ms: float  # Median latency of the first tenth of the inferences.
    last_tenth_ms: float  # Median latency of the last tenth.


class WorkloadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a concurrent workload."""

    bundle: Path  # Folder of the workload's bundle.
    model: str  # Name of its network.
    arrivals: str | None  # Arrival process; None for back-to-back inferences.
    makespan_ms: float  # Latency of one inference without disturbances.
    inferences: int  # Number of inferences that ended before the last one of the first bundle.
    p50_ms: float | None  # Median latency from request to output; None if no inference ended.
    p90_ms: float | None  # 90th percentile.
    p99_ms: float | None  # 99th percentile.
    deadline_ms: float | None  # Allowed latency; None if not stated.
    missed: int | None  # Number of inferences over the deadline.


class SimulateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `stretch simulate`."""

    bundle: Path  # Folder of the bundle, or file of a table of steps.
    model: str  # Name of the network; for a table, of its file.
    device: str | None  # Simulated device; None if only the times of a table count.
    planned_for: str | None  # Device of the plan; for a table, the simulated one.
    calibrated: bool  # Whether predicted times were fitted to measurements.
    source: str  # Source of the times.
    runs: int  # Number of inferences.
    in_flight: int  # Number of concurrent inferences.
    arrivals: str | None  # Arrival process; None for an inference as soon as a lane is free.
    busy_with_others: tuple[Load, ...]  # Background load.
    frequencies: tuple[Frequency, ...]  # Changes of processor speed.
    jitter: float  # Standard deviation of the logarithm of computing times.
    seed: int  # Seed of the random numbers.
    makespan_ms: float  # Latency of one inference without disturbances.
    p50_ms: float  # Median latency, from request to output.
    p90_ms: float  # 90th percentile.
    p99_ms: float  # 99th percentile.
    elapsed_ms: float  # Time from the start of the clock to the end of the last inference.
    per_second: float  # Inferences per second in that time.
    busy: dict[str, BusyAnswer]  # Computing time of each processor, for all bundles.
    communication_ms: float  # Mean time of exchanges and joins per inference, overlapping or not.
    deadline_ms: float | None  # Allowed latency; None if not stated.
    missed: int | None  # Number of inferences over the deadline.
    #: Predicted latency of an ideal split over the processors; None if the bundle does not state it.
    ideal_split_ms: float | None
    ideal_fraction: float | None  # Ideal split over the median latency.
    efficiency: float | None  # Predicted time of the slowest branches over the median latency.
    plans: tuple[SimulatedPlan, ...]  # Alternative plans, this bundle first.
    decisions: tuple[DecisionAnswer, ...]  # Decisions among the alternative plans.
    beside: tuple[WorkloadAnswer, ...]  # Concurrent workloads.
    shared: bool  # Whether bundles share processors by deadlines and weights, as in a `Scheduler`.
    admission: Admission | None  # Admission; None if not requested.
    #: Mean energy of the processors per inference, including concurrent workloads; None if the profile lacks the power of one of them.
    energy_mj: float | None
    heat: HeatAnswer | None  # Temperature; None if not simulated.
    trace: Path | None  # File with the timeline.
    warnings: list[str]


@dataclass(frozen=True)
class ConcurrentWorkload:
    """A concurrent workload: a bundle of another client on the same processors."""

    bundle: Bundle  # The bundle.
    arrivals: Arrivals | None = None  # Arrivals of requests; None to start each inference when the previous one ends.
    arrivals_text: str | None = None  # Arrivals in the form of the command line.
    deadline_ms: float | None = None  # Allowed latency; None for any.


def parse_alternative(text: str, bundle: Bundle) -> tuple[str, Bundle]:
    """Return the name and the bundle of an alternative plan from its form on the command line."""
    names = [word.strip() for word in text.split(",")]
    if set(names) <= {entry.processor for entry in bundle.manifest.subgraphs}:
        return f"{bundle.path} on {','.join(names)}", replace(bundle, manifest=_on_processors(bundle.manifest, names))
    return text, load_bundle(Path(text), check_hashes=True)


def parse_workload(text: str) -> ConcurrentWorkload:
    """Return a concurrent workload in the form of the command line: ``FOLDER``, ``FOLDER@ARRIVALS`` or ``FOLDER@ARRIVALS@DEADLINE``."""
    form = re.fullmatch(r"(.+?)@((?:periodic|poisson):[^@]*)(?:@(.*))?", text)
    folder, written, deadline = form.groups() if form is not None else (text, None, None)
    arrivals = None if written is None else parse_arrivals(written)
    milliseconds = None
    if deadline is not None:
        with contextlib.suppress(ValueError):
            milliseconds = float(deadline)
        if milliseconds is None or not (isfinite(milliseconds) and milliseconds > 0):
            raise UsageError(f"`{deadline}` is no deadline", "write milliseconds, as runs/other@periodic:33.3@50")
    return ConcurrentWorkload(load_bundle(Path(folder), check_hashes=True), arrivals, written, milliseconds)


def prepare(bundle: Bundle, device: DeviceProfile, has_contention: bool, warnings: list[str], name: str | None = None) -> Network:
    """Return a bundle on a device as a network (`name`: its name; the bundle's folder if None)."""
    is_other_device = device.id != bundle.manifest.device
    manifest = with_predicted_times(bundle, device, repredict=is_other_device)
    untimed = [entry.name for entry in bundle.manifest.subgraphs if entry.predicted_ms is None]
    if untimed and not is_other_device:
        warnings.append(f"the plan states no time of {', '.join(untimed)}: predicted from the bundle's files")
    times = step_times(manifest, device, concurrent=has_contention)
    powers = {processor: EnergyModel(device).mj(processor, 1.0) for processor in dict.fromkeys(time.processor for time in times.values())}
    watts = {processor: power for processor, power in powers.items() if power is not None}
    return Network(name or str(bundle.path), make_plan(manifest), device_placements(manifest, device), times, watts)


def _on_processors(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """Return the plan on some of its processors: moved subgraphs compute in the precision that the plan has on their new processor."""
    planned = {entry.processor: entry.planned_precision for entry in manifest.subgraphs}
    placed = choose_processors(manifest, names)
    entries = tuple(
        after if after.processor == before.processor else msgspec.structs.replace(after, planned_precision=planned[after.processor])
        for before, after in zip(manifest.subgraphs, placed.subgraphs, strict=True)
    )
    return msgspec.structs.replace(placed, subgraphs=entries)


def _check(bundle: Bundle, device: DeviceProfile, scene: Scene, request: "SimulationRequest") -> None:
    """Refuse workloads of other devices, bundles that cannot replace this one, and missing rates."""
    for workload in request.workloads:
        planned = workload.bundle.manifest.device
        if device.id == bundle.manifest.device != planned:
            raise UsageError(
                f"{workload.bundle.path} was planned for {planned}, {bundle.path} for {bundle.manifest.device}",
                "name the device to simulate them on with --device",
            )
    for name, alternative in request.alternatives:
        for kind, first, second in _comparable_facts(bundle.manifest, alternative.manifest):
            if first != second:
                raise UsageError(
                    f"{name} cannot take the place of {bundle.path}: its {kind} is {second}, not {first}",
                    "alternatives are plans of the same network for the same device, as of `stretch branch MODEL --processors cpu,dsp`",
                )
    for path, arrivals in ((bundle.path, scene.arrivals), *((workload.bundle.path, workload.arrivals) for workload in request.workloads)):
        if request.admit and arrivals is None:
            raise UsageError(
                f"{path} has no request rate, so admission cannot be checked",
                "give the first bundle --arrivals periodic:MS, and others as runs/other@periodic:MS",
            )


def _comparable_facts(first: Manifest, second: Manifest) -> list[tuple[str, object, object]]:
    return [
        ("network", first.model.name, second.model.name),
        ("device", first.device, second.device),
        ("original's number of multiply-accumulates", first.model.original_macs, second.model.original_macs),
        ("input", _ends(first, first.inputs), _ends(second, second.inputs)),
        ("output", _ends(first, first.outputs), _ends(second, second.outputs)),
    ]


def _ends(manifest: Manifest, names: Sequence[str]) -> str:
    """Return the shapes of the inputs or outputs in order, as text."""
    shapes = {tensor.name: tensor.shape for tensor in manifest.tensors}
    return ", ".join("×".join(map(str, shapes[name])) for name in names)


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """Parameters of a simulation beyond its scene."""

    arrivals: str | None = None  # Arrivals in the form of the command line.
    deadline_ms: float | None = None  # Allowed latency; None for any.
    trace: Path | None = None  # File for the timeline.
    alternatives: tuple[tuple[str, Bundle], ...] = ()  # Names and bundles of other plans, among which a policy chooses (`scheduler.adapt`).
    workloads: tuple[ConcurrentWorkload, ...] = ()  # Concurrent workloads on the same processors.
    thermal: Thermal | None = None  # Thermal model of the chip; None for no temperature.
    shared: bool = False  # Whether bundles take turns on processors as in a `Scheduler`.
    admit: bool = False  # Whether to check that the rates can be held; bundles then take turns.
    prefer: Prefer = "latency"  # The policy's preference among alternatives (`scheduler.adapt.policy.AdaptationRules`).

    def __post_init__(self) -> None:
        """Check the combination of parameters."""
        check_deadline(self.deadline_ms)
        if self.alternatives and (self.shared or self.admit):
            raise UsageError("alternatives of a bundle do not take turns with other bundles", "simulate the one or the other")
        if self.prefer != "latency" and not self.alternatives:
            raise UsageError(f"there is no other plan that could be preferred for its {self.prefer}", "give one with --or")


def simulate(
    bundle: Bundle,
    device: DeviceProfile,
    scene: Scene,
    request: SimulationRequest,
    progress: Progress = silent,
) -> tuple[SimulateAnswer, SimulationResult]:
    """Simulate a bundle on its device.

    Args:
        device: Device of the plan, or another one, whose profile then predicts the times of the bundle's files.
        progress: Called after each `PROGRESS_EVERY` inferences.
    """
    warnings: list[str] = []
    _check(bundle, device, scene, request)
    shared = request.shared or request.admit
    has_contention = scene.in_flight > 1 or bool(request.workloads)
    networks = [
        prepare(alternative, device, has_contention, warnings, name)
        for name, alternative in ((str(bundle.path), bundle), *request.alternatives)
    ]
    concurrent = [prepare(workload.bundle, device, True, warnings) for workload in request.workloads]
    in_flight = scene.in_flight if shared else 1
    workload_scenes = [
        replace(scene, runs=MAX_RUNS, in_flight=in_flight, arrivals=workload.arrivals, deadline_ms=workload.deadline_ms, priority=0)
        for workload in request.workloads
    ]
    planned_here = device.id == bundle.manifest.device
    subject = _Subject(
        path=bundle.path,
        model=bundle.manifest.model.name,
        device=device,
        planned_for=bundle.manifest.device,
        calibrated=bundle.manifest.calibrated if planned_here else device.calibrated,
        figures=bundle.manifest.predicted if planned_here else {},
    )
    answer, simulated = _simulate(
        subject, networks, list(zip(concurrent, workload_scenes, strict=True)), scene, request, warnings, progress
    )
    if request.admit:
        answer = msgspec.structs.replace(answer, admission=_admission([*networks, *concurrent], scene, request))
    return answer, simulated


def simulate_steps(
    table: StepTable,
    device: DeviceProfile | None,
    scene: Scene,
    request: SimulationRequest,
    progress: Progress = silent,
) -> tuple[SimulateAnswer, SimulationResult]:
    """Simulate a table of steps (`device`: provides links and contention; None for the times of the table alone)."""
    warnings: list[str] = []
    if request.alternatives or request.workloads or request.shared or request.admit:
        raise UsageError(f"{table.path} is a table of steps, which runs alone", "other plans and other clients are bundles: leave them out")
    if request.thermal is not None and device is None:
        raise UsageError(f"{table.path} states no power of processors, which heat comes from", "name a device")
    if device is not None and (unsized := steps_without_bytes(table)):
        warnings.append(
            f"the table states no bytes of {', '.join(unsized[:5])}: their transfers take the fixed part of the device's links alone"
        )
    network = network_of_steps(table, device)
    subject = _Subject(
        path=table.path, model=network.name, device=device, planned_for=None if device is None else device.id, calibrated=False, figures={}
    )
    return _simulate(subject, [network], [], scene, request, warnings, progress)


@dataclass(frozen=True)
class _Subject:
    """The simulated bundle or table."""

    path: Path  # Folder of the bundle, or file of the table.
    model: str
    device: DeviceProfile | None
    planned_for: str | None
    calibrated: bool
    figures: Mapping[str, Any]  # Figures of the plan, on the plan's device.


def _simulate(
    subject: _Subject,
    networks: Sequence[Network],
    concurrent: Sequence[tuple[Network, Scene]],
    scene: Scene,
    request: SimulationRequest,
    warnings: list[str],
    progress: Progress,
) -> tuple[SimulateAnswer, SimulationResult]:
    """Run the clock, and return the answer and the simulation."""
    all_networks = (*networks, *(network for network, _ in concurrent))
    alone_ms = [_makespan_ms(network) for network in all_networks]
    heat = None
    if request.thermal is not None and subject.device is not None:
        used = dict.fromkeys(time.processor for network in all_networks for time in network.times.values())
        heat = Heat(request.thermal, powers(subject.device, request.thermal, used))
    sharing = TurnTaking() if request.shared or request.admit else None
    own_scene = replace(scene, deadline_ms=request.deadline_ms)
    rules = AdaptationRules(prefer=request.prefer, deadline_ms=request.deadline_ms if request.prefer == "deadline" else None)
    simulated = Clock(networks, own_scene, concurrent, rules=rules, heat=heat, sharing=sharing).run(progress)
    unused = [(load.start_ms, f"the load on {load.processor} begins") for load in scene.loads]
    unused += [(step.start_ms, f"the speed of {step.processor} changes") for step in scene.frequencies]
    warnings += [f"{event} at {ms:g} ms, when all inferences have ended" for ms, event in unused if ms >= simulated.elapsed_ms]
    return _answer(subject, scene, request, alone_ms, simulated, heat, warnings), simulated


def _admission(networks: Sequence[Network], scene: Scene, request: SimulationRequest) -> Admission:
    rates = [(scene.arrivals, request.deadline_ms), *((workload.arrivals, workload.deadline_ms) for workload in request.workloads)]
    demands = [Demand(1e3 / arrivals.every_ms, deadline) for arrivals, deadline in rates if arrivals is not None]
    # bundles may have the same name
    named = [
        replace(network, name=network.name if not number else f"{network.name} ({number + 1})") for number, network in enumerate(networks)
    ]
    return admit(named, demands, scene.in_flight, scene.jitter, scene.seed)


def _heat(heat: Heat, simulated: SimulationResult) -> HeatAnswer:
    thermal, latencies = heat.thermal, simulated.latencies_ms
    tenth = max(1, len(latencies) // 10)
    return HeatAnswer(
        source=thermal.source,
        start_c=thermal.ambient_c,
        end_c=heat.temperature_c,
        hottest_c=heat.hottest_c,
        slowest=heat.slowest,
        changes=heat.changes,
        throttled=heat.throttled_ms / simulated.elapsed_ms,
        first_tenth_ms=float(np.median(latencies[:tenth])),
        last_tenth_ms=float(np.median(latencies[-tenth:])),
    )


def _makespan_ms(network: Network) -> float:
    """Return the latency of one inference without disturbances."""
    (makespan,) = Clock(network, Scene()).run().latencies_ms
    if not makespan:
        raise StretchError(
            f"all predicted times of {network.name} are zero, so there is nothing to simulate",
            "create the bundle again with `stretch branch`, or name a device with --device",
        )
    return makespan


def _answer(
    subject: _Subject,
    scene: Scene,
    request: SimulationRequest,
    alone_ms: Sequence[float],
    simulated: SimulationResult,
    heat: Heat | None,
    warnings: list[str],
) -> SimulateAnswer:
    device, deadline, first = subject.device, request.deadline_ms, simulated.clients[0]
    p50, p90, p99 = map(float, np.percentile(simulated.latencies_ms, (50, 90, 99)))
    ideal, efficiency, planned = (_number(subject.figures, key) for key in ("ideal_split_ms", "efficiency", "makespan_ms"))
    energy = None if device is None else EnergyModel(device).plan_mj(simulated.busy_ms, simulated.elapsed_ms)
    energy = energy if heat is None else heat.processors_mj
    return SimulateAnswer(
        bundle=subject.path,
        model=subject.model,
        device=None if device is None else device.id,
        planned_for=subject.planned_for,
        calibrated=subject.calibrated,
        source="simulated",
        runs=scene.runs,
        in_flight=scene.in_flight,
        arrivals=request.arrivals,
        busy_with_others=scene.loads,
        frequencies=scene.frequencies,
        jitter=scene.jitter,
        seed=scene.seed,
        makespan_ms=alone_ms[0],
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        elapsed_ms=simulated.elapsed_ms,
        per_second=1e3 * scene.runs / simulated.elapsed_ms,
        busy={name: BusyAnswer(ms=ms / scene.runs, share=ms / simulated.elapsed_ms) for name, ms in simulated.busy_ms.items()},
        communication_ms=simulated.communication_ms / scene.runs,
        deadline_ms=deadline,
        missed=None if deadline is None else sum(latency > deadline for latency in simulated.latencies_ms),
        ideal_split_ms=ideal,
        ideal_fraction=None if ideal is None else ideal / p50,
        efficiency=None if efficiency is None or planned is None else efficiency * planned / p50,
        plans=tuple(
            SimulatedPlan(bundle=name, makespan_ms=ms, inferences=count)
            for (name, count), ms in zip(first.ran.items(), alone_ms, strict=False)
        ),
        decisions=tuple(_decision(decision, at_ms) for at_ms, decision in first.decisions),
        beside=tuple(
            _workload(workload, ms, served)
            for workload, ms, served in zip(request.workloads, alone_ms[len(first.ran) :], simulated.clients[1:], strict=True)
        ),
        shared=request.shared or request.admit,
        admission=None,
        energy_mj=None if energy is None else energy / scene.runs,
        heat=None if heat is None else _heat(heat, simulated),
        trace=request.trace,
        warnings=warnings,
    )


def _decision(decision: PlanDecision, at_ms: float) -> DecisionAnswer:
    return DecisionAnswer(
        inference=decision.inference,
        at_ms=at_ms,
        kind=decision.kind,
        before=decision.before,
        after=decision.after,
        reason=decision.reason,
        factors=dict(decision.factors),
    )


def _workload(workload: ConcurrentWorkload, alone_ms: float, served: ClientResult) -> WorkloadAnswer:
    ended = served.latencies_ms
    p50, p90, p99 = map(float, np.percentile(ended, (50, 90, 99))) if ended else (None, None, None)
    return WorkloadAnswer(
        bundle=workload.bundle.path,
        model=workload.bundle.manifest.model.name,
        arrivals=workload.arrivals_text,
        makespan_ms=alone_ms,
        inferences=len(ended),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        deadline_ms=workload.deadline_ms,
        missed=None if workload.deadline_ms is None else sum(ms > workload.deadline_ms for ms in ended),
    )


def tracks(answer: SimulateAnswer, simulated: SimulationResult) -> dict[str, tuple[Trace, ...]]:
    """Return the groups of a timeline.

    One group has the traced inferences, at least one; the others have those of other clients,
    the plans in use with their reasons, and the load of other programs.
    """
    groups = {f"simulated on {answer.device or answer.model}": simulated.traces}
    first, last = simulated.traces[0].start_ns, max(trace.end_ns for trace in simulated.traces)
    for number, (workload, served) in enumerate(zip(answer.beside, simulated.clients[1:], strict=True), start=1):
        # an empty trace aligns the start of all groups
        groups[f"other bundle, {number}: {workload.bundle}"] = (*served.traces, Trace((), first, first))

    def clipped_span(name: str, track: str, kind: Literal["load", "plan"], start_ms: float, end_ms: float, until: int) -> list[Span]:
        start, end = (min(max(round(moment * 1e6), first), until) for moment in (start_ms, end_ms))
        return [Span(name, track, track, kind, start, end)] if start < end else []

    # decisions are few, and are shown also after the traced inferences
    end_ns = max(last, round(answer.elapsed_ms * 1e6))
    boundaries = [0.0, *(decision.at_ms for decision in answer.decisions), answer.elapsed_ms]
    names = [
        answer.decisions[0].before if answer.decisions else "",
        *(f"{decision.after}: {decision.reason}" for decision in answer.decisions),
    ]
    plans = [
        span
        for name, (start, end) in zip(names, pairwise(boundaries), strict=True)
        for span in clipped_span(name, "plan", "plan", start, end, end_ns)
    ]
    loads = [
        span
        for load in answer.busy_with_others
        for span in clipped_span(f"{load.share:g} of {load.processor}", load.processor, "load", load.start_ms, load.end_ms, last)
    ]
    if answer.decisions:
        groups["plan in use"] = (Trace(tuple(plans), first, end_ns),)
    if loads:
        groups["taken by others"] = (Trace(tuple(loads), first, last),)
    return groups


def _number(stated: Mapping[str, Any], key: str) -> float | None:
    """Return a figure of the plan if it is positive, else None."""
    value = stated.get(key)
    return float(value) if isinstance(value, int | float) and isfinite(value) and value > 0 else None
