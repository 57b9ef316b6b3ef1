"""Discrete-event simulation: drives the state machine of the scheduler under a simulated clock.

Every running task has remaining work and a rate. The rate depends on background
load, the frequency and temperature of the processor, and contention with other
inferences in flight. Clients wait for each other's steps in the order in which they
ask for a processor, or take turns as those of a `Scheduler` do.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from predictors.devices import DeviceProfile
from predictors.errors import UsageError
from predictors.side_by_side import speed
from scheduler.adapt.policy import AdaptationRules, InferenceMeasured, PlanDecision, Policy, Probe, ProbeMeasured
from scheduler.bundle.manifest import Manifest
from scheduler.progress import Progress, silent
from scheduler.runtime.machine import (
    CALLING_THREAD,
    ONLY_CLIENT,
    PATIENCE_MS,
    Client,
    Event,
    Finish,
    InputReady,
    Instruction,
    Join,
    Machine,
    Node,
    Start,
    StepDone,
    Transitions,
)
from scheduler.runtime.plan import make_plan
from scheduler.runtime.trace import Span, Trace
from scheduler.simulate.networks import Doing, Network, StepTime, alternative_of, device_placements, step_times
from scheduler.simulate.scene import Free, Heat, Scene

_NS = 1e6

#: Inferences between two progress reports.
PROGRESS_EVERY = 1000

#: States of a machine that are remembered; with many inferences in flight there are more than memory holds.
_KEPT_STATES = 4096

#: Events of clients who take turns that are kept, with what they were answered.
KEPT = 4096


@dataclass(frozen=True)
class TurnTaking:
    """How clients take turns."""

    weights: tuple[float, ...] = ()  # Of the first clients; 1 of those that are not named.
    patience_ms: float = PATIENCE_MS  # As of `scheduler.runtime.machine.Machine`.


@dataclass(frozen=True)
class Decided:
    """A decision of the policy, and when it was made."""

    at_ms: float  # On the simulation's clock.
    decision: PlanDecision  # What and why.


class Step:
    """A step of a lane on a queue, as it is started again and again."""

    __slots__ = ("column", "contention", "engine", "event", "feeder", "lane", "line", "name", "parts", "processor", "queue", "within")

    def __init__(self, engine: "Engine", start: Start, time: StepTime, column: int | None, queue: str) -> None:
        self.engine, self.lane, self.name, self.queue = engine, start.lane, start.step, queue
        self.event = StepDone(start.lane, start.step, start.queue, start.client)
        #: What it waits for where several networks share processors: a queue of the device, or this client's own thread.
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


#: What a machine answers: steps that start, and the lane that has ended.
Answer = tuple[tuple[Step, ...], int | None]


class Shared:
    """The state machine of clients who take turns.

    Args:
        now: The simulation's clock, ms.
    """

    def __init__(self, sharing: TurnTaking, now: Callable[[], float]) -> None:
        self.sharing, self.now = sharing, now
        self.machine = Machine({}, patience_ms=sharing.patience_ms)
        self.engines: dict[str, Engine] = {}
        #: What the machine was told, and what it answered.
        self.events: deque[tuple[Event, list[Instruction]]] = deque(maxlen=KEPT)

    def add(self, engine: "Engine") -> None:
        """Have one more client."""
        weights = self.sharing.weights
        weight = weights[engine.number] if engine.number < len(weights) else 1.0
        network = engine.network
        self.machine.add(engine.client, Client(network.plan, network.placements, engine.scene.in_flight, weight))
        self.engines[engine.client] = engine

    def tell(self, event: Event) -> Answer:
        """Tell the machine what happened."""
        answer = self.machine.handle(event)
        self.events.append((event, answer))
        starts = tuple(self.engines[start.client].step(start) for start in answer if isinstance(start, Start))
        return starts, next((end.lane for end in answer if isinstance(end, Finish)), None)


class Engine:
    """What runs a network for a client: a state machine of its own, or one that it shares, and the lanes of its inferences."""

    def __init__(self, network: Network, scene: Scene, number: int, shared: Shared | None) -> None:
        self.network, self.scene, self.number, self.shared = network, scene, number, shared
        lanes = scene.in_flight
        self.client, self._caller = ONLY_CLIENT if shared is None else str(number), shared is None and lanes == 1
        self._steps: dict[Start, Step] = {}
        if shared is None:
            self._table: Transitions[Answer] = Transitions(self._prepared)
            machine = Machine.of(network.plan, network.placements, lanes, caller=self._caller)
            self._node: Node[Answer] = self._table.node(machine)
        else:
            shared.add(self)
        self.columns = {name: column for column, name in enumerate(network.plan.subgraphs)}
        self.free = deque(range(lanes))
        #: Number, request and factors of the inference in each lane, its spans if it is traced, and what processors took for it.
        self.inference, self.since = [0] * lanes, [0.0] * lanes
        self.factors: list[list[float] | None] = [None] * lanes
        self.spans: list[list[Span] | None] = [None] * lanes
        self.took: list[dict[str, float]] = [{} for _ in range(lanes)]

    def begin(self, lane: int) -> Answer:
        """Begin the inference of a lane."""
        if self.shared is None:
            return self._tell(lane, InputReady(lane))
        deadline_ms = None if self.scene.deadline_ms is None else self.since[lane] + self.scene.deadline_ms
        return self.shared.tell(InputReady(lane, self.client, self.shared.now(), deadline_ms, self.scene.priority))

    def end(self, step: Step) -> Answer:
        """End a step."""
        if self.shared is None:
            return self._tell(step, step.event)
        return self.shared.tell(StepDone(step.lane, step.name, step.queue, self.client, self.shared.now()))

    def _tell(self, key: object, event: Event) -> Answer:
        """Tell the client's own machine what happened."""
        known = self._node.answers.get(key)
        if known is None:
            if len(self._table) > _KEPT_STATES:
                self._table.clear()
                self._node = self._table.node(self._node.machine)
            known = self._table.compute(self._node, event, key)
        answer, self._node = known
        return answer

    def _prepared(self, instructions: Sequence[Instruction]) -> Answer:
        starts = tuple(self.step(instruction) for instruction in instructions if isinstance(instruction, Start))
        return starts, next((instruction.lane for instruction in instructions if isinstance(instruction, Finish)), None)

    def step(self, start: Start) -> Step:
        """A step as the clock runs it."""
        if start not in self._steps:
            queue = CALLING_THREAD if self._caller and isinstance(start, Join) else start.queue
            self._steps[start] = Step(self, start, self.network.times[start.step], self.columns.get(start.step), queue)
        return self._steps[start]


class Look:
    """A probe that is under way. Its processor is as busy as it was when the last inference ended.

    Args:
        now: When it begins, ms.
    """

    def __init__(self, probe: Probe, now: float, rate: float) -> None:
        self.probe = probe
        self._began, self._since, self._left, self._rate = now, now, probe.expected_ms, rate

    def took(self, now: float, rate: float) -> float | None:
        """Return its duration, ms, if it has ended; else continue at another rate."""
        left = self._left - (now - self._since) * self._rate
        if left <= 0:
            return self._since + self._left / self._rate - self._began
        self._since, self._left, self._rate = now, left, rate
        return None


class Flow:
    """What one client asks for.

    Args:
        policy: Chooses; None for the first network always.
        shared: State machine of clients who take turns; None for one of each network's own.
    """

    def __init__(
        self, networks: Sequence[Network], scene: Scene, policy: Policy | None, number: int = 0, shared: Shared | None = None
    ) -> None:
        self.scene, self.number, self.policy = scene, number, policy
        self.engines = {network.name: Engine(network, scene, number, shared) for network in networks}
        self._expected = {network.name: alternative_of(network).computing_ms for network in networks}
        self._state = None if policy is None else policy.begin()
        self.present = self.engines[networks[0].name if self._state is None else self._state.current]
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
        self._tell(InferenceMeasured(number, name, self._expected[name], took), now, rates)
        under_way, self._looks = self._looks, []
        for look in under_way:
            probe = look.probe
            ms = look.took(now, rates[probe.processor])
            if ms is None:
                self._looks.append(look)
            else:
                self._tell(ProbeMeasured(number, probe.processor, probe.expected_ms, ms), now, rates)

    def served(self) -> "Served":
        """Results of the inferences that are over."""
        latencies = tuple(ms for _, ms in sorted(self.latencies.items()))
        return Served(latencies, dict(self.ran), tuple(trace for _, trace in sorted(self.traces.items())), tuple(self.decided))

    def _tell(self, event: InferenceMeasured | ProbeMeasured, now: float, rates: Mapping[str, float]) -> None:
        """Let the policy hear of something, and do what it decides."""
        assert self.policy is not None
        assert self._state is not None
        self._state, decision = self.policy.after(self._state, event)
        if decision is None:
            return
        self.decided.append(Decided(now, decision))
        self.present = self.engines[self._state.current]
        if decision.probe is not None:
            self._looks.append(Look(decision.probe, now, rates[decision.probe.processor]))


def span_of(task: Task, now: float) -> Span:
    """The part of a step that ended, in a trace."""
    step, start, end = task.step, round(task.began * _NS), round(now * _NS)
    if task.doing in ("subgraph", "join"):
        return Span(step.name, step.processor, step.queue, "join" if task.doing == "join" else "subgraph", start, end)
    return Span(f"{step.name} {task.doing}", step.processor, step.queue, "conversion", start, end)


@dataclass(frozen=True)
class Served:
    """Results of one client's inferences."""

    latencies_ms: tuple[float, ...]  # Latencies of completed inferences, in the order of their requests.
    ran: Mapping[str, int]  # Number of inferences by network.
    traces: tuple[Trace, ...]  # Traces of the first inferences.
    decided: tuple[Decided, ...]  # Decisions of the policy.


@dataclass(frozen=True)
class Simulated:
    """Results of a simulation."""

    clients: tuple[Served, ...]  # The first client, whose last inference ends the simulation, and the concurrent workloads.
    elapsed_ms: float  # From the start of the clock to the end of the first client's last inference.
    busy_ms: Mapping[str, float]  # Computing time of each processor, for all clients.
    communication_ms: float  # Total time of exchanges and joins, overlapping or not.

    @property
    def latencies_ms(self) -> tuple[float, ...]:
        """Latencies of the first client."""
        return self.clients[0].latencies_ms

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Traces of the first client."""
        return self.clients[0].traces


class Clock:
    """A simulation.

    Args:
        heat: Thermal model that throttles all processors; None for none.
        sharing: Policy by which clients share processors; None for first come, first served.
    """

    def __init__(
        self,
        networks: Network | Sequence[Network],
        scene: Scene,
        workloads: Sequence[tuple[Network, Scene]] = (),
        rules: AdaptationRules | None = None,
        heat: Heat | None = None,
        sharing: TurnTaking | None = None,
    ) -> None:
        alternatives = (networks,) if isinstance(networks, Network) else tuple(networks)
        policy = Policy([alternative_of(alternative) for alternative in alternatives], rules) if len(alternatives) > 1 else None
        if policy is not None and sharing is not None:
            raise UsageError("alternatives of a bundle do not take turns with other bundles", "simulate the one or the other")
        #: State of clients who share processors.
        self.shared = None if sharing is None else Shared(sharing, lambda: self._now)
        self._flows = [Flow(alternatives, scene, policy, 0, self.shared)]
        self._flows += [Flow((network,), theirs, None, number, self.shared) for number, (network, theirs) in enumerate(workloads, start=1)]
        self._first = self._flows[0]
        every = [*alternatives, *(network for network, _ in workloads)]
        steps = [time for network in every for time in network.times.values()]
        #: Whether nothing slows anything down: inferences never overlap, and times contain what steps of one inference do to each other.
        self._alone = len(self._flows) == 1 and scene.in_flight == 1 and not any(time.within for time in steps)
        #: Whether some processor slows others down, be it by what feeds it.
        self._contends = any(time.contention or time.feeder for time in steps)
        #: Whether several state machines share queues.
        self._lined = sharing is None and (len(self._flows) > 1 or (len(alternatives) > 1 and scene.in_flight > 1))
        processors = dict.fromkeys(network.times[name].processor for network in every for name in network.plan.order)
        self._free = Free(scene.loads, processors, scene.frequencies)
        self._loads = scene.loads
        self._heat = heat
        self._busy = dict.fromkeys(processors, 0.0)
        self._communication = 0.0
        self._now = 0.0
        self._running: list[Task] = []  # in order of their start
        self._lines: dict[object, deque[Task]] = {}  # shared queues: the running task and those that wait
        self._progress: Progress = silent

    def run(self, progress: Progress = silent, *, everyone: bool = False) -> Simulated:
        """Run all inferences; once."""
        self._progress = progress
        waited = self._flows if everyone else [self._first]
        while any(flow.ended < flow.scene.runs for flow in waited):
            request, flow = self._request()
            if request <= self._now:
                self._ask(flow)
                if self._heat is not None:
                    self._heat.set(self._shares())
                continue
            task, at = self._next()
            change = self._free.until if self._heat is None else min(self._free.until, self._heat.until)
            # of simultaneous events ends come first, so that ended tasks cause no contention
            now = min(at, change, request)
            if self._heat is not None:
                self._heat.advance(now)
            self._now = now
            if change < at and change <= request:
                self._change()
                self._pace()
            elif request >= at:
                self._end_part(task)
            if self._heat is not None:
                self._heat.set(self._shares())
        return Simulated(tuple(flow.served() for flow in self._flows), self._now, self._busy, self._communication)

    def _change(self) -> None:
        """Apply the next change of load, frequency or temperature."""
        if self._heat is not None and self._heat.until <= self._now:
            self._heat.change()
        if self._free.until <= self._now:
            self._free.change()

    def _shares(self) -> dict[str, float]:
        """Utilisation of each processor, background load included."""
        shares = {task.step.processor: 1.0 for task in self._running if task.doing not in ("in", "out")}
        for load in self._loads:
            if load.start_ms <= self._now < load.end_ms:
                shares[load.processor] = min(1.0, shares.get(load.processor, 0.0) + load.share)
        return shares

    def _request(self) -> tuple[float, Flow]:
        """The client with the next request that has a free lane, and its time."""
        if len(self._flows) == 1:
            return self._first.request, self._first
        return min(((flow.request, flow) for flow in self._flows), key=lambda pair: pair[0])

    def _next(self) -> tuple[Task | None, float]:
        """The task that ends next and its time; of simultaneous ones the first that started."""
        first, at = None, inf
        for task in self._running:
            if task.end < at:
                first, at = task, task.end
        return first, at

    def _ask(self, flow: Flow) -> None:
        """Begin a client's next inference."""
        engine, lane = flow.ask(self._now)
        self._follow(engine, engine.begin(lane))

    def _follow(self, engine: Engine, answer: Answer) -> None:
        """Start the steps that a state machine returns."""
        starts, ended = answer
        for step in starts:
            task = Task(step)
            if self._lined:
                line = self._lines.setdefault(step.line, deque())
                line.append(task)
                if line[0] is not task:
                    continue
            self._running.append(task)
            self._begin_part(task)
        if ended is not None:
            flow = self._flows[engine.number]
            flow.finish(engine, ended, self._now, self._rates())
            if flow is self._first and flow.ended % PROGRESS_EVERY == 0:
                self._progress(f"{flow.ended} inferences")
        if not self._alone:
            self._pace()

    def _begin_part(self, task: Task) -> None:
        step = task.step
        task.doing, left = step.parts[task.part]
        if task.doing == "subgraph" and step.column is not None:
            factors = step.engine.factors[step.lane]
            left = left if factors is None else left * factors[step.column]
        task.began = task.since = self._now
        task.left, task.rate = left, self._rate(task)
        task.end = self._now + left / task.rate if task.rate else inf

    def _end_part(self, task: Task | None) -> None:
        """End the current part of a task, and begin what follows."""
        assert task is not None  # an inference in flight always has a running task
        step = task.step
        spent = self._now - task.began
        if task.doing == "subgraph":
            self._busy[step.processor] += spent
        else:
            self._communication += spent
        if self._first.policy is not None and task.doing in ("subgraph", "join"):
            took = step.engine.took[step.lane]
            took[step.processor] = took.get(step.processor, 0.0) + spent
        spans = step.engine.spans[step.lane]
        if spans is not None and (task.doing == "join" or self._now > task.began):
            spans.append(span_of(task, self._now))
        task.part += 1
        if task.part < len(step.parts):
            self._begin_part(task)
            if not self._alone:
                self._pace()
            return
        self._running.remove(task)
        if self._lined:
            self._let_next_in(step)
        self._follow(step.engine, step.engine.end(step))

    def _let_next_in(self, step: Step) -> None:
        """Start the task that has waited longest for the queue."""
        line = self._lines[step.line]
        line.popleft()
        if line:
            self._running.append(line[0])
            self._begin_part(line[0])

    def _rates(self) -> Mapping[str, float]:
        """Speed of each processor relative to its full speed, under load and throttling."""
        if self._heat is None:
            return self._free.shares
        return {name: share * self._heat.speed for name, share in self._free.shares.items()}

    def _rate(self, task: Task) -> float:
        """Rate of a task; background load slows computation, not transfers."""
        if task.doing in ("in", "out"):
            return 1.0
        rate = self._free.shares[task.step.processor]
        if self._heat is not None:
            rate *= self._heat.speed
        if task.doing != "subgraph" or self._alone or not self._contends:
            return rate
        step = task.step
        return rate * speed(step.processor, step.contention, self._feeders(step))

    def _feeders(self, step: Step) -> dict[str, float]:
        """Of each other processor that computes a step, and counts, what feeding it takes of the CPU."""
        return {
            other.step.processor: other.step.feeder
            for other in self._running
            if other.doing == "subgraph"
            and other.step.processor != step.processor
            and (step.within or other.step.lane != step.lane or other.step.engine is not step.engine)
        }

    def _pace(self) -> None:
        """Update the rates of all running tasks."""
        for task in self._running:
            rate = self._rate(task)
            if rate != task.rate:
                task.left = max(0.0, task.left - (self._now - task.since) * task.rate)
                task.since, task.rate = self._now, rate
                task.end = self._now + task.left / rate if rate else inf


def predicted_trace(manifest: Manifest, device: DeviceProfile) -> Trace | None:
    """A bundle's run on its device as the planner expects it, transfers as spans of their own (`scheduler.simulate.networks.step_times`)."""
    if any(entry.predicted_ms is None for entry in manifest.subgraphs):
        return None
    network = Network(manifest.model.name, make_plan(manifest), device_placements(manifest, device), step_times(manifest, device))
    return Clock(network, Scene(traced=1)).run().traces[0]
