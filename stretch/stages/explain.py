"""Explanation of a bundle: the processor of each operator, the reason and the time, on this machine or predicted for a device."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from predictors.devices import DeviceProfile, Processor
from predictors.graph import OpGraph
from predictors.joins import meeting_of
from predictors.models.roofline import Origin
from predictors.predictor import Estimate, LatencyPredictor, not_measured
from scheduler.answer import PlacedProcessor
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import SubgraphEntry
from scheduler.cores import pinned
from scheduler.delegates import get_delegate
from scheduler.formats.onnx import open_onnx
from scheduler.placement.mapping import bundle_precisions, place_processors
from scheduler.progress import Progress
from stretch.export.repredict import runs_in


class PlacedOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of one operator or meeting point."""

    name: str  # Name of the operator or meeting point.
    op: str  # Kind of the operator.
    subgraph: str  # Subgraph of the operator.
    processor: str  # Processor in the design.
    delegate: str | None  # Delegate that runs it; None for a meeting point.
    reason: str  # Reason for the placement, or for the lack of a time.
    ms: float | None = None  # Time of the operator alone; None if unknown.
    source: str | None = None  # ``measured`` or ``predicted``; None without a time.


class PlacedSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a subgraph."""

    name: str  # Name of the subgraph.
    segment: str  # Segment of the subgraph.
    processor: str  # Processor in the design.
    macs: int  # Multiply-accumulates.
    planned_ms: float | None  # Predicted time of the plan.
    ms: float | None  # Sum of the operators' known times; None without any.


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of a bundle's operators on a machine; the fields are the keys of `stretch explain --json`."""

    bundle: Path  # The bundle's folder.
    device: str  # ``this machine``, or the device's id.
    processors: dict[str, PlacedProcessor]  # Delegate of each processor.
    subgraphs: list[PlacedSubgraph]  # Cost of each subgraph.
    ops: list[PlacedOperator]  # All operators, then all meeting points.
    warnings: list[str]  # Warnings for the user.


def explain_here(bundle: Bundle, mapping: Mapping[str, str], progress: Progress) -> Explanation:
    """Return the placement on this machine, with a time for each operator that its delegate can measure."""
    manifest = bundle.manifest
    used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
    placements = place_processors(used, mapping, precisions=bundle_precisions(manifest), planned=manifest.delegates)
    ops: list[PlacedOperator] = []
    for entry in manifest.subgraphs:
        place = placements[entry.processor]
        with pinned(place.cores[:1]):
            nodes = get_delegate(place.delegate).create(place.cores).node_placements_from(bundle, entry.name)
        ops += [_placed_operators(entry, node.name, node.op, place.delegate, node.reason, node.ms, "measured") for node in nodes]
        progress(entry.name)
    processors = {name: PlacedProcessor.of(place) for name, place in placements.items()}
    return _explanation(bundle, "this machine", processors, ops)


def explain_on(bundle: Bundle, profile: DeviceProfile, progress: Progress) -> Explanation:
    """Return the kernels that a device's backends launch, with predicted times."""
    predictor = LatencyPredictor(profile)
    origins: list[tuple[str, Origin]] = []
    ops: list[PlacedOperator] = []
    processors: dict[str, PlacedProcessor] = {}
    for entry in bundle.manifest.subgraphs:
        processor = profile.processor(entry.processor)
        precision = runs_in(processor, entry)
        processors[entry.processor] = _merge_processor(processors.get(entry.processor), processor, entry, profile.id, precision)
        graph = open_onnx(bundle.file(entry.file)).graph
        estimate = predictor.predict(graph, entry.processor, precision)
        origins.append((f"{entry.processor} in {precision}", estimate.origin))
        ops += _predicted_operators(graph, estimate, entry, processor.profile.backend)
        progress(entry.name)
    guessed = not_measured(profile.id, origins)
    return _explanation(bundle, profile.id, processors, ops, [guessed] if guessed else [])


def _merge_processor(
    before: PlacedProcessor | None, processor: Processor, entry: SubgraphEntry, device: str, precision: str
) -> PlacedProcessor:
    """Return a processor of the device with one more subgraph, whose reason is appended if it is new."""
    backend = processor.profile.backend
    reason = f"{backend} runs it on the {entry.processor} of {device} in {precision}{_precision_note(entry, precision)}"
    if before is None:
        return PlacedProcessor(delegate=backend, reason=reason)
    if reason in before.reason:
        return before
    return msgspec.structs.replace(before, reason=f"{before.reason}; {entry.name}: {reason}")


def _precision_note(entry: SubgraphEntry, precision: str) -> str:
    """Return a note if the predicted precision differs from the file's or the plan's; empty otherwise."""
    if precision != entry.precision:
        return f", because it does not run {entry.precision}, the precision of the file: write it in {precision} with `stretch export`"
    if precision != entry.planned_precision:
        return f", which the file is; planned was {entry.planned_precision}, which `stretch export` writes"
    return ""


def _predicted_operators(graph: OpGraph, estimate: Estimate, entry: SubgraphEntry, backend: str) -> Iterator[PlacedOperator]:
    """Yield the operators of a subgraph, each with its kernel's time or the reason why it has no separate kernel."""
    main_of = {op: kernel.name for kernel, _ in estimate.kernels for op in kernel.ops}
    # an operator that runs in parts has several kernels
    ms_of: dict[str, list[float]] = {}
    for kernel, time in estimate.kernels:
        ms_of.setdefault(kernel.name, []).append(time.ms)
    for op in graph.ops:
        if op.kind == "input":
            continue
        if op.name in ms_of:
            count = len(ms_of[op.name])
            reason = f"{'a kernel' if count == 1 else f'{count} kernels'} of {backend} in {estimate.precision}"
            yield _placed_operators(entry, op.name, op.kind, backend, reason, sum(ms_of[op.name]), "predicted")
        elif op.name in main_of:
            yield _placed_operators(entry, op.name, op.kind, backend, f"merged into `{main_of[op.name]}` by {backend}")
        else:
            yield _placed_operators(entry, op.name, op.kind, backend, f"{backend} launches nothing for it")


def _placed_operators(
    entry: SubgraphEntry, name: str, op: str, delegate: str, reason: str, ms: float | None = None, source: str | None = None
) -> PlacedOperator:
    """Return an operator of a subgraph; only a time has a source."""
    where = {"subgraph": entry.name, "processor": entry.processor, "delegate": delegate, "reason": reason}
    return PlacedOperator(name=name, op=op, **where, ms=ms, source=None if ms is None else source)


def _explanation(
    bundle: Bundle, device: str, processors: dict[str, PlacedProcessor], ops: list[PlacedOperator], warnings: Sequence[str] = ()
) -> Explanation:
    """Return the explanation, with the meeting points after the operators."""
    manifest = bundle.manifest
    meetings = [
        PlacedOperator(
            name=join.name,
            op=f"join {join.kind}",
            subgraph=join.name,
            processor=join.processor,
            delegate=None,
            reason=f"meeting point: {meeting_of(join.kind).reason}",
        )
        for join in manifest.joins
    ]
    return Explanation(
        bundle=bundle.path,
        device=device,
        processors=processors,
        subgraphs=[_subgraph(entry, ops) for entry in manifest.subgraphs],
        ops=ops + meetings,
        warnings=list(warnings),
    )


def _subgraph(entry: SubgraphEntry, ops: list[PlacedOperator]) -> PlacedSubgraph:
    times = [op.ms for op in ops if op.subgraph == entry.name and op.ms is not None]
    return PlacedSubgraph(
        name=entry.name,
        segment=entry.segment,
        processor=entry.processor,
        macs=entry.macs,
        planned_ms=entry.predicted_ms,
        ms=sum(times) if times else None,
    )
