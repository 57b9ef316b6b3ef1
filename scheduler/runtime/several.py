"""The state machine of inferences of several users that share queues, subgraph by subgraph; no threads, no clock, no IO.

Each inference has a machine of its own (`scheduler.runtime.machine`, one lane, no calling thread), which knows what of it may
start. What that gives a queue waits there with what others have for it, and `scheduler.runtime.turns` says whose turn it is.
The transitions are

=======================================  =================================================
event                                    what follows
=======================================  =================================================
`Begins`: an inference begins            what it can start waits for its queues
`Told`: a step ended, or was moved       its queue is free; what its inference can start now
                                         waits for queues; the end of an inference is told
`Left`: a step of somebody who is gone   its queue is free
`Gone`: a user is                        nothing that waits for it will run
any                                      every free queue, the one that became free first,
                                         takes its most urgent step
=======================================  =================================================

Moments are part of the events, so that the same events have the same answers, whoever's clock they are of:
`scheduler.runtime.scheduler` drives it with threads, `scheduler.simulate.clock` under a clock that is only a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from scheduler.placement.place import Placement, queues_of
from scheduler.runtime.events import Fail, Finish, InputReady, Instruction, Join, Replaced, StepDone, StepFailed, StepReturned, Submit
from scheduler.runtime.machine import Machine
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.turns import PATIENCE_MS, Inference, Turns


@dataclass(frozen=True)
class User:
    """Whose inferences these are."""

    plan: ExecutionPlan  # What each of them runs.
    placements: Mapping[str, Placement]  # Where each subgraph runs; every queue has a thread, whatever the placement says.
    lanes: int = 1  # How many there may be at once.
    weight: float = 1.0  # Share of a queue beside that of others.


@dataclass(frozen=True)
class Begins:
    """The inputs of an inference are there."""

    user: str  # Whose it is.
    lane: int  # Which of its lanes it runs in.
    at_ms: float  # Now.
    deadline_ms: float = inf  # When it has to be over, by the same clock; infinite for never.
    priority: int = 0  # The higher the sooner.


@dataclass(frozen=True)
class Told:
    """Something happened to the steps of a user."""

    user: str  # Whose they are.
    at_ms: float  # Now.
    #: As its machine hears it; a `Replaced` is for all its lanes, and for those to come.
    event: StepDone | StepFailed | StepReturned | Replaced


@dataclass(frozen=True)
class Left:
    """A queue has nothing to do any more that a user left behind who is gone."""

    queue: str  # Which.
    at_ms: float  # Now.


@dataclass(frozen=True)
class Gone:
    """A user's inferences are given up; those steps that run still hold their queues."""

    user: str  # Whose.
    at_ms: float  # Now.


SharedEvent = Begins | Told | Left | Gone


@dataclass(frozen=True)
class Go:
    """An instruction for whoever runs a user's inferences."""

    user: str  # Whose.
    instruction: Instruction  # A step that starts, or the end of an inference.
    place: Placement | None = None  # Where a subgraph was placed when it began to wait; None for joins and ends.


class Several:
    """The state of all inferences of several users.

    Args:
        patience_ms: As of `scheduler.runtime.turns.Turns`.
    """

    def __init__(self, users: Mapping[str, User], patience_ms: float = PATIENCE_MS) -> None:
        self.turns = Turns(patience_ms)
        self._patterns: dict[str, Machine] = {}
        self._lanes: dict[str, int] = {}
        self._queues: dict[str, tuple[str, ...]] = {}
        self._machines: dict[Inference, Machine] = {}
        #: Of each step that was asked for and has not ended the instruction and the placement that it had then.
        self._asked: dict[tuple[Inference, str], tuple[Submit | Join, Placement | None]] = {}
        for name, user in users.items():
            self.add(name, user)

    def add(self, name: str, user: User) -> None:
        """Have one more user, or another plan for one of whom nothing is in flight."""
        if name in self._patterns and self.in_flight(name):
            raise ValueError(f"inferences of `{name}` are in flight")
        pattern = _pattern(user)
        self.turns.add(name, user.weight)
        self._patterns[name], self._lanes[name] = pattern, user.lanes
        self._queues[name] = tuple(queues_of(pattern.placements.values()))

    def placements(self, user: str) -> Mapping[str, Placement]:
        """Where a user's subgraphs are started from now on."""
        return self._patterns[user].placements

    def in_flight(self, user: str) -> int:
        """How many inferences of a user have not ended."""
        return sum(inference[0] == user for inference in self._machines)

    def waiting(self, user: str) -> dict[str, int]:
        """Steps of a user that wait for each of its queues."""
        return {queue: sum(inference[0] == user for inference, _ in self.turns.waiting(queue)) for queue in self._queues[user]}

    def handle(self, event: SharedEvent) -> list[Go]:
        """Take in one event."""
        match event:
            case Begins(user, lane, at_ms, deadline_ms, priority):
                if not 0 <= lane < self._lanes.get(user, 0):
                    raise ValueError(f"`{user}` has no lane {lane}")
                self.turns.begin((user, lane), at_ms, deadline_ms, priority)
                machine = self._machines[user, lane] = self._patterns[user].copy()
                return self._answered((user, lane), machine.handle(InputReady(0)), None, at_ms)
            case Told(user, at_ms, Replaced() as moved):
                return self._moved(user, moved, at_ms)
            case Told(user, at_ms, StepDone() | StepFailed() | StepReturned() as told):
                inference = (user, told.lane)
                if inference not in self._machines or self.turns.holder(told.queue) != (inference, told.step):
                    raise ValueError(f"`{told.step}` of lane {told.lane} of `{user}` is not running on `{told.queue}`")
                instructions = self._machines[inference].handle(_in_own_lane(told))
                del self._asked[inference, told.step]
                self.turns.leave(told.queue, at_ms)
                found = self._answered(inference, instructions, told.queue, at_ms)
                if isinstance(told, StepReturned):  # the other inferences go along
                    found += self._moved(user, Replaced(told.step, told.placement), at_ms, but=inference)
                return found
            case Left(queue, at_ms):
                self.turns.leave(queue, at_ms)
                return self._given([queue], at_ms)
            case Gone(user, _):
                for inference in [each for each in self._machines if each[0] == user]:
                    self.turns.end(inference)
                    del self._machines[inference]
                self._asked = {key: value for key, value in self._asked.items() if key[0][0] != user}
        return []

    def _moved(self, user: str, moved: Replaced, at_ms: float, but: Inference | None = None) -> list[Go]:
        """A subgraph is placed elsewhere in all inferences of a user, and in those to come."""
        self._patterns[user].handle(moved)
        self._queues[user] = tuple(queues_of(self.placements(user).values()))
        found: list[Go] = []
        for inference, machine in list(self._machines.items()):
            if inference[0] == user and inference != but:
                found += self._answered(inference, machine.handle(moved), None, at_ms)
        return found

    def _answered(self, inference: Inference, instructions: list[Instruction], freed: str | None, at_ms: float) -> list[Go]:
        """What follows from what an inference's own machine answers."""
        user, lane = inference
        queues = [] if freed is None else [freed]
        ends: list[Go] = []
        for each in instructions:
            if isinstance(each, Submit | Join):
                own = type(each)(lane, each.step, each.queue)
                self._asked[inference, each.step] = own, self._machines[inference].placements.get(each.step)
                self.turns.ask(inference, each.step, each.queue)
                queues.append(each.queue)
            elif isinstance(each, Finish | Fail):
                ends.append(Go(user, Finish(lane) if isinstance(each, Finish) else Fail(lane, each.step, each.error)))
        if ends:
            del self._machines[inference]
            self.turns.end(inference)
        return self._given(queues, at_ms) + ends

    def _given(self, queues: list[str], at_ms: float) -> list[Go]:
        """What free queues take."""
        found = []
        for queue in dict.fromkeys(queues):
            turn = self.turns.next(queue, at_ms)
            if turn is not None:
                start, place = self._asked[turn]
                found.append(Go(turn[0][0], start, place))
        return found


def _pattern(user: User) -> Machine:
    """The machine of an inference that has not begun."""
    if user.lanes < 1:
        raise ValueError("a user needs a lane")
    return Machine(user.plan, {name: replace(place, dispatch="blocking") for name, place in user.placements.items()}, caller=False)


def _in_own_lane(event: StepDone | StepFailed | StepReturned) -> StepDone | StepFailed | StepReturned:
    """An event as the machine hears it that has this inference alone."""
    match event:
        case StepDone(_, step, queue):
            return StepDone(0, step, queue)
        case StepFailed(_, step, queue, error):
            return StepFailed(0, step, queue, error)
        case StepReturned(_, step, queue, placement):
            return StepReturned(0, step, queue, placement)
