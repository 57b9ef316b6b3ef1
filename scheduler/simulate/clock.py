"""Discrete-event simulation: drives the state machine of the scheduler under a simulated clock.

Every running task has remaining work and a rate. The rate depends on background
load, the frequency and temperature of the processor, and contention with other
inferences in flight. Clients use a processor in the order of their requests for
it, or take turns as in a `Scheduler`.
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
    Start,
    StepDone,
)
from scheduler.runtime.plan import make_plan
from scheduler.runtime.replay import Node, ReplayTable
from scheduler.runtime.trace import Span, Trace
from scheduler.simulate.networks import Activity, Network, StepTime, alternative_of, device_placements, step_times
from scheduler.simulate.scene import FreeShares, Heat, Scene

_NS = 1e6

#: Inferences between two progress reports.
PROGRESS_EVERY = 1000

#: Maximum number of memoized states; many inferences in flight have more states than fit in memory.
_MAX_STATES = 4096

#: Maximum number of kept events, with their answers, of clients that take turns.
MAX_EVENTS = 4096


@dataclass(frozen=True)
class TurnTaking:
    """Parameters of clients that take turns."""

    weights: tuple[float, ...] = ()  # Weights of the first clients; 1 for further clients.
    patience_ms: float = PATIENCE_MS  # Patience as in `scheduler.runtime.machine.Machine`.


class SimulatedStep:
    """A step of a lane on a queue, started once per inference."""

    __slots__ = (
        "column",
        "contention",
        "engine",
        "event",
        "feeder",
        "lane",
        "name",
        "overlaps_own_inference",
        "parts",
        "processor",
        "queue",
        "waiting_line",
    )

    def __init__(self, engine: "Engine", start: Start, step_time: StepTime, column: int | None, queue: str) -> None:
        self.engine, self.lane, self.name, self.queue = engine, start.lane, start.step, queue
        self.event = StepDone(start.lane, start.step, start.queue, start.client)
        #: Queue that it waits for if several networks share processors: one of the device, or this client's own thread.
        self.waiting_line = (engine.number, start.queue) if start.queue == CALLING_THREAD else (0, start.queue)
        self.processor, self.parts, self.contention = step_time.processor, step_time.parts, step_time.contention
        self.overlaps_own_inference, self.feeder = step_time.overlaps_own_inference, step_time.feeder
        #: Index of its jitter factor among those of an inference; None for a join.
        self.column = column


class RunningStep:
    """A running step, with its current part."""

    __slots__ = ("activity", "began", "end", "part", "rate", "remaining", "since", "step")

    def __init__(self, step: SimulatedStep) -> None:
        self.step = step
        self.part = 0
        self.activity: Activity = step.parts[0][0]
        #: Start of the part, its work left at the time `since`, and its end if its rate stays the same, all in ms.
        self.began = self.remaining = self.since = self.end = 0.0
        self.rate = 1.0


#: Answer of a machine: the steps to start, and the lane that has ended.
Answer = tuple[tuple[SimulatedStep, ...], int | None]


class SharedMachine:
    """The state machine of clients that take turns.

    Args:
        now: The simulation's clock, ms.
    """

    def __init__(self, sharing: TurnTaking, now: Callable[[], float]) -> None:
        self.sharing, self.now = sharing, now
        self.machine = Machine({}, patience_ms=sharing.patience_ms)
        self.engines: dict[str, Engine] = {}
        #: Events and answers of the machine.
        self.events: deque[tuple[Event, list[Instruction]]] = deque(maxlen=MAX_EVENTS)

    def add(self, engine: "Engine") -> None:
        """Add a client."""
        weights = self.sharing.weights
        weight = weights[engine.number] if engine.number < len(weights) else 1.0
        network = engine.network
        self.machine.add(engine.client, Client(network.plan, network.placements, engine.scene.in_flight, weight))
        self.engines[engine.client] = engine

    def handle(self, event: Event) -> Answer:
        """Report an event to the machine, and return the answer."""
        answer = self.machine.handle(event)
        self.events.append((event, answer))
        starts = tuple(self.engines[start.client].step(start) for start in answer if isinstance(start, Start))
        return starts, next((end.lane for end in answer if isinstance(end, Finish)), None)


class Engine:
    """Runs a network for a client, with a state machine and the lanes of its inferences."""

    def __init__(self, network: Network, scene: Scene, number: int, shared: SharedMachine | None) -> None:
        self.network, self.scene, self.number, self.shared = network, scene, number, shared
        lanes = scene.in_flight
        self.client, self._caller = ONLY_CLIENT if shared is None else str(number), shared is None and lanes == 1
        self._steps: dict[Start, SimulatedStep] = {}
        if shared is None:
            self._table: ReplayTable[Answer] = ReplayTable(self._prepare)
            machine = Machine.of(network.plan, network.placements, lanes, caller=self._caller)
            self._node: Node[Answer] = self._table.node(machine)
        else:
            shared.add(self)
        self.columns = {name: column for column, name in enumerate(network.plan.subgraphs)}
        self.free = deque(range(lanes))
        #: Number, request time and factors of the inference in each lane, its spans if it is traced, and its computing time by processor.
        self.inference, self.requested_ms = [0] * lanes, [0.0] * lanes
        self.factors: list[list[float] | None] = [None] * lanes
        self.spans: list[list[Span] | None] = [None] * lanes
        self.computing_ms: list[dict[str, float]] = [{} for _ in range(lanes)]

    def begin(self, lane: int) -> Answer:
        """Begin the inference in a lane."""
        if self.shared is None:
            return self._handle(lane, InputReady(lane))
        deadline_ms = None if self.scene.deadline_ms is None else self.requested_ms[lane] + self.scene.deadline_ms
        return self.shared.handle(InputReady(lane, self.client, self.shared.now(), deadline_ms, self.scene.priority))

    def end(self, step: SimulatedStep) -> Answer:
        """End a step, and return the machine's answer."""
        if self.shared is None:
            return self._handle(step, step.event)
        return self.shared.handle(StepDone(step.lane, step.name, step.queue, self.client, self.shared.now()))

    def _handle(self, key: object, event: Event) -> Answer:
        """Report an event to the client's own machine, and return the answer."""
        cached = self._node.answers.get(key)
        if cached is None:
            if len(self._table) > _MAX_STATES:
                self._table.clear()
                self._node = self._table.node(self._node.machine)
            cached = self._table.compute(self._node, event, key)
        answer, self._node = cached
        return answer

    def _prepare(self, instructions: Sequence[Instruction]) -> Answer:
        starts = tuple(self.step(instruction) for instruction in instructions if isinstance(instruction, Start))
        return starts, next((instruction.lane for instruction in instructions if isinstance(instruction, Finish)), None)

    def step(self, start: Start) -> SimulatedStep:
        """Return a step in the form that the clock runs."""
        if start not in self._steps:
            queue = CALLING_THREAD if self._caller and isinstance(start, Join) else start.queue
            self._steps[start] = SimulatedStep(self, start, self.network.times[start.step], self.columns.get(start.step), queue)
        return self._steps[start]


class ProbeRun:
    """A running probe. Its processor is assumed to be as busy as at the end of the last inference.

    Args:
        now: Start of the probe, ms.
    """

    def __init__(self, probe: Probe, now: float, rate: float) -> None:
        self.probe = probe
        self._began, self._since, self._remaining, self._rate = now, now, probe.expected_ms, rate

    def duration_ms(self, now: float, rate: float) -> float | None:
        """Return the probe's duration in ms if it has ended; else continue at another rate and return None."""
        remaining = self._remaining - (now - self._since) * self._rate
        if remaining <= 0:
            return self._since + self._remaining / self._rate - self._began
        self._since, self._remaining, self._rate = now, remaining, rate
        return None


class ClientRun:
    """The requests of one client, and their results.

    Args:
        policy: Policy that chooses the network; None to use the first network always.
        shared: State machine of clients that take turns; None for one machine per network.
    """

    def __init__(
        self, networks: Sequence[Network], scene: Scene, policy: Policy | None, number: int = 0, shared: SharedMachine | None = None
    ) -> None:
        self.scene, self.number, self.policy = scene, number, policy
        self.engines = {network.name: Engine(network, scene, number, shared) for network in networks}
        self._expected = {network.name: alternative_of(network).computing_ms for network in networks}
        self._state = None if policy is None else policy.begin()
        self.engine = self.engines[networks[0].name if self._state is None else self._state.current]
        self.decisions: list[tuple[float, PlanDecision]] = []
        self._probes: list[ProbeRun] = []
        self.requested = self.ended = 0
        self._factors = {name: scene.factors(len(engine.columns), number) for name, engine in self.engines.items()}
        self._requests: Iterator[float] | None = None if scene.arrivals is None else scene.arrivals.times(scene.seed, number)
        #: Time of the next request; without arrivals, as soon as a lane is free.
        self._request = -inf if self._requests is None else next(self._requests)
        self.latencies: dict[int, float] = {}
        self.ran: dict[str, int] = dict.fromkeys(self.engines, 0)
        self.traces: dict[int, Trace] = {}

    @property
    def request(self) -> float:
        """Time at which the next inference may begin; infinite if there is no further one or no free lane."""
        return self._request if self.requested < self.scene.runs and self.requested - self.ended < self.scene.in_flight else inf

    def begin(self, now: float) -> tuple[Engine, int]:
        """Begin the next inference, and return its engine and lane."""
        engine = self.engine
        lane = engine.free.popleft()
        # the jitter of an inference depends on its number alone, whatever network it runs
        for name, factors in self._factors.items():
            lane_factors = next(factors)
            if name == engine.network.name:
                engine.factors[lane] = lane_factors
        engine.inference[lane] = self.requested
        engine.requested_ms[lane] = now if self._requests is None else self._request
        engine.spans[lane] = [] if self.requested < self.scene.traced else None
        self.requested += 1
        if self._requests is not None:
            self._request = next(self._requests)
        return engine, lane

    def finish(self, engine: Engine, lane: int, now: float, rates: Mapping[str, float]) -> None:
        """End an inference: keep its latency and trace, free its lane and inform the policy."""
        number, spans = engine.inference[lane], engine.spans[lane]
        self.latencies[number] = now - engine.requested_ms[lane]
        if spans is not None:
            self.traces[number] = Trace(tuple(spans), round(engine.requested_ms[lane] * _NS), round(now * _NS))
        engine.free.append(lane)
        self.ended += 1
        name = engine.network.name
        self.ran[name] += 1
        if self.policy is None:
            return
        computing_ms, engine.computing_ms[lane] = engine.computing_ms[lane], {}
        self._handle(InferenceMeasured(number, name, self._expected[name], computing_ms), now, rates)
        probes, self._probes = self._probes, []
        for probe_run in probes:
            probe = probe_run.probe
            ms = probe_run.duration_ms(now, rates[probe.processor])
            if ms is None:
                self._probes.append(probe_run)
            else:
                self._handle(ProbeMeasured(number, probe.processor, probe.expected_ms, ms), now, rates)

    def result(self) -> "ClientResult":
        """Return the results of the finished inferences."""
        latencies = tuple(ms for _, ms in sorted(self.latencies.items()))
        return ClientResult(latencies, dict(self.ran), tuple(trace for _, trace in sorted(self.traces.items())), tuple(self.decisions))

    def _handle(self, event: InferenceMeasured | ProbeMeasured, now: float, rates: Mapping[str, float]) -> None:
        """Report an event to the policy, and apply its decision."""
        assert self.policy is not None
        assert self._state is not None
        self._state, decision = self.policy.after(self._state, event)
        if decision is None:
            return
        self.decisions.append((now, decision))
        self.engine = self.engines[self._state.current]
        if decision.probe is not None:
            self._probes.append(ProbeRun(decision.probe, now, rates[decision.probe.processor]))


def span_of(task: RunningStep, now: float) -> Span:
    """Return the finished part of a step as a span of a trace."""
    step, start, end = task.step, round(task.began * _NS), round(now * _NS)
    if task.activity in ("subgraph", "join"):
        return Span(step.name, step.processor, step.queue, "join" if task.activity == "join" else "subgraph", start, end)
    return Span(f"{step.name} {task.activity}", step.processor, step.queue, "conversion", start, end)


@dataclass(frozen=True)
class ClientResult:
    """Results of one client's inferences."""

    latencies_ms: tuple[float, ...]  # Latencies of completed inferences, in the order of their requests.
    ran: Mapping[str, int]  # Number of inferences by network.
    traces: tuple[Trace, ...]  # Traces of the first inferences.
    decisions: tuple[tuple[float, PlanDecision], ...]  # Decisions of the policy, in order, each after its time on the clock, ms.


@dataclass(frozen=True)
class SimulationResult:
    """Results of a simulation."""

    clients: tuple[ClientResult, ...]  # The first client, whose last inference ends the simulation, then the concurrent workloads.
    elapsed_ms: float  # Time from the start of the clock to the end of the first client's last inference.
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
    """A simulation of clients on shared processors.

    Args:
        heat: Thermal model that throttles all processors; None for none.
        sharing: Rules by which clients take turns; None for first come, first served.
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
        #: State machine of clients that take turns.
        self.shared = None if sharing is None else SharedMachine(sharing, lambda: self._now)
        self._clients = [ClientRun(alternatives, scene, policy, 0, self.shared)]
        self._clients += [
            ClientRun((network,), workload_scene, None, number, self.shared)
            for number, (network, workload_scene) in enumerate(workloads, start=1)
        ]
        self._first_client = self._clients[0]
        all_networks = [*alternatives, *(network for network, _ in workloads)]
        steps = [time for network in all_networks for time in network.times.values()]
        #: Whether nothing slows steps down: inferences never overlap, and times contain the contention between steps of one inference.
        self._undisturbed = len(self._clients) == 1 and scene.in_flight == 1 and not any(time.overlaps_own_inference for time in steps)
        #: Whether a processor slows others down, if only by the thread that feeds it.
        self._has_contention = any(time.contention or time.feeder for time in steps)
        #: Whether several state machines share queues.
        self._has_lines = sharing is None and (len(self._clients) > 1 or (len(alternatives) > 1 and scene.in_flight > 1))
        processors = dict.fromkeys(network.times[name].processor for network in all_networks for name in network.plan.order)
        self._free = FreeShares(scene.loads, processors, scene.frequencies)
        self._loads = scene.loads
        self._heat = heat
        self._busy = dict.fromkeys(processors, 0.0)
        self._communication = 0.0
        self._now = 0.0
        self._running: list[RunningStep] = []  # in order of start
        self._lines: dict[object, deque[RunningStep]] = {}  # shared queues: the running task, then the waiting ones
        self._progress: Progress = silent

    def run(self, progress: Progress = silent, *, all_clients: bool = False) -> SimulationResult:
        """Run all inferences; may be called only once."""
        self._progress = progress
        clients = self._clients if all_clients else [self._first_client]
        while any(client.ended < client.scene.runs for client in clients):
            request, client = self._request()
            if request <= self._now:
                engine, lane = client.begin(self._now)
                self._start_steps(engine, engine.begin(lane))
                if self._heat is not None:
                    self._heat.set(self._shares())
                continue
            task, end_ms = self._next()
            change = self._free.until if self._heat is None else min(self._free.until, self._heat.until)
            # of simultaneous events, ends come first, so that ended tasks cause no contention
            now = min(end_ms, change, request)
            if self._heat is not None:
                self._heat.advance(now)
            self._now = now
            if change < end_ms and change <= request:
                self._change()
                self._update_rates()
            elif request >= end_ms:
                self._end_part(task)
            if self._heat is not None:
                self._heat.set(self._shares())
        return SimulationResult(tuple(client.result() for client in self._clients), self._now, self._busy, self._communication)

    def _change(self) -> None:
        """Apply the next change of load, frequency or temperature."""
        if self._heat is not None and self._heat.until <= self._now:
            self._heat.change()
        if self._free.until <= self._now:
            self._free.change()

    def _shares(self) -> dict[str, float]:
        """Return the utilisation of each processor, including background load."""
        shares = {task.step.processor: 1.0 for task in self._running if task.activity not in ("in", "out")}
        for load in self._loads:
            if load.start_ms <= self._now < load.end_ms:
                shares[load.processor] = min(1.0, shares.get(load.processor, 0.0) + load.share)
        return shares

    def _request(self) -> tuple[float, ClientRun]:
        """Return the client with the earliest request and a free lane, with the request's time."""
        if len(self._clients) == 1:
            return self._first_client.request, self._first_client
        return min(((client.request, client) for client in self._clients), key=lambda pair: pair[0])

    def _next(self) -> tuple[RunningStep | None, float]:
        """Return the task that ends next, and its end; of simultaneous ones, the first that started."""
        first, end_ms = None, inf
        for task in self._running:
            if task.end < end_ms:
                first, end_ms = task, task.end
        return first, end_ms

    def _start_steps(self, engine: Engine, answer: Answer) -> None:
        """Start the steps in a state machine's answer."""
        starts, ended = answer
        for step in starts:
            task = RunningStep(step)
            if self._has_lines:
                line = self._lines.setdefault(step.waiting_line, deque())
                line.append(task)
                if line[0] is not task:
                    continue
            self._running.append(task)
            self._begin_part(task)
        if ended is not None:
            client = self._clients[engine.number]
            client.finish(engine, ended, self._now, self._rates())
            if client is self._first_client and client.ended % PROGRESS_EVERY == 0:
                self._progress(f"{client.ended} inferences")
        if not self._undisturbed:
            self._update_rates()

    def _begin_part(self, task: RunningStep) -> None:
        step = task.step
        task.activity, remaining = step.parts[task.part]
        if task.activity == "subgraph" and step.column is not None:
            factors = step.engine.factors[step.lane]
            remaining = remaining if factors is None else remaining * factors[step.column]
        task.began = task.since = self._now
        task.remaining, task.rate = remaining, self._rate(task)
        task.end = self._now + remaining / task.rate if task.rate else inf

    def _end_part(self, task: RunningStep | None) -> None:
        """End the current part of a task, and begin its next part or the next steps."""
        assert task is not None  # an inference in flight always has a running task
        step = task.step
        duration = self._now - task.began
        if task.activity == "subgraph":
            self._busy[step.processor] += duration
        else:
            self._communication += duration
        if self._first_client.policy is not None and task.activity in ("subgraph", "join"):
            computing_ms = step.engine.computing_ms[step.lane]
            computing_ms[step.processor] = computing_ms.get(step.processor, 0.0) + duration
        spans = step.engine.spans[step.lane]
        if spans is not None and (task.activity == "join" or self._now > task.began):
            spans.append(span_of(task, self._now))
        task.part += 1
        if task.part < len(step.parts):
            self._begin_part(task)
            if not self._undisturbed:
                self._update_rates()
            return
        self._running.remove(task)
        if self._has_lines:
            self._start_next(step)
        self._start_steps(step.engine, step.engine.end(step))

    def _start_next(self, step: SimulatedStep) -> None:
        """Start the task that has waited longest for the queue."""
        line = self._lines[step.waiting_line]
        line.popleft()
        if line:
            self._running.append(line[0])
            self._begin_part(line[0])

    def _rates(self) -> Mapping[str, float]:
        """Return the speed of each processor relative to its full speed, under load and throttling."""
        if self._heat is None:
            return self._free.shares
        return {name: share * self._heat.speed for name, share in self._free.shares.items()}

    def _rate(self, task: RunningStep) -> float:
        """Return the rate of a task; background load slows down computing, not transfers."""
        if task.activity in ("in", "out"):
            return 1.0
        rate = self._free.shares[task.step.processor]
        if self._heat is not None:
            rate *= self._heat.speed
        if task.activity != "subgraph" or self._undisturbed or not self._has_contention:
            return rate
        step = task.step
        return rate * speed(step.processor, step.contention, self._feeders(step))

    def _feeders(self, step: SimulatedStep) -> dict[str, float]:
        """Return, for each other processor that computes a step, the share of the CPU that feeding it takes."""
        return {
            running.step.processor: running.step.feeder
            for running in self._running
            if running.activity == "subgraph"
            and running.step.processor != step.processor
            and (step.overlaps_own_inference or running.step.lane != step.lane or running.step.engine is not step.engine)
        }

    def _update_rates(self) -> None:
        """Update the rates of all running tasks."""
        for task in self._running:
            rate = self._rate(task)
            if rate != task.rate:
                task.remaining = max(0.0, task.remaining - (self._now - task.since) * task.rate)
                task.since, task.rate = self._now, rate
                task.end = self._now + task.remaining / rate if rate else inf


def predicted_trace(manifest: Manifest, device: DeviceProfile) -> Trace | None:
    """Return the planner's prediction of a bundle's run, with separate spans for transfers (`scheduler.simulate.networks.step_times`)."""
    if any(entry.predicted_ms is None for entry in manifest.subgraphs):
        return None
    network = Network(manifest.model.name, make_plan(manifest), device_placements(manifest, device), step_times(manifest, device))
    return Clock(network, Scene(traced=1)).run().traces[0]
