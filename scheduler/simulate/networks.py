"""Input of a simulation: a plan, the placement of its steps, and the time of each step.

For a bundle these are exchanges, computing and joins, from its plan or predicted by its device's profile; for a table
they are its rows. A step of a table waits for the steps in its column `needs` and for its processor, which runs the first
ready step in the order of the table; no step is interrupted. Without a device, transfers are steps of the table like any
other. With a device, a result that another processor needs is moved over the device's links. Reading back from a GPU or
DSP goes through that processor's own queue, directly after the step: it waits for the running step and delays the next
one. Writing is part of the step that reads the result. The times of the table are then those of each step alone:
processors that compute at the same time are slower by the profile's contention.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import StretchError
from predictors.faults import nearest
from predictors.host import HOST, host_among, is_host, kind_of
from predictors.measurements.tables import MAX_MS, numbered_rows
from predictors.predictor import KernelsTime, LatencyPredictor
from predictors.side_by_side import ContentionFactors, EndedWork, ProcessorWork, Shares, contention_factors, end_times, worst_slowdown
from scheduler.adapt.policy import Alternative
from scheduler.adapt.policy import PlannedWork as PlannedWork
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import cut_shape
from scheduler.formats.onnx import open_onnx
from scheduler.placement.mapping import device_dispatch
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.runtime.machine import CALLING_THREAD
from scheduler.runtime.plan import ExecutionPlan, PlannedSubgraph, build_plan

#: Activity in a part of a step: an inference begins, a tensor is transferred, a subgraph computed, its output read back, branches
#: joined.
Activity = Literal["start", "in", "subgraph", "out", "join"]


@dataclass(frozen=True)
class StepTime:
    """Time of a step if only the other branches of its segment run at the same time."""

    processor: str  # Processor of the device that the step occupies.
    parts: tuple[tuple[Activity, float], ...]  # Activities in order with the time of each, ms; at least one.
    contention: ContentionFactors = field(
        default_factory=dict
    )  # Factors on the step's computing time while other inferences compute on other processors.
    #: Whether steps of the same inference count as well; the predicted times of a plan's branches already contain them.
    overlaps_own_inference: bool = False
    feeder: float = 0.0  # Share of the CPU taken by the thread that feeds the processor while it computes.

    @classmethod
    def of(
        cls,
        processor: str,
        in_ms: float,
        ms: float,
        out_ms: float,
        contention: ContentionFactors | None = None,
        feeder: float = 0.0,
        start_ms: float = 0.0,
    ) -> "StepTime":
        """Return a subgraph's time with its transfers and the start of an inference, without parts that take no time."""
        parts: tuple[tuple[Activity, float], ...] = (("start", start_ms), ("in", in_ms), ("subgraph", ms), ("out", out_ms))
        return cls(processor, tuple(part for part in parts if part[1]) or (("subgraph", 0.0),), contention or {}, feeder=feeder)


def device_placements(manifest: Manifest, device: DeviceProfile) -> dict[str, Placement]:
    """Return the placement of each subgraph on the device: one queue per processor."""
    used = dict.fromkeys(entry.processor for entry in manifest.subgraphs)
    return place_subgraphs(manifest.subgraphs, {processor: device_placement(processor, device) for processor in used})


def device_placement(processor: str, device: DeviceProfile) -> Placement:
    """Return the placement of a processor on its own device."""
    backend = device.processor(processor).profile.backend
    return Placement(processor, backend, (), processor, device_dispatch(processor), False, "predicted")


def step_times(manifest: Manifest, device: DeviceProfile, *, concurrent: bool = False) -> dict[str, StepTime]:
    """Return the time of each step of a bundle; all its subgraphs must have a predicted time.

    A subgraph takes its predicted time, and longer while other branches of its segment
    compute; before it, its inputs are transferred to its processor, and after it, the
    inputs of joins on the host are read back.

    Args:
        concurrent: Whether other inferences compute at the same time. They change the speed of subgraphs that are whole segments;
            predicted times of branches already contain contention.
    """
    predictor = LatencyPredictor(device)
    times = {}
    home, host = _home_processor(manifest), _host(manifest)
    transfers = {entry.name: _transfer_ms(manifest, entry, predictor, home) for entry in manifest.subgraphs}
    starts = _start_ms(manifest, predictor, home)
    computing = computing_beside(manifest, {name: arriving for name, (arriving, _) in transfers.items()}, device)
    for entry in manifest.subgraphs:
        arriving, leaving = transfers[entry.name]
        is_whole_segment = concurrent and _branch_count(manifest, entry) == 1
        slowdowns = (
            contention_factors(device, entry.processor, Shares(*entry.contended_shares), device.processors) if is_whole_segment else None
        )
        ms, start_ms = computing[entry.name].ms, starts.get(entry.name, 0.0)
        times[entry.name] = StepTime.of(entry.processor, arriving, ms, leaving, slowdowns, device.feeder(entry.processor), start_ms)
    for join in manifest.joins:
        times[join.name] = StepTime(host, (("join", _join_ms(manifest, join.name, host, predictor)),))
    return times


def with_predicted_times(bundle: Bundle, device: DeviceProfile, *, repredict: bool = False) -> Manifest:
    """Return the manifest with a time for each subgraph: the plan's, else the profile's prediction for the subgraph's file."""
    entries = []
    for entry in bundle.manifest.subgraphs:
        if entry.predicted_ms is None or repredict:
            time = _predict_by_profile(bundle, entry, device)
            entry = msgspec.structs.replace(entry, predicted_ms=time.ms, contended_shares=tuple(time.shares))
        entries.append(entry)
    return msgspec.structs.replace(bundle.manifest, subgraphs=tuple(entries))


def _branch_count(manifest: Manifest, entry: SubgraphEntry) -> int:
    """Return the number of processors that run the subgraph's segment."""
    return len({other.processor for other in manifest.subgraphs if other.segment == entry.segment})


def _predict_by_profile(bundle: Bundle, entry: SubgraphEntry, device: DeviceProfile) -> KernelsTime:
    """Return the predicted time of a subgraph's file."""
    processor = device.processor(entry.processor)
    precision = entry.planned_precision if entry.planned_precision in processor.precisions else processor.default_precision
    return LatencyPredictor(device).predict(open_onnx(bundle.file(entry.file)).graph, entry.processor, precision).computing


def _host(manifest: Manifest) -> str:
    """Return the processor of joins, inputs and outputs: the CPU, even if no subgraph runs on it."""
    return host_among(entry.processor for entry in manifest.subgraphs) or HOST


def _home_processor(manifest: Manifest) -> str:
    """Return the processor on which an inference begins and ends: the host, or the only processor of a chain of subgraphs."""
    names = {entry.processor for entry in manifest.subgraphs}
    chain = len({entry.segment for entry in manifest.subgraphs}) == len(manifest.subgraphs)
    return names.pop() if len(names) == 1 and chain else _host(manifest)


def _start_ms(manifest: Manifest, predictor: LatencyPredictor, home: str) -> dict[str, float]:
    """Return the additional time in ms of an inference, by the first subgraph of each processor that reads an input."""
    tensors, processor = {tensor.name: tensor for tensor in manifest.tensors}, predictor.device.processor(home)
    precisions = (entry.planned_precision for entry in manifest.subgraphs if entry.processor == home)
    precision = next((precision for precision in precisions if precision in processor.precisions), None)
    moved = ([prod(tensors[name].shape) for name in names] for names in (manifest.inputs, manifest.outputs))
    ms = predictor.handover(home, precision, *moved).ms
    first: dict[str, str] = {}
    for entry in manifest.subgraphs:
        if all(tensors[name].producer == "input" for name in entry.inputs):
            first.setdefault(entry.processor, entry.name)
    return dict.fromkeys(first.values(), ms)


def _join_ms(manifest: Manifest, name: str, host: str, predictor: LatencyPredictor) -> float:
    join = next(join for join in manifest.joins if join.name == name)
    shape = next(tensor.shape for tensor in manifest.tensors if tensor.name == join.output)
    precision = next((sub.planned_precision for sub in manifest.subgraphs if sub.processor == host), None)
    return predictor.join_ms(join.kind, shape, len(join.inputs), host, precision)


def computing_beside(manifest: Manifest, starts: Mapping[str, float], device: DeviceProfile) -> dict[str, EndedWork]:
    """Return the computing time of each subgraph, and its overlap with other branches of the segment, ms.

    Args:
        starts: Start of each subgraph's computing, from the start of its segment, ms.
    """
    computing: dict[str, EndedWork] = {}
    segments: dict[str, list[SubgraphEntry]] = {}
    for entry in manifest.subgraphs:
        segments.setdefault(entry.segment, []).append(entry)
    for entries in segments.values():
        processors = {entry.processor for entry in entries}
        written = {name for entry in entries for name in entry.outputs}
        works = []
        for entry in entries:
            contention = contention_factors(device, entry.processor, Shares(*entry.contended_shares), processors)
            works.append(ProcessorWork(entry.processor, starts[entry.name], _stated(entry), contention, device.feeder(entry.processor)))
        if len(processors) == len(entries) and not any(written.intersection(entry.inputs) for entry in entries):
            computing |= {e.name: end._replace(ms=end.ms - starts[e.name]) for e, end in zip(entries, end_times(works), strict=True)}
        else:
            # portions wait for each other
            for entry in entries:
                others = processors - {entry.processor}
                ms = _stated(entry) * Shares(*entry.contended_shares).time_factor(worst_slowdown(device, entry.processor, others))
                computing[entry.name] = EndedWork(ms, dict.fromkeys(map(kind_of, others), ms))
    return computing


def _stated(entry: SubgraphEntry) -> float:
    """Return the predicted time of a subgraph alone, ms."""
    if entry.predicted_ms is None:
        raise ValueError(f"`{entry.name}` has no predicted time")
    return entry.predicted_ms


def _transfer_ms(manifest: Manifest, entry: SubgraphEntry, predictor: LatencyPredictor, home: str) -> tuple[float, float]:
    """Return the times of transfers into and out of a subgraph, ms; the network's inputs and outputs are on `home`."""
    links = predictor.links
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    by_name = {sub.name: sub for sub in manifest.subgraphs}
    arriving = leaving = 0.0
    for name in entry.inputs:
        producer = by_name.get(tensors[name].producer)
        holder = producer.processor if producer is not None else home
        shape = cut_shape(tensors[name].shape, entry.rows.get(name), tensors[name].layout)
        # the transfer has the precision of the processor that is not the CPU
        precision = producer.planned_precision if is_host(entry.processor) and producer is not None else entry.planned_precision
        arriving += links.ms(holder, entry.processor, prod(shape), precision)
    for name in entry.outputs:
        if any(reader not in by_name for reader in tensors[name].consumers):
            leaving += links.ms(entry.processor, home, prod(tensors[name].shape), entry.planned_precision)
    return arriving, leaving


@dataclass(frozen=True)
class Network:
    """A bundle or a table in the form that a simulation runs."""

    name: str  # Unique in a simulation.
    plan: ExecutionPlan  # Steps of each inference.
    placements: Mapping[str, Placement]  # Placement of each subgraph.
    times: Mapping[str, StepTime]  # Time of each step.
    #: Additional power in watts of each processor while it computes, for a policy that considers energy.
    watts: Mapping[str, float] = field(default_factory=dict)


def alternative_of(network: Network) -> Alternative:
    """Return the network as an alternative of the policy that chooses the plan of the next inference."""
    plan, placements = network.plan, network.placements
    inline = next((place.queue for place in placements.values() if place.dispatch == "inline"), CALLING_THREAD)
    work = []
    for name in plan.order:
        time = network.times[name]
        # other work on the host slows its joins down as it does its subgraphs
        computing = sum(ms for activity, ms in time.parts if activity in ("subgraph", "join"))
        queue = placements[name].queue if name in placements else inline
        work.append(
            PlannedWork(name, time.processor, queue, computing, sum(ms for _, ms in time.parts) - computing, plan.predecessors(name))
        )
    return Alternative(network.name, tuple(work), network.watts)


#: Maximum number of steps of a table.
MAX_STEPS = 10_000

#: The tensor read by steps that need no other step.
_INPUT = "(input)"

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class TableStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a table of steps; the fields are its columns."""

    name: _Name  # Unique in the table.
    processor: _Name  # Processor that the step occupies, such as ``gpu`` or ``cpu[1large]``.
    ms: Annotated[float, msgspec.Meta(gt=0, le=MAX_MS)]  # Duration, ms.
    needs: str = ""  # Names of the steps that must end before it starts, separated by spaces or ``;``.
    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None  # Size of its result in bytes, for transfers to other processors.

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Steps that this step waits for."""
        return tuple(dict.fromkeys(self.needs.replace(";", " ").split()))


@dataclass(frozen=True)
class StepTable:
    """A checked table of steps."""

    path: Path  # File of the table.
    steps: tuple[TableStep, ...]  # Steps in the order of the file.

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of the processors, in order of first use."""
        return tuple(dict.fromkeys(step.processor for step in self.steps))


def read_steps(path: Path) -> StepTable:
    """Read a table of steps.

    Args:
        path: CSV file with the columns `name`, `processor`, `ms`, and optionally `needs` and `bytes`.
    """
    steps: list[TableStep] = []
    lines: dict[str, int] = {}
    for line, step in numbered_rows(path, TableStep):
        if ";" in step.name or len(step.name.split()) != 1:
            raise StretchError(f"{path}, line {line}: the name `{step.name}` has a space or a `;`, which separate names", "write `_` there")
        if step.name in lines:
            raise StretchError(f"{path}, line {line}: the step `{step.name}` is in line {lines[step.name]} already", "rename one")
        if len(steps) == MAX_STEPS:
            raise StretchError(f"{path} has more than {MAX_STEPS} steps", "merge steps that follow each other on one processor")
        lines[step.name] = line
        steps.append(step)
    if not steps:
        raise StretchError(f"{path} has a header and no step")
    for step in steps:
        for name in step.dependencies:
            if name not in lines:
                problem = f"{path}, line {lines[step.name]}: `{step.name}` needs `{name}`, which is no step of the table"
                raise StretchError(problem, nearest(name, lines))
    try:
        TopologicalSorter({step.name: step.dependencies for step in steps}).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]
        first = min(range(len(cycle) - 1), key=lambda i: lines[cycle[i]])
        cycle_text = " needs ".join(f"`{name}`" for name in (*cycle[first:-1], *cycle[: first + 1]))
        raise StretchError(
            f"{path}, line {lines[cycle[first]]}: steps wait for each other: {cycle_text}", "take one of these needs out"
        ) from error
    return StepTable(path, tuple(steps))


def steps_without_bytes(table: StepTable) -> tuple[str, ...]:
    """Return the names of steps without stated size whose result another kind of processor needs."""
    kinds = {step.name: kind_of(step.processor) for step in table.steps}
    unsized = {step.name for step in table.steps if step.bytes is None}
    crossing = {name for step in table.steps for name in step.dependencies if kinds[name] != kinds[step.name]}
    return tuple(name for name in kinds if name in unsized & crossing)


def network_of_steps(table: StepTable, device: DeviceProfile | None) -> Network:
    """Return the table in the form that a simulation runs.

    Args:
        device: Provides links, contention and power; None for the times of the table alone.
    """
    needed = {name for step in table.steps for name in step.dependencies}
    outputs = tuple(step.name for step in table.steps if step.name not in needed)
    planned = [PlannedSubgraph(s.name, s.name, "", s.processor, s.dependencies or (_INPUT,), (s.name,)) for s in table.steps]
    plan = build_plan((_INPUT,), outputs, planned, ())
    placements = {name: Placement(name, "table", (), name, "blocking", False, "stated by the table") for name in table.processors}
    times = {step.name: StepTime(step.processor, (("subgraph", step.ms),)) for step in table.steps}
    watts = {}
    if device is not None:
        times = _times_on_device(table, device)
        powers = {name: EnergyModel(device).mj(name, 1.0) for name in table.processors}
        watts = {name: power for name, power in powers.items() if power is not None}
    return Network(table.path.stem, plan, {step.name: placements[step.processor] for step in table.steps}, times, watts)


def _times_on_device(table: StepTable, device: DeviceProfile) -> dict[str, StepTime]:
    """Return the transfers and computing of each step, by the links and the contention of a device."""
    links, by_name = LatencyPredictor(device).links, {step.name: step for step in table.steps}
    families = {step.name: device.processor(step.processor).family for step in table.steps}
    readers: dict[str, set[str]] = {}
    for step in table.steps:
        for name in step.dependencies:
            readers.setdefault(name, set()).add(families[step.name])
    times = {}
    for step in table.steps:
        family = families[step.name]
        into = back = 0.0
        for name in step.dependencies:
            moved = links.parts_of_bytes(families[name], family, by_name[name].bytes or 0)
            into += sum(ms for end, ms in moved.items() if end != families[name])
        for reader in readers.get(step.name, ()):
            # read back once for all readers
            back = max(back, links.parts_of_bytes(family, reader, step.bytes or 0).get(family, 0.0))
        contention = contention_factors(device, step.processor, Shares(arithmetic=1.0), device.processors)
        time = StepTime.of(step.processor, into, step.ms, back, contention, device.feeder(step.processor))
        times[step.name] = replace(time, overlaps_own_inference=True)
    return times
