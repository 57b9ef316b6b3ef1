"""Users of a simulation who take turns on processors as those of a `Scheduler` do: the same state machine, under the simulation's clock."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from scheduler.runtime.machine import PATIENCE_MS, Client, Event, Finish, InputReady, Instruction, Machine, Start, StepDone
from scheduler.simulate.flow import Answer, Engine, Step
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Scene


@dataclass(frozen=True)
class Sharing:
    """How users take turns."""

    weights: tuple[float, ...] = ()  # Of the first users; 1 of those that are not named.
    patience_ms: float = PATIENCE_MS  # As of `scheduler.runtime.machine.Machine`.


class Shared:
    """The state machine of all users, and what runs their steps.

    Args:
        now: The simulation's clock, ms.
    """

    def __init__(self, sharing: Sharing, now: Callable[[], float]) -> None:
        self.machine = Machine({}, patience_ms=sharing.patience_ms)
        #: What the machine was told, and what it answered.
        self.events: list[tuple[Event, list[Instruction]]] = []
        self._weights, self._now = sharing.weights, now
        self._engines: dict[str, SharedEngine] = {}

    def engine(self, network: Network, scene: Scene, number: int) -> "SharedEngine":
        """What runs a user's inferences.

        Args:
            scene: How many of them at once, and until when they have to be over.
        """
        weight = self._weights[number] if number < len(self._weights) else 1.0
        self.machine.add(str(number), Client(network.plan, network.placements, scene.in_flight, weight))
        shared_engine = self._engines[str(number)] = SharedEngine(network, scene, number, self)
        return shared_engine

    def tell(self, engine: "SharedEngine", event: Event) -> Answer:
        """Tell the machine what happened to a user's inference."""
        user, now = str(engine.number), self._now()
        if isinstance(event, InputReady):
            event = InputReady(event.lane, user, now, engine.deadline_ms(event.lane), engine.scene.priority)
        else:
            assert isinstance(event, StepDone)  # nothing fails or is placed elsewhere while it is simulated
            event = structs.replace(event, at_ms=now)
        answer = self.machine.handle(event)
        self.events.append((event, answer))
        starts = tuple(self._engines[start.client].started(start) for start in answer if isinstance(start, Start))
        return Answer(starts, next((end.lane for end in answer if isinstance(end, Finish)), None))


class SharedEngine(Engine):
    """One user's lanes among those of others."""

    def __init__(self, network: Network, scene: Scene, number: int, shared: Shared) -> None:
        super().__init__(network, scene.in_flight, number)
        self._caller = False
        self.scene, self._shared = scene, shared
        self._started: dict[Start, Step] = {}

    def deadline_ms(self, lane: int) -> float | None:
        """When the inference in a lane has to be over, by the simulation's clock."""
        return None if self.scene.deadline_ms is None else self.since[lane] + self.scene.deadline_ms

    def tell(self, key: object, event: Event) -> Answer:
        """Tell the machine what happened."""
        return self._shared.tell(self, event)

    def started(self, start: Start) -> Step:
        """A step as the clock runs it."""
        if start not in self._started:
            self._started[start] = self._step(start)
        return self._started[start]
