"""Drives the state machine under a clock that is only a number: what ends next is worked out, nothing is waited for.

What runs has work left and a rate. The rate changes while it runs: with the
share of its processor that others leave, and, with several inferences in
flight, with what the others compute.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from scheduler.placement.place import Placement
from scheduler.progress import Progress, silent
from scheduler.runtime.events import Event, Finish, InputReady, Instruction, Join, Start, StepDone
from scheduler.runtime.machine import CALLING_THREAD, Machine
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.trace import Span, Trace
from scheduler.runtime.transitions import Node, Transitions
from scheduler.simulate.load import Free
from scheduler.simulate.scene import Scene
from scheduler.simulate.times import Doing, StepTime

_NS = 1e6

#: States of the machine that are remembered; with many inferences in flight there are more than memory holds.
_KEPT_STATES = 4096


#: Inferences after which whoever waits is told.
TOLD_EVERY = 1000


@dataclass(frozen=True)
class Simulated:
    """How a simulation went.

    Args:
        latencies_ms: Of each inference, from its request to its output, in the order of the requests.
        elapsed_ms: From the start of the clock to the end of the last inference.
        busy_ms: How long each processor computed subgraphs.
        communication_ms: How long all exchanges and joins took, whatever went on beside them.
        traces: Of the first inferences.
    """

    latencies_ms: tuple[float, ...]
    elapsed_ms: float
    busy_ms: Mapping[str, float]
    communication_ms: float
    traces: tuple[Trace, ...]


@dataclass(frozen=True)
class _Answer:
    """What the machine answers: steps that start, and the lane that has ended."""

    starts: tuple["_Step", ...]
    ended: int | None


class _Step:
    """A step of a lane on a queue, as it is started again and again."""

    __slots__ = ("beside", "column", "event", "key", "lane", "name", "parts", "processor", "queue")

    def __init__(self, start: Start, time: StepTime, column: int | None, queue: str) -> None:
        self.lane, self.name, self.queue = start.lane, start.step, queue
        self.event = StepDone(start.lane, start.step, start.queue)
        #: Of the machine's answer to its end.
        self.key = (start.lane, start.step, start.queue)
        self.processor, self.parts, self.beside = time.processor, time.parts, time.beside
        #: Of its factor in those of an inference; None for a join.
        self.column = column


class _Task:
    """A step that runs, and the part of it that does."""

    __slots__ = ("began", "doing", "end", "left", "part", "rate", "since", "step")

    def __init__(self, step: _Step) -> None:
        self.step = step
        self.part = 0
        self.doing: Doing = step.parts[0][0]
        #: When the part began, how much of it was left at `since`, and when it ends if its rate stays, ms.
        self.began = self.left = self.since = self.end = 0.0
        self.rate = 1.0


class Clock:
    """A simulation of a plan.

    Args:
        plan: What each inference runs.
        placements: Where each subgraph runs.
        times: Of each step.
        scene: What is run, and what disturbs it.

    Raises:
        UnknownNameError: If a load is on a processor that the plan does not use.
        UsageError: If loads take more than all of a processor at once.
    """

    def __init__(self, plan: ExecutionPlan, placements: Mapping[str, Placement], times: Mapping[str, StepTime], scene: Scene) -> None:
        self._times, self._scene = times, scene
        self._alone = scene.in_flight == 1
        if not self._alone:
            # every queue has a thread then, as in `scheduler.runtime.pipeline`
            placements = {name: replace(place, dispatch="blocking") for name, place in placements.items()}
        machine = Machine(plan, placements, scene.in_flight, caller=self._alone)
        self._table: Transitions[_Answer] = Transitions(self._prepared)
        self._node: Node[_Answer] = self._table.node(machine)
        self._columns = {name: column for column, name in enumerate(plan.subgraphs)}
        self._factors = scene.factors(len(self._columns))
        processors = dict.fromkeys(times[name].processor for name in plan.order)
        self._free = Free(scene.loads, processors)
        self._busy = dict.fromkeys(processors, 0.0)
        self._communication = 0.0
        self._now = 0.0
        self._running: list[_Task] = []  # in the order in which they started
        self._lanes = deque(range(scene.in_flight))
        self._asked = self._ended = 0
        self._requests: Iterator[float] | None = None if scene.arrivals is None else scene.arrivals.times(scene.seed)
        #: When the next inference is asked for; with no arrivals whenever there is a lane.
        self._request = -inf if self._requests is None else next(self._requests)
        #: Number, request and factors of the inference in each lane, and its spans if it is traced.
        self._number, self._since = [0] * scene.in_flight, [0.0] * scene.in_flight
        self._factor: list[list[float] | None] = [None] * scene.in_flight
        self._spans: list[list[Span] | None] = [None] * scene.in_flight
        self._latencies = [0.0] * scene.runs
        self._traces: dict[int, Trace] = {}
        self._progress: Progress = silent

    def run(self, progress: Progress = silent) -> Simulated:
        """Run all inferences; once.

        Args:
            progress: Called after each `TOLD_EVERY` inferences.
        """
        self._progress = progress
        runs = self._scene.runs
        while self._ended < runs:
            request = self._request if self._lanes and self._asked < runs else inf
            if request <= self._now:
                self._ask()
                continue
            task, at = self._next()
            # at one moment steps end first: what has ended is no longer slowed
            if self._free.until < at and self._free.until <= request:
                self._now = self._free.until
                self._free.change()
                self._pace()
            elif request < at:
                self._now = request
            else:
                self._now = at
                self._end_part(task)
        traces = tuple(trace for _, trace in sorted(self._traces.items()))
        return Simulated(tuple(self._latencies), self._now, self._busy, self._communication, traces)

    def _next(self) -> tuple["_Task | None", float]:
        """What ends next, of several that which started first, and when."""
        first, at = None, inf
        for task in self._running:
            if task.end < at:
                first, at = task, task.end
        return first, at

    def _ask(self) -> None:
        """Begin the next inference in a free lane."""
        lane = self._lanes.popleft()
        self._number[lane], self._factor[lane] = self._asked, next(self._factors)
        self._since[lane] = self._now if self._requests is None else self._request
        self._spans[lane] = [] if self._asked < self._scene.traced else None
        self._asked += 1
        if self._requests is not None:
            self._request = next(self._requests)
        self._tell(lane, InputReady(lane))

    def _tell(self, key: object, event: Event) -> None:
        """Tell the machine what happened, and do what it answers."""
        known = self._node.answers.get(key)
        if known is None:
            if len(self._table) > _KEPT_STATES:
                self._table.clear()
                self._node = self._table.node(self._node.machine)
            known = self._table.learn(self._node, event, key)
        answer, self._node = known
        for step in answer.starts:
            task = _Task(step)
            self._running.append(task)
            self._begin_part(task)
        if answer.ended is not None:
            self._finish(answer.ended)
        if not self._alone:
            self._pace()

    def _prepared(self, instructions: Sequence[Instruction]) -> _Answer:
        starts = tuple(self._step(each) for each in instructions if isinstance(each, Start))
        return _Answer(starts, next((each.lane for each in instructions if isinstance(each, Finish)), None))

    def _step(self, start: Start) -> _Step:
        queue = CALLING_THREAD if self._alone and isinstance(start, Join) else start.queue
        return _Step(start, self._times[start.step], self._columns.get(start.step), queue)

    def _begin_part(self, task: _Task) -> None:
        step = task.step
        task.doing, left = step.parts[task.part]
        if task.doing == "subgraph" and step.column is not None:
            factors = self._factor[step.lane]
            left = left if factors is None else left * factors[step.column]
        task.began = task.since = self._now
        task.left, task.rate = left, self._rate(task)
        task.end = self._now + left / task.rate if task.rate else inf

    def _end_part(self, task: "_Task | None") -> None:
        """The part that ended, and what comes then."""
        assert task is not None  # something runs while an inference is in flight and no other is asked for
        step = task.step
        if task.doing == "subgraph":
            self._busy[step.processor] += self._now - task.began
        else:
            self._communication += self._now - task.began
        spans = self._spans[step.lane]
        if spans is not None and (task.doing == "join" or self._now > task.began):
            spans.append(_span(task, self._now))
        task.part += 1
        if task.part < len(step.parts):
            self._begin_part(task)
            if not self._alone:
                self._pace()
        else:
            self._running.remove(task)
            self._tell(step.key, step.event)

    def _finish(self, lane: int) -> None:
        number, spans = self._number[lane], self._spans[lane]
        self._latencies[number] = self._now - self._since[lane]
        if spans is not None:
            self._traces[number] = Trace(tuple(spans), round(self._since[lane] * _NS), round(self._now * _NS))
        self._lanes.append(lane)
        self._ended += 1
        if self._ended % TOLD_EVERY == 0:
            self._progress(f"{self._ended} inferences")

    def _rate(self, task: _Task) -> float:
        """How fast a part goes on, of its time alone: others' shares slow what computes, not what crosses a link."""
        if task.doing in ("in", "out"):
            return 1.0
        rate = self._free.shares[task.step.processor]
        return rate / task.step.beside if task.doing == "subgraph" and self._has_company(task.step) else rate

    def _has_company(self, step: _Step) -> bool:
        """Whether another inference computes on another processor."""
        if self._alone or step.beside == 1.0:
            return False
        return any(
            other.doing == "subgraph" and other.step.lane != step.lane and other.step.processor != step.processor for other in self._running
        )

    def _pace(self) -> None:
        """Set the rates of what runs anew."""
        for task in self._running:
            rate = self._rate(task)
            if rate != task.rate:
                task.left = max(0.0, task.left - (self._now - task.since) * task.rate)
                task.since, task.rate = self._now, rate
                task.end = self._now + task.left / rate if rate else inf


def _span(task: _Task, now: float) -> Span:
    """The part of a step that ended, in the trace."""
    step, start, end = task.step, round(task.began * _NS), round(now * _NS)
    if task.doing in ("subgraph", "join"):
        return Span(step.name, step.processor, step.queue, "join" if task.doing == "join" else "subgraph", start, end)
    return Span(f"{step.name} {task.doing}", step.processor, step.queue, "conversion", start, end)
