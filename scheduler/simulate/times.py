"""What each step of a bundle takes on its device: exchanges, computing and joins, as the bundle's plan states them or its device's profile predicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import msgspec

from predictors.devices import DeviceProfile
from predictors.host import HOST, host_among, is_host
from predictors.predictor import LatencyPredictor
from predictors.side_by_side import Work, ends
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import cut_shape
from scheduler.formats.onnx import open_onnx
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.placement.processors import device_dispatch

#: What goes on in a part of a step: a tensor is handed over, a subgraph computed, its output taken back, branches joined.
Doing = Literal["in", "subgraph", "out", "join"]


@dataclass(frozen=True)
class StepTime:
    """What a step takes, alone but for the other branches of its segment."""

    processor: str  # Processor of the device that is occupied.
    parts: tuple[tuple[Doing, float], ...]  # What it does one after the other, and how long each takes, ms; at least one.
    contention: float = 1.0  # Factor on its computing time while another inference computes on another processor.
    within: bool = False  # Whether steps of its own inference count as well; the time of a plan's branches contains them already.
    feeder: float = 0.0  # Share of the CPU that the thread takes which feeds the processor while it computes.


def device_placements(manifest: Manifest, device: DeviceProfile) -> dict[str, Placement]:
    """Where each subgraph runs on the device: a queue for each processor."""
    used = dict.fromkeys(entry.processor for entry in manifest.subgraphs)
    return place_subgraphs(manifest.subgraphs, {processor: _on_device(processor, device) for processor in used})


def step_times(manifest: Manifest, device: DeviceProfile, contention: Mapping[str, float] | None = None) -> dict[str, StepTime]:
    """The time of each step of a bundle all of whose subgraphs have a predicted time.

    A subgraph takes its predicted time, and longer while other branches of its segment
    compute; before it the tensors it reads are handed to its processor, and after it
    what the host joins is taken back.
    """
    predictor = LatencyPredictor(device)
    times = {}
    moved = {entry.name: _moved(manifest, entry, predictor) for entry in manifest.subgraphs}
    computing = _computing(manifest, {name: arriving for name, (arriving, _) in moved.items()}, device)
    for entry in manifest.subgraphs:
        arriving, leaving = moved[entry.name]
        doing: tuple[tuple[Doing, float], ...] = (("in", arriving), ("subgraph", computing[entry.name]), ("out", leaving))
        parts = tuple(part for part in doing if part[1]) or (("subgraph", 0.0),)
        slower = (contention or {}).get(entry.name, 1.0)
        times[entry.name] = StepTime(entry.processor, parts, slower, feeder=device.feeder(entry.processor))
    host = _host(manifest)
    for join in manifest.joins:
        times[join.name] = StepTime(host, (("join", _join_ms(manifest, join.name, host, predictor)),))
    return times


def with_times(bundle: Bundle, device: DeviceProfile, *, anew: bool = False) -> Manifest:
    """The bundle's description with a time for each subgraph: the plan's, or where it has none, that of the file by the profile."""
    entries = []
    for entry in bundle.manifest.subgraphs:
        if entry.predicted_ms is None or anew:
            ms, slower = _by_profile(bundle, entry, device)
            entry = msgspec.structs.replace(entry, predicted_ms=ms, contention=slower)
        entries.append(entry)
    return msgspec.structs.replace(bundle.manifest, subgraphs=tuple(entries))


def contention_factors(bundle: Bundle, device: DeviceProfile) -> dict[str, float]:
    """Contention factors of the profile for subgraphs that are whole segments; predicted times of branches contain contention already."""
    entries = bundle.manifest.subgraphs
    return {entry.name: _by_profile(bundle, entry, device)[1] for entry in entries if _branches(bundle.manifest, entry) == 1}


def _on_device(processor: str, device: DeviceProfile) -> Placement:
    backend = device.processor(processor).profile.backend
    return Placement(processor, backend, (), processor, device_dispatch(processor), False, "predicted")


def _branches(manifest: Manifest, entry: SubgraphEntry) -> int:
    """On how many processors its segment runs."""
    return len({other.processor for other in manifest.subgraphs if other.segment == entry.segment})


def _by_profile(bundle: Bundle, entry: SubgraphEntry, device: DeviceProfile) -> tuple[float, float]:
    """Time of a subgraph's file, ms, and the factor on it while other processors compute."""
    processor = device.processor(entry.processor)
    precision = entry.planned_precision if entry.planned_precision in processor.precisions else processor.default_precision
    estimate = LatencyPredictor(device).predict(open_onnx(bundle.file(entry.file)).graph, entry.processor, precision)
    return estimate.computing_ms, estimate.contention


def _host(manifest: Manifest) -> str:
    """The processor that joins, and that has the inputs and gets the outputs: the CPU, also where no subgraph runs on it."""
    return host_among(entry.processor for entry in manifest.subgraphs) or HOST


def _join_ms(manifest: Manifest, name: str, host: str, predictor: LatencyPredictor) -> float:
    join = next(join for join in manifest.joins if join.name == name)
    shape = next(tensor.shape for tensor in manifest.tensors if tensor.name == join.output)
    precision = next((sub.planned_precision for sub in manifest.subgraphs if sub.processor == host), None)
    return predictor.join_ms(join.kind, shape, len(join.inputs), host, precision)


def _computing(manifest: Manifest, starts: Mapping[str, float], device: DeviceProfile) -> dict[str, float]:
    """How long each subgraph computes beside the other branches of its segment, ms.

    Args:
        starts: When each computes, from the start of its segment: once what it reads has arrived.
    """
    found: dict[str, float] = {}
    segments: dict[str, list[SubgraphEntry]] = {}
    for entry in manifest.subgraphs:
        segments.setdefault(entry.segment, []).append(entry)
    for entries in segments.values():
        processors = {entry.processor for entry in entries}
        written = {name for entry in entries for name in entry.outputs}
        works = [
            Work(entry.processor, starts[entry.name], _stated(entry), entry.contention, device.feeder(entry.processor)) for entry in entries
        ]
        if len(processors) == len(entries) and not any(written.intersection(entry.inputs) for entry in entries):
            found |= {entry.name: end - starts[entry.name] for entry, end in zip(entries, ends(works), strict=True)}
        else:
            # portions wait for each other: contention counts all the time
            slower = {entry.name: entry.contention if len(processors) > 1 else 1.0 for entry in entries}
            found |= {entry.name: _stated(entry) * slower[entry.name] for entry in entries}
    return found


def _stated(entry: SubgraphEntry) -> float:
    """Time of a subgraph alone, ms."""
    if entry.predicted_ms is None:
        raise ValueError(f"`{entry.name}` has no predicted time")
    return entry.predicted_ms


def _moved(manifest: Manifest, entry: SubgraphEntry, predictor: LatencyPredictor) -> tuple[float, float]:
    """Transfers into and out of a subgraph, ms."""
    links = predictor.links
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    by_name = {sub.name: sub for sub in manifest.subgraphs}
    host = _host(manifest)
    arriving = leaving = 0.0
    for name in entry.inputs:
        producer = by_name.get(tensors[name].producer)
        holder = producer.processor if producer is not None else host
        shape = cut_shape(tensors[name].shape, entry.rows.get(name), tensors[name].layout)
        arriving += links.ms(holder, entry.processor, prod(shape), _crossing(entry, producer))
    for name in entry.outputs:
        if any(reader not in by_name for reader in tensors[name].consumers):
            leaving += links.ms(entry.processor, host, prod(tensors[name].shape), entry.planned_precision)
    return arriving, leaving


def _crossing(entry: SubgraphEntry, producer: SubgraphEntry | None) -> str:
    """Precision of a tensor that a subgraph reads while it crosses: that of the processor that is not the CPU."""
    if is_host(entry.processor) and producer is not None:
        return producer.planned_precision
    return entry.planned_precision
