"""Users of a simulation who take turns on processors as those of a `Scheduler` do: the same state machine, under the simulation's clock."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from scheduler.runtime.events import Event, Finish, InputReady, Replaced, Start
from scheduler.runtime.several import Begins, Go, Several, SharedEvent, Told, User
from scheduler.runtime.turns import PATIENCE_MS
from scheduler.simulate.flow import Answer, Engine, Step
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Scene

#: Events that are kept, with what they were answered.
KEPT = 4096


@dataclass(frozen=True)
class Sharing:
    """How users take turns."""

    weights: tuple[float, ...] = ()  # Of the first users; 1 of those that are not named.
    patience_ms: float = PATIENCE_MS  # As of `scheduler.runtime.turns.Turns`.


class Shared:
    """The state machine of all users, and what runs their steps.

    Args:
        now: The simulation's clock, ms.
    """

    def __init__(self, sharing: Sharing, now: Callable[[], float]) -> None:
        self._several = Several({}, sharing.patience_ms)
        self._weights, self._now = sharing.weights, now
        self._engines: dict[str, SharedEngine] = {}
        #: What was told last, and what that was answered.
        self.events: deque[tuple[SharedEvent, tuple[Go, ...]]] = deque(maxlen=KEPT)

    def engine(self, network: Network, scene: Scene, number: int) -> "SharedEngine":
        """What runs a user's inferences.

        Args:
            scene: How many of them at once, and until when they have to be over.
        """
        weight = self._weights[number] if number < len(self._weights) else 1.0
        self._several.add(str(number), User(network.plan, network.placements, scene.in_flight, weight))
        shared_engine = self._engines[str(number)] = SharedEngine(network, scene, number, self)
        return shared_engine

    def tell(self, engine: "SharedEngine", event: Event) -> Answer:
        """Tell the machine what happened to a user's inference."""
        user, now = str(engine.number), self._now()
        if isinstance(event, InputReady):
            shared_event: SharedEvent = Begins(user, event.lane, now, engine.deadline_ms(event.lane), engine.scene.priority)
        else:
            assert not isinstance(event, Replaced)  # nothing is placed elsewhere while it is simulated
            shared_event = Told(user, now, event)
        answer = self._several.handle(shared_event)
        self.events.append((shared_event, tuple(answer)))
        starts = tuple(self._engines[go.user].started(go.instruction) for go in answer if isinstance(go.instruction, Start))
        return Answer(starts, next((go.instruction.lane for go in answer if isinstance(go.instruction, Finish)), None))


class SharedEngine(Engine):
    """One user's lanes among those of others."""

    def __init__(self, network: Network, scene: Scene, number: int, shared: Shared) -> None:
        super().__init__(network, scene.in_flight, number)
        self._caller = False
        self.scene, self._shared = scene, shared
        self._started: dict[Start, Step] = {}

    def deadline_ms(self, lane: int) -> float:
        """When the inference in a lane has to be over, by the simulation's clock."""
        return inf if self.scene.deadline_ms is None else self.since[lane] + self.scene.deadline_ms

    def tell(self, key: object, event: Event) -> Answer:
        """Tell the machine what happened."""
        return self._shared.tell(self, event)

    def started(self, start: Start) -> Step:
        """A step as the clock runs it."""
        if start not in self._started:
            self._started[start] = self._step(start)
        return self._started[start]
