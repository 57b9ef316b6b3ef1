"""The plan: subgraphs and joins in order, their dependencies, and a queue per processor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from predictors.errors import StretchError
from scheduler.bundle.manifest import Manifest

Dispatch = Literal["inline", "async", "blocking"]


@dataclass(frozen=True)
class Placement:
    """Where the work of one of the device's processors is done on this machine.

    Args:
        processor: Name in the device profile, such as ``gpu``.
        delegate: Name of the delegate that runs it here.
        cores: CPU cores it uses; the thread that calls its delegate is pinned to
            the first. Empty for none.
        queue: What it shares with others is run one at a time, such as ``cpu1``.
        dispatch: ``inline``: on the calling thread; ``async``: enqueued, returns
            at once; ``blocking``: handed to a thread of its own.
        stand_in: Whether this machine lacks the processor, so that another does its work.
        reason: Why it runs there, in words.
        simulated: Whether it is simulated: its results count, its times do not.
        waits_on: Core of the thread that only waits for it; None for any, or
            where `cores` do the computing.
    """

    processor: str
    delegate: str
    cores: tuple[int, ...]
    queue: str
    dispatch: Dispatch
    stand_in: bool
    reason: str
    simulated: bool = False
    waits_on: int | None = None

    @property
    def thread_cores(self) -> tuple[int, ...]:
        """Core that the thread which calls the delegate is pinned to; empty for none."""
        return self.cores[:1] or (() if self.waits_on is None else (self.waits_on,))


@dataclass(frozen=True)
class PlannedSubgraph:
    """A subgraph and where it runs."""

    name: str
    segment: str
    file: str
    input: str
    output: str
    placement: Placement


@dataclass(frozen=True)
class PlannedJoin:
    """A meeting point: which tensors are joined, and how."""

    name: str
    segment: str
    kind: Literal["concat", "sum"]
    inputs: tuple[str, ...]
    output: str
    processor: str


@dataclass(frozen=True)
class ExecutionPlan:
    """Everything the state machine needs to know, without a file or a thread.

    Args:
        input: Tensor that the caller provides.
        output: Tensor that the caller gets.
        subgraphs: By name, in topological order.
        joins: By name, in topological order.
        readers: Subgraphs and joins that read each tensor.
        missing: How many tensors each subgraph or join reads.
        order: Position of each subgraph and join in the topological order.
        queues: Dispatch of each queue.
        placements: By processor.
    """

    input: str
    output: str
    subgraphs: Mapping[str, PlannedSubgraph]
    joins: Mapping[str, PlannedJoin]
    readers: Mapping[str, tuple[str, ...]]
    missing: Mapping[str, int]
    order: Mapping[str, int]
    queues: Mapping[str, Dispatch]
    placements: Mapping[str, Placement]


def make_plan(manifest: Manifest, placements: Mapping[str, Placement]) -> ExecutionPlan:
    """The plan of a bundle whose processors are placed on this machine.

    Args:
        manifest: The bundle's description; its steps may stand in any order.
        placements: Where each processor named by the manifest runs.

    Raises:
        StretchError: If a processor has no placement, a queue has two ways of
            dispatch, two queues are inline, or the steps depend on each other
            in a circle.
    """
    queues: dict[str, Dispatch] = {}
    subgraphs: dict[str, PlannedSubgraph] = {}
    for entry in manifest.subgraphs:
        placement = placements.get(entry.processor)
        if placement is None:
            raise StretchError(f"subgraph `{entry.name}` needs processor `{entry.processor}`, which is placed nowhere")
        if queues.setdefault(placement.queue, placement.dispatch) != placement.dispatch:
            raise StretchError(f"queue `{placement.queue}` would be both {queues[placement.queue]} and {placement.dispatch}")
        subgraphs[entry.name] = PlannedSubgraph(entry.name, entry.segment, entry.file, entry.input, entry.output, placement)
    inline = [queue for queue, dispatch in queues.items() if dispatch == "inline"]
    if len(inline) > 1:
        raise StretchError(f"queues `{inline[0]}` and `{inline[1]}` would both run on the calling thread")
    joins = {j.name: PlannedJoin(j.name, j.segment, j.kind, j.inputs, j.output, j.processor) for j in manifest.joins}

    reads = {name: (s.input,) for name, s in subgraphs.items()} | {name: j.inputs for name, j in joins.items()}
    writes = {name: s.output for name, s in subgraphs.items()} | {name: j.output for name, j in joins.items()}
    readers: dict[str, list[str]] = {}
    for name, tensors in reads.items():
        for tensor in dict.fromkeys(tensors):
            readers.setdefault(tensor, []).append(name)
    order = _topological_order(manifest.input, reads, writes)
    return ExecutionPlan(
        input=manifest.input,
        output=manifest.output,
        subgraphs={name: subgraphs[name] for name in order if name in subgraphs},
        joins={name: joins[name] for name in order if name in joins},
        readers={tensor: tuple(sorted(who, key=order.__getitem__)) for tensor, who in readers.items()},
        missing={name: len(set(tensors)) for name, tensors in reads.items()},
        order=order,
        queues=queues,
        placements=dict(placements),
    )


def _topological_order(start: str, reads: Mapping[str, tuple[str, ...]], writes: Mapping[str, str]) -> dict[str, int]:
    order: dict[str, int] = {}
    there = {start}
    left = list(reads)
    while left:
        ready = [name for name in left if all(tensor in there for tensor in reads[name])]
        if not ready:
            raise StretchError(f"`{left[0]}` waits for a tensor that nothing writes before it")
        for name in ready:
            order[name] = len(order)
            there.add(writes[name])
        left = [name for name in left if name not in order]
    return order
