"""A bundle's run on its device as the plan predicts it: the same state machine under a clock that is only a number."""

import heapq
from math import prod

from predictors.devices import DeviceProfile
from predictors.host import is_host
from predictors.predictor import LatencyPredictor
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.placement.processors import device_dispatch, host_of
from scheduler.runtime.events import Enqueue, Event, Finish, InputReady, Join, JoinDone, RunInline, SubgraphDone, Submit
from scheduler.runtime.plan import Placement, make_plan
from scheduler.runtime.state import SchedulerState
from scheduler.runtime.trace import Span, Trace

_NS = 1e6


def predicted_trace(manifest: Manifest, device: DeviceProfile) -> Trace | None:
    """The run that the planner expects, transfers as spans of their own.

    A subgraph takes its predicted time, times the profile's contention where its
    segment has several branches; before it the tensor it reads is handed to its
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
    placements = {
        entry.processor: Placement(
            entry.processor,
            device.processor(entry.processor).profile.backend,
            (),
            entry.processor,
            device_dispatch(entry.processor),
            False,
            "predicted",
        )
        for entry in manifest.subgraphs
    }
    plan = make_plan(manifest, placements)
    state = SchedulerState(plan)
    predictor = LatencyPredictor(device)
    parts = {entry.name: _parts(manifest, entry, predictor) for entry in manifest.subgraphs}
    coming: list[tuple[float, int, Event]] = []
    spans: list[Span] = []
    now = 0.0
    event: Event = InputReady()
    while True:
        for instruction in state.handle(event):
            match instruction:
                case Enqueue(name) | Submit(name) | RunInline(name):
                    at = now
                    for kind, ms in parts[name]:
                        if ms:
                            label = name if kind == "subgraph" else f"{name} {kind}"
                            place = plan.subgraphs[name].placement
                            spans.append(
                                Span(
                                    label,
                                    place.processor,
                                    place.queue,
                                    "subgraph" if kind == "subgraph" else "conversion",
                                    round(at * _NS),
                                    round((at + ms) * _NS),
                                )
                            )
                        at += ms
                    heapq.heappush(coming, (at, len(spans), SubgraphDone(name)))
                case Join(name):
                    end = now + _join_ms(manifest, name, predictor)
                    spans.append(Span(name, plan.joins[name].processor, "calling thread", "join", round(now * _NS), round(end * _NS)))
                    heapq.heappush(coming, (end, len(spans), JoinDone(name)))
                case Finish():
                    return Trace(tuple(spans), 0, round(now * _NS))
        now, _, event = heapq.heappop(coming)


def _join_ms(manifest: Manifest, name: str, predictor: LatencyPredictor) -> float:
    join = next(join for join in manifest.joins if join.name == name)
    shape = next(tensor.shape for tensor in manifest.tensors if tensor.name == join.output)
    precision = next((sub.planned_precision for sub in manifest.subgraphs if sub.processor == join.processor), None)
    return predictor.join_ms(join.kind, shape, len(join.inputs), join.processor, precision)


def _parts(manifest: Manifest, entry: SubgraphEntry, predictor: LatencyPredictor) -> tuple[tuple[str, float], ...]:
    """Transfer in, computation and transfer out of a subgraph, ms."""
    links = predictor.links
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    by_name = {sub.name: sub for sub in manifest.subgraphs}
    host = host_of(manifest)
    source, result = tensors[entry.input], tensors[entry.output]
    producer = by_name.get(source.producer)
    holder = producer.processor if producer is not None else host
    taken_back = any(reader not in by_name for reader in result.consumers)
    branches = sum(1 for sub in manifest.subgraphs if sub.segment == entry.segment)
    slower = predictor.device.processor(entry.processor).profile.contention.value if branches > 1 else 1.0
    crossing = _crossing(entry, producer)
    return (
        ("in", links.ms(holder, entry.processor, prod(source.shape), crossing)),
        ("subgraph", (entry.predicted_ms or 0.0) * slower),
        ("out", links.ms(entry.processor, host, prod(result.shape), entry.planned_precision) if taken_back else 0.0),
    )


def _crossing(entry: SubgraphEntry, producer: SubgraphEntry | None) -> str:
    """Precision of the tensor that a subgraph reads while it crosses: that of the processor that is not the CPU."""
    if is_host(entry.processor) and producer is not None:
        return producer.planned_precision
    return entry.planned_precision
