"""Placements of work on this machine, as plain data that may change while a plan runs."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from predictors.errors import StretchError
from scheduler.bundle.manifest import SubgraphEntry
from scheduler.cores import available_cores

Dispatch = Literal["inline", "async", "blocking"]


@dataclass(frozen=True)
class Placement:
    """Placement on this machine of the work of one of the device's processors, or of one subgraph."""

    processor: str  # Name in the device profile, such as ``gpu``.
    delegate: str  # Name of the delegate that runs the work here.
    cores: tuple[int, ...]  # CPU cores used; the thread that calls the delegate is pinned to the first. Empty for none.
    queue: str  # Queue that runs one step at a time for all work placed on it, such as ``cpu1``.
    #: ``inline``: on the calling thread; ``async``: enqueued, returns at once; ``blocking``: run by a separate thread.
    dispatch: Dispatch
    stand_in: bool  # Whether this machine lacks the processor, so that another one does its work.
    reason: str  # Reason for the placement, in words.
    simulated: bool = False  # Whether the processor is simulated: its results are valid, its times are not.
    waits_on: int | None = None  # Core of the thread that only waits for the processor; None for any core, or if `cores` compute.

    @property
    def target(self) -> str:
        """Placement in the form of a mapping."""
        return self.delegate + "+".join(map(str, self.cores))

    @property
    def thread_cores(self) -> tuple[int, ...]:
        """Core to which the thread that calls the delegate is pinned; empty for none."""
        return self.cores[:1] or (() if self.waits_on is None else (self.waits_on,))


def place_subgraphs(entries: Iterable[SubgraphEntry], placements: Mapping[str, Placement]) -> dict[str, Placement]:
    """Return the placement of each subgraph, which is its processor's."""
    by_subgraph: dict[str, Placement] = {}
    for entry in entries:
        if entry.processor not in placements:
            raise StretchError(f"subgraph `{entry.name}` needs processor `{entry.processor}`, which is placed nowhere")
        by_subgraph[entry.name] = placements[entry.processor]
    queues_of(by_subgraph.values())
    return by_subgraph


def queues_of(placements: Iterable[Placement]) -> dict[str, Dispatch]:
    """Return the dispatch of each queue."""
    queues: dict[str, Dispatch] = {}
    for place in placements:
        if queues.setdefault(place.queue, place.dispatch) != place.dispatch:
            raise StretchError(f"queue `{place.queue}` would be both {queues[place.queue]} and {place.dispatch}")
    inline = [queue for queue, dispatch in queues.items() if dispatch == "inline"]
    if len(inline) > 1:
        raise StretchError(f"queues `{inline[0]}` and `{inline[1]}` would both run on the calling thread")
    return queues


def interchangeable(placements: Iterable[Placement], movable: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the queues that can do each other's work: all their work is on one movable delegate and as many cores.

    Args:
        movable: Delegates whose subgraphs may run on any thread, several at once.
    """
    kinds: dict[str, tuple[str, int] | None] = {}
    for place in placements:
        kind = (place.delegate, len(place.cores)) if place.cores and place.delegate in movable else None
        if kinds.setdefault(place.queue, kind) != kind:
            kinds[place.queue] = None
    return {
        queue: tuple(other for other, same in kinds.items() if same == kind and other != queue)
        for queue, kind in kinds.items()
        if kind is not None
    }


def fallback_placement(place: Placement, delegate_name: str, reason: str, queues: Mapping[str, Dispatch]) -> Placement:
    """Return a placement on CPU cores that replaces one whose delegate cannot run a subgraph.

    It uses the cores of the replaced placement, or this process's last core if that has none.
    """
    cores = place.cores or available_cores()[-1:]
    queue = f"cpu{'+'.join(map(str, cores))}"
    return replace(
        place,
        delegate=delegate_name,
        cores=cores,
        queue=queue,
        dispatch=queues.get(queue, "blocking"),
        stand_in=True,
        reason=f"the {place.delegate} delegate cannot run it: {reason}",
        simulated=False,
        waits_on=None,
    )
