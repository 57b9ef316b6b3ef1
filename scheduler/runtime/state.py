"""Algorithm 1 of paper 003 as a state machine: no threads, no clock, no IO.

The caller reports events and carries out the instructions it gets back, in
their order. The transitions, tried from top to bottom after each event:

=====================================================  ==========================
state                                                  instructions
=====================================================  ==========================
a step failed, others still run                        `Wait` for them
a step failed, nothing runs                            `Fail`, once
asynchronous queue free, subgraph of it ready          `Enqueue` (line 15 to 19)
blocking queue free, subgraph of it ready              `Submit` (line 20)
calling thread free, all branches of a join there      `Join` (line 6)
calling thread free, inline subgraph ready             `RunInline` (line 4)
calling thread free, all steps done                    `Finish`, once
calling thread free, others still run                  `Wait` for them (line 5)
=====================================================  ==========================

The other processors are set to work before the calling thread, which would
otherwise keep them waiting for the length of its own subgraph.
"""

from bisect import insort
from collections.abc import Hashable
from copy import copy

from scheduler.runtime.events import (
    Enqueue,
    Event,
    Fail,
    Finish,
    InputReady,
    Instruction,
    Join,
    JoinDone,
    JoinFailed,
    RunInline,
    SubgraphDone,
    SubgraphFailed,
    Submit,
    Wait,
)
from scheduler.runtime.plan import ExecutionPlan


class SchedulerState:
    """The state of one inference.

    Args:
        plan: What is to be run.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._missing = dict(plan.missing)
        self._left = len(plan.missing)
        self._ready: dict[str, list[tuple[int, str]]] = {queue: [] for queue in plan.queues}
        self._ready_joins: list[str] = []
        self._running: dict[str, str] = {}
        self._joining: str | None = None
        self._failure: tuple[str, str] | None = None
        self._started = False
        self._closed = False
        self._enqueued = [q for q, dispatch in plan.queues.items() if dispatch == "async"]
        self._submitted = [q for q, dispatch in plan.queues.items() if dispatch == "blocking"]
        self._inline = next((q for q, dispatch in plan.queues.items() if dispatch == "inline"), None)

    def handle(self, event: Event) -> list[Instruction]:
        """Take in one event.

        Returns:
            What to do now. At most the last instruction occupies the calling
            thread; those before it only hand work to others.

        Raises:
            ValueError: If the event cannot follow what went before.
        """
        match event:
            case SubgraphDone(name):
                self._free(name)
                self._written(self._plan.subgraphs[name].output)
            case JoinDone(name):
                self._free_join(name)
                self._written(self._plan.joins[name].output)
            case InputReady():
                if self._started:
                    raise ValueError("the input is ready twice")
                self._started = True
                self._arrived(self._plan.input)
            case SubgraphFailed(name, error):
                self._free(name)
                self._failure = self._failure or (name, error)
            case JoinFailed(name, error):
                self._free_join(name)
                self._failure = self._failure or (name, error)
        return self._advance()

    def copy(self) -> "SchedulerState":
        """A state that goes its own way from here."""
        other = copy(self)
        other._missing = dict(self._missing)
        other._ready = {queue: list(ready) for queue, ready in self._ready.items()}
        other._ready_joins = list(self._ready_joins)
        other._running = dict(self._running)
        return other

    def key(self) -> Hashable:
        """Equal for states that answer all events to come alike."""
        ready = tuple(tuple(names) for names in self._ready.values())
        rest = (self._joining, self._failure, self._started, self._closed)
        return tuple(self._missing.values()), ready, tuple(self._ready_joins), tuple(self._running.items()), self._left, rest

    def _advance(self) -> list[Instruction]:
        if self._failure:
            return self._wind_down(*self._failure)
        instructions: list[Instruction] = [Enqueue(name) for name in self._start_on(self._enqueued)]
        instructions += [Submit(name) for name in self._start_on(self._submitted)]
        if not self._calling_thread_busy():
            instructions += self._use_calling_thread()
        return instructions

    def _use_calling_thread(self) -> list[Instruction]:
        if self._ready_joins:
            self._joining = self._ready_joins.pop(0)
            return [Join(self._joining)]
        if self._inline is not None:
            for name in self._start_on([self._inline]):
                return [RunInline(name)]
        if not self._left and not self._closed:
            self._closed = True
            return [Finish(self._plan.output)]
        return [Wait(tuple(self._running.values()))] if self._running else []

    def _wind_down(self, step: str, error: str) -> list[Instruction]:
        if self._calling_thread_busy():
            return []
        if self._running:
            return [Wait(tuple(self._running.values()))]
        if self._closed:
            return []
        self._closed = True
        return [Fail(step, error)]

    def _start_on(self, queues: list[str]) -> list[str]:
        started = []
        for queue in queues:
            ready = self._ready[queue]
            if ready and queue not in self._running:
                _, name = ready.pop(0)
                self._running[queue] = name
                started.append(name)
        return started

    def _calling_thread_busy(self) -> bool:
        return self._joining is not None or self._inline in self._running

    def _free(self, name: str) -> None:
        subgraph = self._plan.subgraphs.get(name)
        if subgraph is None or self._running.get(subgraph.placement.queue) != name:
            raise ValueError(f"subgraph `{name}` is not running")
        del self._running[subgraph.placement.queue]

    def _free_join(self, name: str) -> None:
        if self._joining != name:
            raise ValueError(f"join `{name}` is not running")
        self._joining = None

    def _written(self, tensor: str) -> None:
        self._left -= 1
        self._arrived(tensor)

    def _arrived(self, tensor: str) -> None:
        plan = self._plan
        for name in plan.readers.get(tensor, ()):
            self._missing[name] -= 1
            if self._missing[name]:
                continue
            subgraph = plan.subgraphs.get(name)
            if subgraph is None:
                self._ready_joins.append(name)
            else:
                insort(self._ready[subgraph.placement.queue], (plan.order[name], name))
