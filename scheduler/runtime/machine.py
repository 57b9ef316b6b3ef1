"""The state machine that drives every run: Algorithm 1 of paper 003 over plans, placements, lanes and clients; no threads, no clock, no IO.

An inference of a *client* runs in one of its *lanes*, which has separate buffers; a *step* is a subgraph or join of
the client's plan; a *queue* runs one step at a time. A driver reports events and carries out the returned instructions
in order: `scheduler.runtime.executor` with threads, `scheduler.simulate.clock` with a simulated clock. The transitions
are

=================================  =======================================================
event                              result
=================================  =======================================================
`InputReady`                       the inference begins; readers of its inputs are ready
`StepDone`                         the queue is free; steps that waited for the step are ready
`StepFailed`                       the queue is free; the inference starts no more steps
`StepReturned`, `Replaced`         the subgraph gets another placement, for all its inferences
`ClientRemoved`                    its inferences are gone; queues that run them stay held
`QueueReleased`                    the queue that was held for a removed client is free
any                                each free queue takes the most urgent step that it can
                                   run; an inference without remaining steps ends
=================================  =======================================================

With a calling thread (latency, one lane), that thread is a queue, too: it runs inline subgraphs and all joins. The
other queues are started first, because they would otherwise wait until the calling thread has run its own subgraph.

===============================================  =====================
state                                            instruction
===============================================  =====================
asynchronous queue free, subgraph of it ready    `Enqueue` (line 15 to 19)
blocking queue free, subgraph of it ready        `Submit` (line 20)
calling thread free, branches of a join done     `Join` (line 6)
calling thread free, inline subgraph ready       `RunInline` (line 4)
calling thread free, all steps of the lane done  `Finish`, once
calling thread free, a step failed, nothing runs `Fail`, once
calling thread free, other steps still run       `Wait` for them (line 5)
===============================================  =====================

Without a calling thread, every queue has a thread, whatever the placement says, and any queue of a client runs its joins.
Several lanes then pipeline inferences over segments: while one waits at a meeting point, the next one's branch runs. A
free queue chooses among joins and the steps placed on it,

1. the step with the earliest deadline. If an inference without a deadline has waited for `patience_ms`, that
   moment counts as its deadline, so that none waits for ever;
2. the step with the highest priority;
3. the step of the client with the least service by the queue, divided by its weight (start-time fair queueing, Goyal
   et al. 1996, with times that are known only afterwards: two clients that always have a waiting step differ by at
   most one step each);
4. a join before a subgraph, because joins free other queues;
5. the step whose inference began first.

A queue without a step of its own helps a queue of the same kind and client. A running step is never interrupted.
Times are part of the events, so that the same events have the same answers. If events have no times, all happen at 0,
no inference runs out of patience, and deadlines count only as an order.
"""

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Mapping
from copy import copy
from dataclasses import dataclass
from dataclasses import replace as changed
from math import inf, isfinite

import msgspec

from predictors.errors import UsageError
from scheduler.placement.place import Dispatch, Placement, interchangeable, queues_of
from scheduler.runtime.plan import ExecutionPlan

#: Queue of the calling thread if no subgraph is placed on it: it joins and waits.
CALLING_THREAD = "calling thread"

#: Name of the client of a machine with a single client.
ONLY_CLIENT = ""

#: Milliseconds after which an inference without a deadline is the most urgent.
PATIENCE_MS = 1000.0


class _Data(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Plain data, tagged with its class name when serialised."""


class InputReady(_Data, frozen=True):
    """The inputs of an inference are in the buffers of its lane."""

    lane: int
    client: str = ONLY_CLIENT
    at_ms: float = 0.0  # Time of the event.
    deadline_ms: float | None = None  # Deadline on the same clock; None without a deadline.
    priority: int = 0  # Inferences of higher priority start first.


class StepDone(_Data, frozen=True):
    """A step has written its output tensors."""

    lane: int
    step: str
    queue: str
    client: str = ONLY_CLIENT
    at_ms: float = 0.0


class StepFailed(_Data, frozen=True):
    """A step raised an error; its output tensors are invalid."""

    lane: int
    step: str
    queue: str
    error: str
    client: str = ONLY_CLIENT
    at_ms: float = 0.0


class StepReturned(_Data, frozen=True):
    """A subgraph could not run at its placement and has changed only its outputs; it gets another placement from now on."""

    lane: int
    step: str
    queue: str
    placement: Placement
    client: str = ONLY_CLIENT
    at_ms: float = 0.0


class Replaced(_Data, frozen=True):
    """A subgraph gets another placement from now on; a running call of it ends first."""

    step: str
    placement: Placement
    client: str = ONLY_CLIENT
    at_ms: float = 0.0


class ClientRemoved(_Data, frozen=True):
    """A client's inferences are dropped; its running steps still hold their queues."""

    client: str
    at_ms: float = 0.0


class QueueReleased(_Data, frozen=True):
    """A queue has finished the step of a removed client."""

    queue: str
    at_ms: float = 0.0


class Start(_Data, frozen=True):
    """Run a step on a queue, which is free."""

    lane: int
    step: str
    queue: str
    client: str = ONLY_CLIENT


class Enqueue(Start, frozen=True):
    """Put a subgraph into the command queue of an asynchronous processor, which returns at once."""


class Submit(Start, frozen=True):
    """Hand a subgraph to the only thread of a queue whose call blocks."""


class RunInline(Start, frozen=True):
    """Run a subgraph on the calling thread, then report it."""


class Join(Start, frozen=True):
    """Join branch outputs on the thread of a queue, then report it."""


class Wait(_Data, frozen=True):
    """The calling thread has nothing to do until one of these steps, by queue, is reported."""

    running: dict[str, str]


class Finish(_Data, frozen=True):
    """All outputs of a lane are in their buffers; the lane is free once they have been read."""

    lane: int
    client: str = ONLY_CLIENT


class Fail(_Data, frozen=True):
    """The inference of a lane has failed, none of its steps is running, and the lane is free."""

    lane: int
    step: str
    error: str
    client: str = ONLY_CLIENT


Event = InputReady | StepDone | StepFailed | StepReturned | Replaced | ClientRemoved | QueueReleased
Instruction = Enqueue | Submit | RunInline | Join | Wait | Finish | Fail

_START_TYPES: dict[Dispatch, type[Enqueue | Submit | RunInline]] = {"async": Enqueue, "blocking": Submit, "inline": RunInline}


@dataclass
class Client:
    """A client: its plan, placements and share."""

    plan: ExecutionPlan  # Plan of the client's inferences.
    placements: Mapping[str, Placement]  # Placement of each subgraph for its next start.
    lanes: int = 1  # Maximum number of inferences at once.
    weight: float = 1.0  # A client with twice the weight gets twice the share of a contended queue.
    movable: frozenset[str] = frozenset()  # Delegates whose subgraphs may run on any queue with the delegate and equally many cores.

    def __post_init__(self) -> None:
        """Check lanes and weight, and keep only the placements of the plan's subgraphs."""
        if self.lanes < 1:
            raise ValueError("a client needs a lane")
        if not (isfinite(self.weight) and self.weight > 0):
            raise UsageError(f"a client cannot have a weight of {self.weight:g}", "a weight is a number above 0")
        self.placements = {name: self.placements[name] for name in self.plan.subgraphs if name in self.placements}
        if len(self.placements) < len(self.plan.subgraphs):
            raise ValueError("a subgraph is placed nowhere")

    def place(self, placements: Mapping[str, Placement]) -> None:
        """Set the placements of subgraphs from now on."""
        self.placements = placements
        #: Dispatch of each queue.
        self.queues = queues_of(placements.values())
        #: Queues that each queue helps.
        self.helps = interchangeable(placements.values(), self.movable) if self.movable else {}


class _Inference:
    """The remaining steps of an inference, and its urgency."""

    __slots__ = ("began_ms", "client", "deadline_ms", "failure", "lane", "missing", "number", "priority", "ready", "steps_left")

    def __init__(self, plan: ExecutionPlan, event: InputReady, number: int) -> None:
        self.client, self.lane, self.number = event.client, event.lane, number
        self.began_ms, self.priority = event.at_ms, event.priority
        self.deadline_ms = inf if event.deadline_ms is None else event.deadline_ms
        self.missing = dict(plan.missing)
        self.steps_left = len(plan.missing)
        #: Ready steps as position in the plan and name, sorted.
        self.ready: list[tuple[int, str]] = []
        self.failure: tuple[str, str] | None = None

    def copy(self) -> "_Inference":
        duplicate = copy(self)
        duplicate.missing, duplicate.ready = dict(self.missing), list(self.ready)
        return duplicate

    def key(self) -> Hashable:
        return self.client, self.lane, tuple(self.missing.values()), tuple(self.ready), self.steps_left, self.failure


class Machine:
    """The state of all inferences of all clients.

    Args:
        clients: Clients by name.
        caller: Whether the thread that reports events also works: it runs inline subgraphs and all joins.
        patience_ms: Waiting time after which an inference without a deadline is the most urgent.
    """

    def __init__(self, clients: Mapping[str, Client], *, caller: bool = False, patience_ms: float = PATIENCE_MS) -> None:
        if not patience_ms > 0:
            raise UsageError(
                f"a patience of {patience_ms:g} ms is none", "give the milliseconds that an inference may wait, more than none"
            )
        self.clients: dict[str, Client] = {}
        self._patience_ms = patience_ms
        #: Queue that the calling thread serves, or None.
        self.caller: str | None = None
        if caller:
            placements = [place for client in clients.values() for place in client.placements.values()]
            self.caller = next((place.queue for place in placements if place.dispatch == "inline"), CALLING_THREAD)
        self._inference_count = 0
        self._inferences: dict[tuple[str, int], _Inference] = {}  # in order of arrival
        #: Step that each busy queue runs, with its start; None for a removed client's step.
        self._running: dict[str, tuple[_Inference, str, float] | None] = {}
        #: For each queue, its service to each client (ms over weight), and the least of these among the clients that wanted the queue at
        #: its last choice: a client that needed nothing gets no credit for that time.
        self._service_ms: dict[str, dict[str, float]] = {}
        self._floor: dict[str, float] = {}
        for name, client in clients.items():
            self.add(name, client)

    @classmethod
    def of(
        cls, plan: ExecutionPlan, placements: Mapping[str, Placement], lanes: int = 1, *, caller: bool = True, movable: Collection[str] = ()
    ) -> "Machine":
        """Return a machine with one client."""
        return cls({ONLY_CLIENT: Client(plan, placements, lanes, movable=frozenset(movable))}, caller=caller)

    def add(self, name: str, client: Client) -> None:
        """Add a client, or replace the plan of a client with nothing in flight."""
        if self.in_flight(name):
            raise ValueError(f"inferences of `{name}` are in flight")
        self._place(client, {step: self._with_thread(place) for step, place in client.placements.items()})
        self.clients[name] = client
        self._sort_queues()

    def in_flight(self, client: str = ONLY_CLIENT) -> int:
        """Return the number of a client's inferences that have not ended."""
        return sum(owner == client for owner, _ in self._inferences)

    def waiting(self, client: str = ONLY_CLIENT) -> dict[str, int]:
        """Return the number of a client's ready subgraphs that wait for each of its queues."""
        depth = dict.fromkeys(self.clients[client].queues, 0)
        placements = self.clients[client].placements
        for inference in self._inferences.values():
            if inference.client == client:
                for _, step in inference.ready:
                    if step in placements:
                        depth[placements[step].queue] += 1
        return depth

    def is_abandoned(self, queue: str) -> bool:
        """Return whether a step of a removed client holds a queue."""
        return queue in self._running and self._running[queue] is None

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event and return the instructions."""
        match event:
            case StepDone(lane, step, queue, client, at_ms):
                inference = self._release(client, lane, step, queue, at_ms)
                inference.steps_left -= 1
                plan = self.clients[client].plan
                for tensor in plan.step(step).outputs:
                    _mark_available(inference, plan, tensor)
                return self._advance(inference, queue, at_ms)
            case InputReady(lane, client, at_ms):
                if (client, lane) in self._inferences or client not in self.clients or not 0 <= lane < self.clients[client].lanes:
                    raise ValueError(f"lane {lane}{f' of `{client}`' if client else ''} is not free")
                plan = self.clients[client].plan
                inference = self._inferences[client, lane] = _Inference(plan, event, self._inference_count)
                self._inference_count += 1
                for tensor in plan.inputs:
                    _mark_available(inference, plan, tensor)
                return self._advance(inference, None, at_ms)
            case StepFailed(lane, step, queue, error, client, at_ms):
                inference = self._release(client, lane, step, queue, at_ms)
                inference.failure = inference.failure or (step, error)
                return self._advance(inference, queue, at_ms)
            case StepReturned(lane, step, queue, placement, client, at_ms):
                inference = self._release(client, lane, step, queue, at_ms)
                self._replace(client, step, placement)
                insort(inference.ready, (self.clients[client].plan.order[step], step))
                return self._advance(inference, queue, at_ms)
            case Replaced(step, placement, client, at_ms):
                self._replace(client, step, placement)
                return self._advance(None, None, at_ms)
            case ClientRemoved(client, at_ms):
                self._inferences = {key: inference for key, inference in self._inferences.items() if key[0] != client}
                for queue, entry in self._running.items():
                    if entry is not None and entry[0].client == client:
                        self._charge(queue, client, at_ms - entry[2])
                        self._running[queue] = None
                return self._advance(None, None, at_ms)
            case QueueReleased(queue, at_ms):
                if not self.is_abandoned(queue):
                    raise ValueError(f"nothing that was left behind runs on `{queue}`")
                del self._running[queue]
                return self._advance(None, queue, at_ms)

    def copy(self) -> "Machine":
        """Return an independent copy."""
        duplicate = copy(self)
        duplicate.clients = {name: copy(client) for name, client in self.clients.items()}
        duplicate._inferences = {key: inference.copy() for key, inference in self._inferences.items()}
        duplicate._running = {
            queue: entry and (duplicate._inferences[entry[0].client, entry[0].lane], *entry[1:]) for queue, entry in self._running.items()
        }
        duplicate._service_ms, duplicate._floor = (
            {queue: dict(by_client) for queue, by_client in self._service_ms.items()},
            dict(self._floor),
        )
        return duplicate

    def key(self) -> Hashable:
        """Return a key; machines of one client with equal keys answer all future events without times equally."""
        running = tuple((queue, entry and (entry[0].lane, entry[1])) for queue, entry in self._running.items())
        placements = tuple(place for client in self.clients.values() for place in client.placements.values())
        return tuple(inference.key() for inference in self._inferences.values()), running, placements

    def _with_thread(self, place: Placement) -> Placement:
        """Return the placement adapted to this machine: without a calling thread, every queue has a thread."""
        return place if self.caller is not None or place.dispatch == "blocking" else changed(place, dispatch="blocking")

    def _replace(self, client: str, step: str, placement: Placement) -> None:
        owner = self.clients[client]
        if step not in owner.placements:
            raise ValueError(f"`{step}` is no subgraph, so it cannot be placed")
        self._place(owner, {**owner.placements, step: self._with_thread(placement)})
        self._sort_queues()

    def _place(self, client: Client, placements: Mapping[str, Placement]) -> None:
        if any(dispatch == "inline" and queue != self.caller for queue, dispatch in queues_of(placements.values()).items()):
            raise ValueError("a subgraph is placed on a calling thread that does not serve its queue")
        client.place(placements)

    def _sort_queues(self) -> None:
        queues = {queue: dispatch for client in self.clients.values() for queue, dispatch in client.queues.items()}
        # In the order in which queues are started, the calling thread last.
        ordered = [queue for kind in ("async", "blocking") for queue, dispatch in queues.items() if dispatch == kind]
        self._queues = ordered if self.caller is None else [*ordered, self.caller]
        self._helping = any(client.helps for client in self.clients.values())

    def _advance(self, inference: _Inference | None, released: str | None, at_ms: float) -> list[Instruction]:
        """Start a step on every free queue, and end the inference if it has no more steps."""
        queues = self._queues
        if self.caller is None and released is not None:
            queues = [released, *(queue for queue in queues if queue != released)]
        instructions: list[Instruction] = []
        for select in (self._own_step, self._helped_step) if self._helping else (self._own_step,):
            for queue in queues:
                step = None if queue in self._running else self._most_urgent(queue, select, at_ms)
                if step is not None:
                    instructions.append(self._start(*step, queue, at_ms))
        ended = None if inference is None else self._ended(inference)
        if ended is not None:
            instructions.append(ended)
        elif self.caller is not None and self._running and self.caller not in self._running:
            instructions.append(Wait({queue: entry[1] for queue, entry in self._running.items() if entry is not None}))
        return instructions

    def _ended(self, inference: _Inference) -> Finish | Fail | None:
        """Return the end of an inference without running or remaining steps, else None."""
        if (inference.failure is None and inference.steps_left) or any(entry and entry[0] is inference for entry in self._running.values()):
            return None
        del self._inferences[inference.client, inference.lane]
        if inference.failure is None:
            return Finish(inference.lane, inference.client)
        return Fail(inference.lane, *inference.failure, inference.client)

    def _most_urgent(self, queue: str, select: Callable[[_Inference, str], str | None], at_ms: float) -> tuple[_Inference, str] | None:
        """Return the most urgent step for a queue, or None."""
        steps = [(inference, step) for inference in self._inferences.values() if (step := select(inference, queue)) is not None]
        if not steps:
            return None
        service_ms = self._service_ms.setdefault(queue, {})
        if len(self.clients) > 1:
            floor, clients = self._floor.get(queue, 0.0), {inference.client for inference, _ in steps}
            service_ms.update({client: max(service_ms.get(client, 0.0), floor) for client in clients})
            self._floor[queue] = min(service_ms[client] for client in clients)

        def urgency(step: tuple[_Inference, str]) -> tuple[float, float, float, bool, int]:
            inference, name = step
            client, deadline, patient = self.clients[inference.client], inference.deadline_ms, inference.began_ms + self._patience_ms
            deadline = patient if deadline == inf and patient <= at_ms else deadline
            return deadline, -inference.priority, service_ms.get(inference.client, 0.0), name in client.placements, inference.number

        return steps[0] if len(steps) == 1 else min(steps, key=urgency)

    def _own_step(self, inference: _Inference, queue: str) -> str | None:
        """Return a join of an inference if the queue may run it, else a subgraph placed on the queue, or None."""
        if inference.failure is not None or not inference.ready:
            return None
        client = self.clients[inference.client]
        placements, joins, subgraph = client.placements, client.plan.joins, None
        joining = queue == self.caller if self.caller is not None else queue in client.queues
        for _, step in inference.ready:
            if step in joins:
                if joining:
                    return step
            elif subgraph is None and placements[step].queue == queue:
                subgraph = step
        return subgraph

    def _helped_step(self, inference: _Inference, queue: str) -> str | None:
        """Return a subgraph of an inference that is placed on a queue which this queue helps, or None."""
        client = self.clients[inference.client]
        if inference.failure is not None or queue not in client.helps:
            return None
        placements, helped = client.placements, client.helps[queue]
        return next((step for _, step in inference.ready if step in placements and placements[step].queue in helped), None)

    def _start(self, inference: _Inference, step: str, queue: str, at_ms: float) -> Enqueue | Submit | RunInline | Join:
        client = self.clients[inference.client]
        inference.ready.remove((client.plan.order[step], step))
        self._running[queue] = inference, step, at_ms
        start_type = Join if step in client.plan.joins else _START_TYPES[client.placements[step].dispatch]
        return start_type(inference.lane, step, queue, inference.client)

    def _release(self, client: str, lane: int, step: str, queue: str, at_ms: float) -> _Inference:
        entry, inference = self._running.get(queue), self._inferences.get((client, lane))
        if entry is None or inference is None or entry[0] is not inference or entry[1] != step:
            raise ValueError(f"`{step}` of lane {lane}{f' of `{client}`' if client else ''} is not running on `{queue}`")
        del self._running[queue]
        self._charge(queue, client, at_ms - entry[2])
        return inference

    def _charge(self, queue: str, client: str, ms: float) -> None:
        """Add the time in ms for which a queue served a client."""
        service_ms = self._service_ms[queue]
        service_ms[client] = service_ms.get(client, 0.0) + max(0.0, ms) / self.clients[client].weight


def _mark_available(inference: _Inference, plan: ExecutionPlan, tensor: str) -> None:
    """Mark a tensor as available; steps that waited only for this tensor become ready."""
    for name in plan.readers.get(tensor, ()):
        inference.missing[name] -= 1
        if not inference.missing[name]:
            insort(inference.ready, (plan.order[name], name))
