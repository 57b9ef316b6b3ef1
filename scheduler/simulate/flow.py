"""One user's inferences while a simulation goes on: requests, lanes, and the state machines that say what each of them starts."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from scheduler.adapt.policy import Decision, Policy, Probe, Probed, Ran
from scheduler.runtime.machine import CALLING_THREAD, Event, Finish, Instruction, Join, Machine, Node, Start, StepDone, Transitions
from scheduler.runtime.trace import Span, Trace
from scheduler.simulate.networks import Network, alternative_of
from scheduler.simulate.scene import Scene
from scheduler.simulate.times import Doing, StepTime

_NS = 1e6

#: States of a machine that are remembered; with many inferences in flight there are more than memory holds.
_KEPT_STATES = 4096


@dataclass(frozen=True)
class Decided:
    """A decision of the policy, and when it was made."""

    at_ms: float  # On the simulation's clock.
    decision: Decision  # What and why.


@dataclass(frozen=True)
class Answer:
    """What a machine answers: steps that start, and the lane that has ended."""

    starts: tuple["Step", ...]
    ended: int | None


class Step:
    """A step of a lane on a queue, as it is started again and again."""

    __slots__ = (
        "column",
        "contention",
        "engine",
        "event",
        "feeder",
        "key",
        "lane",
        "line",
        "name",
        "parts",
        "processor",
        "queue",
        "within",
    )

    def __init__(self, engine: "Engine", start: Start, time: StepTime, column: int | None, queue: str) -> None:
        self.engine, self.lane, self.name, self.queue = engine, start.lane, start.step, queue
        self.event = StepDone(start.lane, start.step, start.queue, start.client)
        #: Of the machine's answer to its end.
        self.key = (start.lane, start.step, start.queue)
        #: What it waits for where several networks share processors: a queue of the device, or this user's own thread.
        self.line = (engine.number, start.queue) if start.queue == CALLING_THREAD else (0, start.queue)
        self.processor, self.parts, self.contention = time.processor, time.parts, time.contention
        self.within, self.feeder = time.within, time.feeder
        #: Of its factor in those of an inference; None for a join.
        self.column = column


class Task:
    """A step that runs, and the part of it that does."""

    __slots__ = ("began", "doing", "end", "left", "part", "rate", "since", "step")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.part = 0
        self.doing: Doing = step.parts[0][0]
        #: When the part began, how much of it was left at `since`, and when it ends if its rate stays, ms.
        self.began = self.left = self.since = self.end = 0.0
        self.rate = 1.0


class Engine:
    """The state machine of a network, and the lanes of a user's inferences in it."""

    def __init__(self, network: Network, lanes: int, number: int) -> None:
        self.network, self.number, self._times = network, number, network.times
        self._caller = lanes == 1
        machine = Machine.of(network.plan, network.placements, lanes, caller=self._caller)
        self._table: Transitions[Answer] = Transitions(self._prepared)
        self._node: Node[Answer] = self._table.node(machine)
        self.columns = {name: column for column, name in enumerate(network.plan.subgraphs)}
        self.free = deque(range(lanes))
        #: Number, request and factors of the inference in each lane, its spans if it is traced, and what processors took for it.
        self.inference, self.since = [0] * lanes, [0.0] * lanes
        self.factors: list[list[float] | None] = [None] * lanes
        self.spans: list[list[Span] | None] = [None] * lanes
        self.took: list[dict[str, float]] = [{} for _ in range(lanes)]

    def tell(self, key: object, event: Event) -> Answer:
        """Tell the machine what happened."""
        known = self._node.answers.get(key)
        if known is None:
            if len(self._table) > _KEPT_STATES:
                self._table.clear()
                self._node = self._table.node(self._node.machine)
            known = self._table.learn(self._node, event, key)
        answer, self._node = known
        return answer

    def _prepared(self, instructions: Sequence[Instruction]) -> Answer:
        starts = tuple(self._step(instruction) for instruction in instructions if isinstance(instruction, Start))
        return Answer(starts, next((instruction.lane for instruction in instructions if isinstance(instruction, Finish)), None))

    def _step(self, start: Start) -> Step:
        queue = CALLING_THREAD if self._caller and isinstance(start, Join) else start.queue
        return Step(self, start, self._times[start.step], self.columns.get(start.step), queue)


def own_engine(network: Network, scene: Scene, number: int) -> Engine:
    """What runs a network for a user who takes no turns with others."""
    return Engine(network, scene.in_flight, number)


class Look:
    """A probe that is under way. Its processor is as busy as it was when the last inference ended.

    Args:
        now: When it begins, ms.
    """

    def __init__(self, probe: Probe, now: float, rate: float) -> None:
        self.probe = probe
        self._began, self._since, self._left, self._rate = now, now, probe.expected_ms, rate

    def took(self, now: float, rate: float) -> float | None:
        """What it took, ms, if it is over; else it goes on at another rate."""
        left = self._left - (now - self._since) * self._rate
        if left <= 0:
            return self._since + self._left / self._rate - self._began
        self._since, self._left, self._rate = now, left, rate
        return None


class Flow:
    """What one user asks for.

    Args:
        networks: What an inference may run: the only one, or what the policy chooses among.
        scene: How many inferences, when, and how they vary.
        policy: Chooses; None for the first network always.
        number: Of the user; the first is 0.
        engine: Makes what runs a network for a user of this scene and number.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        scene: Scene,
        policy: Policy | None,
        number: int = 0,
        engine: Callable[[Network, Scene, int], Engine] = own_engine,
    ) -> None:
        self.scene, self.number, self.policy = scene, number, policy
        self.engines = {network.name: engine(network, scene, number) for network in networks}
        self._expected = {network.name: alternative_of(network).computing_ms for network in networks}
        self._state = None if policy is None else policy.begin()
        self.present = self.engines[networks[0].name if self._state is None else self._state.present]
        self.decided: list[Decided] = []
        self._looks: list[Look] = []
        self.requested = self.ended = 0
        self._factors = {name: scene.factors(len(engine.columns), number) for name, engine in self.engines.items()}
        self._requests: Iterator[float] | None = None if scene.arrivals is None else scene.arrivals.times(scene.seed, number)
        #: When the next inference is asked for; with no arrivals whenever there is a lane.
        self._request = -inf if self._requests is None else next(self._requests)
        self.latencies: dict[int, float] = {}
        self.ran: dict[str, int] = dict.fromkeys(self.engines, 0)
        self.traces: dict[int, Trace] = {}

    @property
    def request(self) -> float:
        """When the next inference begins, as far as the lanes are concerned; infinite where there is none or no room."""
        return self._request if self.requested < self.scene.runs and self.requested - self.ended < self.scene.in_flight else inf

    def ask(self, now: float) -> tuple[Engine, int]:
        """Begin the next inference: the engine that runs it, and its lane there."""
        engine = self.present
        lane = engine.free.popleft()
        # the jitter of an inference depends on its number alone, whatever it runs
        for name, factors in self._factors.items():
            drawn = next(factors)
            if name == engine.network.name:
                engine.factors[lane] = drawn
        engine.inference[lane] = self.requested
        engine.since[lane] = now if self._requests is None else self._request
        engine.spans[lane] = [] if self.requested < self.scene.traced else None
        self.requested += 1
        if self._requests is not None:
            self._request = next(self._requests)
        return engine, lane

    def finish(self, engine: Engine, lane: int, now: float, rates: Mapping[str, float]) -> None:
        """An inference is over."""
        number, spans = engine.inference[lane], engine.spans[lane]
        self.latencies[number] = now - engine.since[lane]
        if spans is not None:
            self.traces[number] = Trace(tuple(spans), round(engine.since[lane] * _NS), round(now * _NS))
        engine.free.append(lane)
        self.ended += 1
        name = engine.network.name
        self.ran[name] += 1
        if self.policy is None:
            return
        took, engine.took[lane] = engine.took[lane], {}
        self._tell(Ran(number, name, self._expected[name], took), now, rates)
        under_way, self._looks = self._looks, []
        for look in under_way:
            probe = look.probe
            ms = look.took(now, rates[probe.processor])
            if ms is None:
                self._looks.append(look)
            else:
                self._tell(Probed(number, probe.processor, probe.expected_ms, ms), now, rates)

    def _tell(self, event: Ran | Probed, now: float, rates: Mapping[str, float]) -> None:
        """Let the policy hear of something, and do what it decides."""
        assert self.policy is not None
        assert self._state is not None
        self._state, decision = self.policy.after(self._state, event)
        if decision is None:
            return
        self.decided.append(Decided(now, decision))
        self.present = self.engines[self._state.present]
        if decision.probe is not None:
            self._looks.append(Look(decision.probe, now, rates[decision.probe.processor]))


def span_of(task: Task, now: float) -> Span:
    """The part of a step that ended, in a trace."""
    step, start, end = task.step, round(task.began * _NS), round(now * _NS)
    if task.doing in ("subgraph", "join"):
        return Span(step.name, step.processor, step.queue, "join" if task.doing == "join" else "subgraph", start, end)
    return Span(f"{step.name} {task.doing}", step.processor, step.queue, "conversion", start, end)
