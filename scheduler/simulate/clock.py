"""Discrete-event simulation: drives the state machines of the scheduler under a simulated clock.

Every running task has remaining work and a rate. The rate depends on background
load, the frequency and temperature of the processor, and contention with other
inferences in flight.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from predictors.errors import UsageError
from predictors.side_by_side import speed
from scheduler.adapt.policy import Policy, Rules
from scheduler.progress import Progress, silent
from scheduler.runtime.machine import InputReady
from scheduler.runtime.trace import Trace
from scheduler.simulate.flow import Answer, Decided, Engine, Flow, Step, Task, own_engine, span_of
from scheduler.simulate.heat import Heat
from scheduler.simulate.load import Free
from scheduler.simulate.networks import Network, alternative_of
from scheduler.simulate.scene import Scene
from scheduler.simulate.sharing import Shared, Sharing

#: Inferences between two progress reports.
PROGRESS_EVERY = 1000


@dataclass(frozen=True)
class Served:
    """Results of one user's inferences."""

    latencies_ms: tuple[float, ...]  # Latencies of completed inferences, in the order of their requests.
    ran: Mapping[str, int]  # Number of inferences by network.
    traces: tuple[Trace, ...]  # Traces of the first inferences.
    decided: tuple[Decided, ...]  # Decisions of the policy.


@dataclass(frozen=True)
class Simulated:
    """Results of a simulation."""

    users: tuple[Served, ...]  # The first user, whose last inference ends the simulation, and the concurrent workloads.
    elapsed_ms: float  # From the start of the clock to the end of the first user's last inference.
    busy_ms: Mapping[str, float]  # Computing time of each processor, for all users.
    communication_ms: float  # Total time of exchanges and joins, overlapping or not.

    @property
    def latencies_ms(self) -> tuple[float, ...]:
        """Latencies of the first user."""
        return self.users[0].latencies_ms

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Traces of the first user."""
        return self.users[0].traces


class Clock:
    """A simulation.

    Args:
        networks: The first user's network, or alternatives among which a policy chooses.
        workloads: Concurrent workloads, which run until the first user has finished; their loads and speeds are ignored.
        heat: Thermal model that throttles all processors; None for none.
        sharing: Policy by which users share processors; None for first come, first served.
    """

    def __init__(
        self,
        networks: Network | Sequence[Network],
        scene: Scene,
        workloads: Sequence[tuple[Network, Scene]] = (),
        rules: Rules | None = None,
        heat: Heat | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        alternatives = (networks,) if isinstance(networks, Network) else tuple(networks)
        policy = Policy([alternative_of(alternative) for alternative in alternatives], rules) if len(alternatives) > 1 else None
        if policy is not None and sharing is not None:
            raise UsageError("alternatives of a bundle do not take turns with other bundles", "simulate the one or the other")
        #: State of users who share processors.
        self.shared = None if sharing is None else Shared(sharing, lambda: self._now)
        engine = own_engine if self.shared is None else self.shared.engine
        self._flows = [Flow(alternatives, scene, policy, 0, engine)]
        self._flows += [Flow((network,), theirs, None, number, engine) for number, (network, theirs) in enumerate(workloads, start=1)]
        self._first = self._flows[0]
        every = [*alternatives, *(network for network, _ in workloads)]
        steps = [time for network in every for time in network.times.values()]
        #: Whether nothing slows anything down: inferences never overlap, and times contain what steps of one inference do to each other.
        self._alone = len(self._flows) == 1 and scene.in_flight == 1 and not any(time.within for time in steps)
        #: Whether some processor slows others down, be it by what feeds it.
        self._contends = any(time.contention > 1 or time.feeder for time in steps)
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
        """Run all inferences; once.

        Args:
            progress: Called after each `PROGRESS_EVERY` inferences.
            everyone: Whether to run until the concurrent workloads have finished, too.
        """
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
        return Simulated(tuple(_served(flow) for flow in self._flows), self._now, self._busy, self._communication)

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
        """The user with the next request that has a free lane, and its time."""
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
        """Begin a user's next inference."""
        engine, lane = flow.ask(self._now)
        self._follow(engine, engine.tell(lane, InputReady(lane)))

    def _follow(self, engine: Engine, answer: Answer) -> None:
        """Start the steps that a state machine returns."""
        for step in answer.starts:
            task = Task(step)
            if self._lined:
                line = self._lines.setdefault(step.line, deque())
                line.append(task)
                if line[0] is not task:
                    continue
            self._running.append(task)
            self._begin_part(task)
        if answer.ended is not None:
            flow = self._flows[engine.number]
            flow.finish(engine, answer.ended, self._now, self._rates())
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
        self._follow(step.engine, step.engine.tell(step.key, step.event))

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

    def _feeders(self, step: Step) -> list[float]:
        """Of each step that computes on another processor, and counts, what feeding it takes of the CPU."""
        return [
            other.step.feeder
            for other in self._running
            if other.doing == "subgraph"
            and other.step.processor != step.processor
            and (step.within or other.step.lane != step.lane or other.step.engine is not step.engine)
        ]

    def _pace(self) -> None:
        """Update the rates of all running tasks."""
        for task in self._running:
            rate = self._rate(task)
            if rate != task.rate:
                task.left = max(0.0, task.left - (self._now - task.since) * task.rate)
                task.since, task.rate = self._now, rate
                task.end = self._now + task.left / rate if rate else inf


def _served(flow: Flow) -> Served:
    """Results of a user's completed inferences."""
    latencies = tuple(ms for _, ms in sorted(flow.latencies.items()))
    return Served(latencies, dict(flow.ran), tuple(trace for _, trace in sorted(flow.traces.items())), tuple(flow.decided))
