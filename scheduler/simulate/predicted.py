"""A bundle's run on its device as the plan predicts it: drives the state machine under a clock that is only a number."""

import heapq
from math import prod
from typing import Literal

from predictors.devices import DeviceProfile
from predictors.host import is_host
from predictors.predictor import LatencyPredictor
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import cut_shape
from scheduler.placement.place import Placement, place_subgraphs
from scheduler.placement.processors import device_dispatch, host_of
from scheduler.runtime.events import Event, Finish, InputReady, Join, Start, StepDone
from scheduler.runtime.machine import CALLING_THREAD, Machine
from scheduler.runtime.plan import make_plan
from scheduler.runtime.trace import Span, Trace

_NS = 1e6


def predicted_trace(manifest: Manifest, device: DeviceProfile) -> Trace | None:
    """The run that the planner expects, transfers as spans of their own.

    A subgraph takes its predicted time, times its predicted contention where its
    segment has several branches; before it the tensors it reads are handed to its
    processor, and after it what the host joins is taken back.

    Args:
        manifest: A bundle's description.
        device: The device it was planned for.

    Returns:
        The trace, its clock starting at zero; None if a subgraph has no predicted time.

    Raises:
        UnknownNameError: If the device lacks a processor of the bundle.
    """
    if any(entry.predicted_ms is None for entry in manifest.subgraphs):
        return None
    used = dict.fromkeys(entry.processor for entry in manifest.subgraphs)
    placements = {processor: _on_device(processor, device) for processor in used}
    machine = Machine(make_plan(manifest), place_subgraphs(manifest.subgraphs, placements))
    times = _Times(manifest, device)
    coming: list[tuple[float, int, Event]] = []
    spans: list[Span] = []
    now = 0.0
    event: Event = InputReady(0)
    while True:
        for instruction in machine.handle(event):
            match instruction:
                case Finish():
                    return Trace(tuple(spans), 0, round(now * _NS))
                case Start():
                    found, end = times.spans(instruction, now)
                    spans += found
                    heapq.heappush(coming, (end, len(spans), StepDone(0, instruction.step, instruction.queue)))
        now, _, event = heapq.heappop(coming)


def _on_device(processor: str, device: DeviceProfile) -> Placement:
    backend = device.processor(processor).profile.backend
    return Placement(processor, backend, (), processor, device_dispatch(processor), False, "predicted")


class _Times:
    """What each step takes on the device."""

    def __init__(self, manifest: Manifest, device: DeviceProfile) -> None:
        self._manifest = manifest
        self._predictor = LatencyPredictor(device)
        self._entries = {entry.name: entry for entry in manifest.subgraphs}
        self._joins = {join.name: join for join in manifest.joins}

    def spans(self, start: Start, now: float) -> tuple[list[Span], float]:
        """What a step leaves in the trace if it starts now, and when it ends, ms."""
        if isinstance(start, Join):
            end = now + _join_ms(self._manifest, start.step, self._predictor)
            return [_span(start.step, self._joins[start.step].processor, CALLING_THREAD, "join", now, end)], end
        entry = self._entries[start.step]
        found = []
        for kind, ms in _parts(self._manifest, entry, self._predictor):
            if ms:
                computes = kind == "subgraph"
                name = start.step if computes else f"{start.step} {kind}"
                found.append(_span(name, entry.processor, start.queue, "subgraph" if computes else "conversion", now, now + ms))
            now += ms
        return found, now


def _span(name: str, processor: str, queue: str, kind: Literal["subgraph", "join", "conversion"], start: float, end: float) -> Span:
    return Span(name, processor, queue, kind, round(start * _NS), round(end * _NS))


def _join_ms(manifest: Manifest, name: str, predictor: LatencyPredictor) -> float:
    join = next(join for join in manifest.joins if join.name == name)
    shape = next(tensor.shape for tensor in manifest.tensors if tensor.name == join.output)
    precision = next((sub.planned_precision for sub in manifest.subgraphs if sub.processor == join.processor), None)
    return predictor.join_ms(join.kind, shape, len(join.inputs), join.processor, precision)


def _parts(manifest: Manifest, entry: SubgraphEntry, predictor: LatencyPredictor) -> tuple[tuple[str, float], ...]:
    """Transfers in, computation and transfers out of a subgraph, ms."""
    links = predictor.links
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    by_name = {sub.name: sub for sub in manifest.subgraphs}
    host = host_of(manifest)
    arriving = leaving = 0.0
    for name in entry.inputs:
        producer = by_name.get(tensors[name].producer)
        holder = producer.processor if producer is not None else host
        shape = cut_shape(tensors[name].shape, entry.rows.get(name), tensors[name].layout)
        arriving += links.ms(holder, entry.processor, prod(shape), _crossing(entry, producer))
    for name in entry.outputs:
        if any(reader not in by_name for reader in tensors[name].consumers):
            leaving += links.ms(entry.processor, host, prod(tensors[name].shape), entry.planned_precision)
    branches = sum(1 for sub in manifest.subgraphs if sub.segment == entry.segment)
    slower = entry.contention if branches > 1 else 1.0
    return (("in", arriving), ("subgraph", (entry.predicted_ms or 0.0) * slower), ("out", leaving))


def _crossing(entry: SubgraphEntry, producer: SubgraphEntry | None) -> str:
    """Precision of a tensor that a subgraph reads while it crosses: that of the processor that is not the CPU."""
    if is_host(entry.processor) and producer is not None:
        return producer.planned_precision
    return entry.planned_precision
