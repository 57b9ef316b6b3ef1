"""The state machine of inferences of several clients that share queues, subgraph by subgraph; no threads, no clock, no IO.

Each inference has a machine of its own (`scheduler.runtime.machine`, one lane, no calling thread), which knows what of it may
start. What that gives a queue waits there with what others have for it, and `scheduler.runtime.turns` says whose turn it is.
The transitions are

=================================  ====================================================
event                              what follows
=================================  ====================================================
`RequestArrived`                   what the inference can start waits for its queues
`StepEvent`: it ended, or moved    its queue is free; what its inference can start now
                                   waits for queues; the end of an inference is told
`QueueReleased`: of a removed one  its queue is free
`ClientRemoved`                    nothing that waits for it will run
any                                every free queue, the one that became free first,
                                   takes its most urgent step
=================================  ====================================================

Moments are part of the events, so that the same events have the same answers, whoever's clock they are of:
`scheduler.runtime.scheduler` drives it with threads, `scheduler.simulate.clock` under a clock that is only a number.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from msgspec import structs

from scheduler.placement.place import Placement, queues_of
from scheduler.runtime.events import Fail, Finish, InputReady, Instruction, Join, Replaced, StepDone, StepFailed, StepReturned, Submit
from scheduler.runtime.machine import Machine
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.turns import PATIENCE_MS, Inference, Turns

#: Events that are kept, with what they were answered.
KEPT = 4096


@dataclass(frozen=True)
class Client:
    """Whose inferences these are."""

    plan: ExecutionPlan  # What each of them runs.
    placements: Mapping[str, Placement]  # Where each subgraph runs; every queue has a thread, whatever the placement says.
    lanes: int = 1  # How many there may be at once.
    weight: float = 1.0  # Share of a queue beside that of others.


@dataclass(frozen=True)
class RequestArrived:
    """The inputs of an inference are there."""

    client: str  # Whose it is.
    lane: int  # Which of its lanes it runs in.
    at_ms: float  # Now.
    deadline_ms: float = inf  # When it has to be over, by the same clock; infinite for never.
    priority: int = 0  # The higher the sooner.


@dataclass(frozen=True)
class StepEvent:
    """Something happened to the steps of a client."""

    client: str  # Whose they are.
    at_ms: float  # Now.
    #: As its machine hears it; a `Replaced` is for all its lanes, and for those to come.
    event: StepDone | StepFailed | StepReturned | Replaced


@dataclass(frozen=True)
class QueueReleased:
    """A queue has nothing to do any more that a client left behind who is gone."""

    queue: str  # Which.
    at_ms: float  # Now.


@dataclass(frozen=True)
class ClientRemoved:
    """A client's inferences are given up; those steps that run still hold their queues."""

    client: str  # Whose.
    at_ms: float  # Now.


SharedEvent = RequestArrived | StepEvent | QueueReleased | ClientRemoved


@dataclass(frozen=True)
class Command:
    """An instruction for whoever runs a client's inferences."""

    client: str  # Whose.
    instruction: Instruction  # A step that starts, or the end of an inference.
    place: Placement | None = None  # Where a subgraph was placed when it began to wait; None for joins and ends.


class MultiTenantMachine:
    """The state of all inferences of several clients.

    Args:
        patience_ms: As of `scheduler.runtime.turns.Turns`.
    """

    def __init__(self, clients: Mapping[str, Client], patience_ms: float = PATIENCE_MS) -> None:
        self.turns = Turns(patience_ms)
        #: What was told last, and what that was answered.
        self.events: deque[tuple[SharedEvent, tuple[Command, ...]]] = deque(maxlen=KEPT)
        self._patterns: dict[str, Machine] = {}
        self._lanes: dict[str, int] = {}
        self._queues: dict[str, tuple[str, ...]] = {}
        self._machines: dict[Inference, Machine] = {}
        #: Of each step that was asked for and has not ended the instruction and the placement that it had then.
        self._asked: dict[tuple[Inference, str], tuple[Submit | Join, Placement | None]] = {}
        for name, client in clients.items():
            self.add(name, client)

    def add(self, name: str, client: Client) -> None:
        """Have one more client, or another plan for one of whom nothing is in flight."""
        if name in self._patterns and self.in_flight(name):
            raise ValueError(f"inferences of `{name}` are in flight")
        pattern = _pattern(client)
        self.turns.add(name, client.weight)
        self._patterns[name], self._lanes[name] = pattern, client.lanes
        self._queues[name] = tuple(queues_of(pattern.placements.values()))

    def placements(self, client: str) -> Mapping[str, Placement]:
        """Where a client's subgraphs are started from now on."""
        return self._patterns[client].placements

    def in_flight(self, client: str) -> int:
        """How many inferences of a client have not ended."""
        return sum(inference[0] == client for inference in self._machines)

    def waiting(self, client: str) -> dict[str, int]:
        """Steps of a client that wait for each of its queues."""
        return {queue: sum(inference[0] == client for inference, _ in self.turns.waiting(queue)) for queue in self._queues[client]}

    def handle(self, event: SharedEvent) -> list[Command]:
        """Take in one event."""
        commands = self._handle(event)
        self.events.append((event, tuple(commands)))
        return commands

    def _handle(self, event: SharedEvent) -> list[Command]:
        match event:
            case RequestArrived(client, lane, at_ms, deadline_ms, priority):
                if not 0 <= lane < self._lanes.get(client, 0):
                    raise ValueError(f"`{client}` has no lane {lane}")
                self.turns.begin((client, lane), at_ms, deadline_ms, priority)
                machine = self._machines[client, lane] = self._patterns[client].copy()
                return self._answered((client, lane), machine.handle(InputReady(0)), None, at_ms)
            case StepEvent(client, at_ms, Replaced() as moved):
                return self._moved(client, moved, at_ms)
            case StepEvent(client, at_ms, StepDone() | StepFailed() | StepReturned() as step_event):
                inference = (client, step_event.lane)
                if inference not in self._machines or self.turns.holder(step_event.queue) != (inference, step_event.step):
                    raise ValueError(f"`{step_event.step}` of lane {step_event.lane} of `{client}` is not running on `{step_event.queue}`")
                instructions = self._machines[inference].handle(structs.replace(step_event, lane=0))
                del self._asked[inference, step_event.step]
                self.turns.leave(step_event.queue, at_ms)
                commands = self._answered(inference, instructions, step_event.queue, at_ms)
                if isinstance(step_event, StepReturned):  # the other inferences go along
                    commands += self._moved(client, Replaced(step_event.step, step_event.placement), at_ms, but=inference)
                return commands
            case QueueReleased(queue, at_ms):
                self.turns.leave(queue, at_ms)
                return self._given([queue], at_ms)
            case ClientRemoved(client, _):
                for inference in [known for known in self._machines if known[0] == client]:
                    self.turns.end(inference)
                    del self._machines[inference]
                self._asked = {key: value for key, value in self._asked.items() if key[0][0] != client}
        return []

    def _moved(self, client: str, moved: Replaced, at_ms: float, but: Inference | None = None) -> list[Command]:
        """A subgraph is placed elsewhere in all inferences of a client, and in those to come."""
        self._patterns[client].handle(moved)
        self._queues[client] = tuple(queues_of(self.placements(client).values()))
        commands: list[Command] = []
        for inference, machine in list(self._machines.items()):
            if inference[0] == client and inference != but:
                commands += self._answered(inference, machine.handle(moved), None, at_ms)
        return commands

    def _answered(self, inference: Inference, instructions: list[Instruction], freed: str | None, at_ms: float) -> list[Command]:
        """What follows from what an inference's own machine answers."""
        client, lane = inference
        queues = [] if freed is None else [freed]
        ends: list[Command] = []
        for instruction in instructions:
            if isinstance(instruction, Submit | Join):
                start = structs.replace(instruction, lane=lane)
                self._asked[inference, instruction.step] = start, self._machines[inference].placements.get(instruction.step)
                self.turns.ask(inference, instruction.step, instruction.queue)
                queues.append(instruction.queue)
            elif isinstance(instruction, Finish | Fail):
                ends.append(Command(client, structs.replace(instruction, lane=lane)))
        if ends:
            del self._machines[inference]
            self.turns.end(inference)
        return self._given(queues, at_ms) + ends

    def _given(self, queues: list[str], at_ms: float) -> list[Command]:
        """What free queues take."""
        commands = []
        for queue in dict.fromkeys(queues):
            turn = self.turns.next(queue, at_ms)
            if turn is not None:
                start, place = self._asked[turn]
                commands.append(Command(turn[0][0], start, place))
        return commands


def _pattern(client: Client) -> Machine:
    """The machine of an inference that has not begun."""
    if client.lanes < 1:
        raise ValueError("a client needs a lane")
    return Machine(client.plan, {name: replace(place, dispatch="blocking") for name, place in client.placements.items()}, caller=False)
