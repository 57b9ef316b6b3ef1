"""Drives the state machine with threads: one inference at a time for latency, several in flight, several clients.

Every queue has a thread. A thread that has ended a step tells the state machine and hands out what that starts: the next
step of its own queue needs no waking, and nobody is woken for nothing. For latency the thread that called works, too: it
runs the CPU's subgraphs and joins, and puts subgraphs of asynchronous processors into their command queues.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from predictors import system
from predictors.errors import StretchError
from scheduler.cores import pinned
from scheduler.delegates.base import Array, AsyncInvocation, Invocation, UnableError
from scheduler.faults.policy import Ended, Site
from scheduler.placement.place import Placement, queues_of
from scheduler.runtime.buffers import Buffers, bind_subgraph, subgraph_spans
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.inputs import Values, plain
from scheduler.runtime.machine import (
    CALLING_THREAD,
    ONLY,
    Client,
    ClientRemoved,
    Enqueue,
    Event,
    Fail,
    Finish,
    InputReady,
    Instruction,
    Machine,
    QueueReleased,
    Replaced,
    Start,
    StepDone,
    StepFailed,
    StepReturned,
    Submit,
    Transitions,
)
from scheduler.runtime.plan import ExecutionPlan, plan_of
from scheduler.runtime.record import Recorder
from scheduler.runtime.sequential import Check
from scheduler.runtime.threads import LOOK_S, TIME_LIMIT_S, HangError, QueueThreads, Watch, hang_reason, interrupt, note_hang, step_failure
from scheduler.runtime.trace import QueueDepth, Span, Trace

#: Traces that are kept, of the submitted inferences that ended last.
KEPT_TRACES = 64

#: Events of shared queues that are kept, with what they were answered.
KEPT = 4096

#: Seconds that an interrupted run waits for what it left behind; what takes longer is waited for by the next run.
REST_S = 0.5


class Lane:
    """Buffers of one inference in flight, its subgraphs bound to them, and the inference that is in it.

    Args:
        buffers: Memory of the tensors that cross subgraphs.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        #: Subgraphs as they are bound, by name and where their code runs.
        self.calls: dict[tuple[str, Site], Invocation] = {}
        self.begin()

    def begin(self, future: "Future[Values] | None" = None, keep: dict[str, Array] | None = None) -> None:
        """Take the next inference.

        Args:
            future: Who waits for it.
            keep: Gets a copy of every tensor as soon as it is written.
        """
        self.future = future
        #: Of steps that ended.
        self.done: list[Report] = []
        #: What went wrong, by step.
        self.errors: dict[str, Exception] = {}
        self.keep = keep
        self.start_ns = perf_counter_ns()


class Task:
    """A step of a lane on a queue, as it is run again and again."""

    def __init__(self, driver: "Driver", executor: "Executor", start: Start, place: Placement | None) -> None:
        self.driver, self.executor, self.step, self.queue = driver, executor, start.step, start.queue
        #: Where its subgraph was placed when it started; None for a join.
        self.place = place
        #: What is told when it is done.
        self.done = StepDone(start.lane, start.step, start.queue, start.client)
        self.lane = executor.lanes[start.lane]
        #: Whether it runs on the thread that called, and whether it is only put into a command queue there.
        self.called, self.enqueued = driver.works and not isinstance(start, Submit), isinstance(start, Enqueue)
        self.invocation = None if place is None else self.lane.calls[start.step, Site.of(place)]
        self.run: Callable[[], object]
        if self.invocation is None:
            self.run = self.lane.buffers.joins[start.step] or _nothing
        elif isinstance(self.invocation, AsyncInvocation) and self.enqueued:
            self.run = self.invocation.enqueue
        else:
            self.run = self.invocation.run
        #: Whether its end is waited for by the thread that called, where that has nothing to do: others read what it writes.
        self.news = driver.works and not self.called and executor.awaited(start.step)
        #: Has `job` run by the thread that it is for.
        self.put = executor.inbox.put if self.called else driver.threads.inbox(start.queue).put
        self.job: Any = self if self.called else partial(executor.work, self)


def _nothing() -> None:
    """The work of a join whose branches have written in place, and what wakes a thread."""


#: How a step went: when it began and ended, and what it raised.
Report = tuple[Task, int, int, Exception | None]

#: An answer of the state machine: the tasks that it starts, and the end of an inference.
Answer = tuple[tuple[Task, ...], Finish | Fail | None]


class Driver:
    """A state machine, and who does what it says; all of it is called with its lock held.

    Args:
        lock: Guards the state of inferences.
        recorder: Writes down what the state machine is told and answers; None for nobody.
        remembers: Whether answers are looked up where they are known: for a machine of one client, with few states.
        now: Clock of the events, ms; None where they carry no moments.
    """

    def __init__(
        self,
        machine: Machine,
        threads: QueueThreads,
        lock: threading.RLock,
        recorder: Recorder | None = None,
        *,
        remembers: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.threads, self.lock = threads, lock
        self._recorder, self._now = recorder, now
        #: Whose inferences these are, by the client's name.
        self.executors: dict[str, Executor] = {}
        #: Events that were told last, with what they were answered, if they carry moments.
        self.events: deque[tuple[Event, tuple[Instruction, ...]]] = deque(maxlen=KEPT)
        self._tasks: dict[tuple[Start, Placement | None], Task] = {}
        #: Whether the thread that called works, too.
        self.works = machine.caller is not None
        self.table: Transitions[Answer] | None = Transitions(self._prepared) if remembers and recorder is None else None
        self.restart(machine)

    def restart(self, machine: Machine) -> None:
        """Go on with a machine that has nothing in flight."""
        self._machine = machine
        self._recorded = 0 if self._recorder is None else self._recorder.open(machine)
        if self.table is not None:
            self.node = self.table.node(machine)

    @property
    def machine(self) -> Machine:
        """Return the state; only `tell` may change it."""
        return self._machine if self.table is None else self.node.machine

    def tell(self, event: Event, key: object = None) -> Finish | Fail | None:
        """Tell the state machine, hand out the steps that it answers, and give the end of an inference.

        Args:
            key: Under which the answer is remembered; None to not remember it.
        """
        if self.table is None:
            if self._now is not None:
                event = structs.replace(event, at_ms=self._now())
            instructions = self._machine.handle(event)
            if self._recorder is not None:
                self._recorder.note(self._recorded, event, instructions)
            if self._now is not None:
                self.events.append((event, tuple(instructions)))
            tasks, end = self._prepared(instructions)
        else:
            known = self.node.answers.get(key)
            (tasks, end), self.node = known if known is not None else self.table.learn(self.node, event, key)
        for task in tasks:
            task.put(task.job)
        return end

    def _prepared(self, instructions: Sequence[Instruction]) -> Answer:
        tasks = tuple(self._task(instruction) for instruction in instructions if isinstance(instruction, Start))
        return tasks, next((instruction for instruction in instructions if isinstance(instruction, Finish | Fail)), None)

    def _task(self, start: Start) -> Task:
        executor = self.executors[start.client]
        place = executor.places[start.step] if start.step in executor.plan.subgraphs else None
        if (start, place) not in self._tasks:
            self._tasks[start, place] = Task(self, executor, start, place)
        return self._tasks[start, place]

    def give_up(self, client: str, queue: str) -> None:
        """A client's step hangs: its inferences are given up, and the queue gets another thread."""
        self.tell(ClientRemoved(client))
        self.threads.renew(queue)
        if self.machine.left_behind(queue):
            self.tell(QueueReleased(queue))

    def left(self, queue: str) -> None:
        """A step of a client that was given up has ended."""
        if self.threads.calling(queue) and self.machine.left_behind(queue):
            self.tell(QueueReleased(queue))

    def forget(self, client: str) -> None:
        """Let go of a client's tasks, which hold its code."""
        self._tasks = {key: task for key, task in self._tasks.items() if key[0].client != client}
        if self.table is not None:
            self.table.clear()
            self.node = self.table.node(self.node.machine)


class Tenant(NamedTuple):
    """That an executor's inferences in flight run among those of others."""

    driver: Driver  # Of all of them.
    client: str  # Its name there.
    weight: float = 1.0  # With twice the weight of another it gets twice as much of a processor that both want.


class Executor:
    """Runs inferences of a plan: one at a time (`run`), or several in flight (`submit`), but not both at once.

    A subgraph that its delegate cannot run (any more) goes on where it falls back on.

    Args:
        placements: Where each subgraph runs.
        buffers: Makes the memory of the tensors that cross subgraphs, for each inference in flight.
        limit_s: Seconds that one call of a delegate may take.
        recorder: Writes down what the state machines are told and answer; None for nobody.
        in_flight: Inferences that `submit` runs at once.
        named: Gives the outputs, by the names of their tensors, the names that callers know.
        tenant: Whose queues submitted inferences share; None for some of their own.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        placements: Mapping[str, Placement],
        buffers: Callable[[], Buffers],
        code: CompiledSubgraphs,
        limit_s: float = TIME_LIMIT_S,
        recorder: Recorder | None = None,
        *,
        in_flight: int = 1,
        named: Callable[[Mapping[str, Array]], Mapping[str, Array]] = dict,
        tenant: Tenant | None = None,
    ) -> None:
        self.plan = plan
        #: Where each subgraph runs now.
        self.places = dict(placements)
        self._buffers, self._code, self._limit_s = buffers, code, limit_s
        self._recorder, self._in_flight, self._named, self._tenant = recorder, in_flight, named, tenant
        self._client = ONLY if tenant is None else tenant.client
        self._threads = QueueThreads() if tenant is None else tenant.driver.threads
        self._lock = threading.RLock() if tenant is None else tenant.driver.lock
        self._changed = threading.Condition(self._lock)
        #: For the thread that called: steps to run, how others went, or None to look up; and how its inference ended.
        self.inbox: SimpleQueue[Task | Report | None] = SimpleQueue()
        self._outcome: Finish | Fail | None = None
        self.lanes = [Lane(buffers())]
        self._free: deque[int] = deque()
        self._flight: Driver | None = None
        #: Subgraphs that went elsewhere since this was made, and why.
        self._replaced: dict[str, str] = {}
        self._traces: deque[Trace] = deque(maxlen=KEPT_TRACES)
        self._depths: deque[QueueDepth] = deque(maxlen=KEPT_TRACES * 16)
        self._adding = threading.Lock()
        self._enqueued: deque[Report] = deque()
        #: Whether a run has begun and not come to its end, and whether what it left behind is not to be reported any more.
        self._disturbed = self._stale = False
        self._caller = 0
        #: What hangs, if anything does: nothing runs here any more then.
        self.hang: HangError | None = None
        #: Whether something hangs, or this was closed.
        self._over = False
        self._watch = Watch(limit_s, self._overdue)
        self._running = self._watch.running
        self._alone = Driver(Machine.of(plan, self.places), self._threads, self._lock, recorder, remembers=True)
        self._alone.executors[ONLY] = self
        for name, place in placements.items():
            self._add(name, place)

    @property
    def buffers(self) -> Buffers:
        """Memory of the inference that runs alone."""
        return self.lanes[0].buffers

    @property
    def bytes(self) -> int:
        """Memory of all lanes' buffers."""
        return sum(lane.buffers.bytes for lane in self.lanes)

    @property
    def owns_calling_thread(self) -> bool:
        """Whether the caller is a thread of a queue, which must not wait for inferences."""
        return self._threads.calling()

    # One inference at a time.

    def run(self, keep: dict[str, Array] | None = None) -> Trace:
        """Run once, from the inputs' buffers to the outputs', while nothing is in flight.

        Args:
            keep: Gets a copy of every tensor that crosses subgraphs.
        """
        if keep is not None:
            keep.update({name: self.buffers.arrays[name].copy() for name in self.plan.inputs})
        start, end = self._infer(self._alone, keep)
        return Trace(self._spans(self.lanes[0]), start, end, system.load_average(), dict(self._replaced))

    def run_alone(self, name: str) -> Span:
        """Run one subgraph where it is placed, with every other processor idle."""
        subgraph, place = self.plan.subgraphs[name], self.places[name]
        machine = Machine.of(plan_of(subgraph.inputs, subgraph.outputs, [subgraph], []), {name: place})
        driver = Driver(machine, self._threads, self._lock)
        driver.executors[ONLY] = self
        self._infer(driver, None)
        return next(span for span in self._spans(self.lanes[0]) if span.name == name)

    def _infer(self, driver: Driver, keep: dict[str, Array] | None) -> tuple[int, int]:
        """One inference on the calling thread, from what the last one left behind to its own end: when it began and ended."""
        self._raise_hang()
        if self._disturbed and not self._settle(self._limit_s):
            raise StretchError("what an interrupted run left behind does not end", "make a new Session")
        lane, self._disturbed, self._caller = self.lanes[0], True, threading.get_ident()
        lane.begin(keep=keep)
        self._outcome = None
        try:
            with pinned(next((place.cores[:1] for place in self.places.values() if place.dispatch == "inline"), ())):
                start = perf_counter_ns()
                with self._lock:  # not the condition, which an interrupt would leave locked
                    driver.tell(InputReady(0), InputReady)
                ended = self._serve(driver)
                end = perf_counter_ns()
            with self._lock:
                hangs = self.hang is not None
            while hangs:  # an interruption that is on its way arrives here and nowhere else
                time.sleep(REST_S)
            self._disturbed = False
        except KeyboardInterrupt:
            self._raise_hang()
            raise
        finally:
            if self._disturbed:
                self._settle(REST_S)
        if isinstance(ended, Fail):
            error = lane.errors.get(ended.step)
            raise step_failure(ended.step, self.places.get(ended.step), error, ended.error) from error
        return start, end

    def _serve(self, driver: Driver) -> Finish | Fail:
        """The calling thread's part of an inference: the hot path, whose code and data every subgraph evicts from the caches."""
        inbox, enqueued, running, lock, done = self.inbox, self._enqueued, self._running, self._lock, self.lanes[0].done
        answers_known = driver.table is not None and self.lanes[0].keep is None
        task: Task | None = None
        while self._outcome is None:
            if task is not None:
                start, error = perf_counter_ns(), None
                if task.place is not None:
                    running[CALLING_THREAD] = (task.step, start)
                try:
                    task.run()
                except Exception as raised:
                    error = raised
                report = (task, start, perf_counter_ns(), error)
                running[CALLING_THREAD] = None
                if task.enqueued and error is None:
                    enqueued.append(report)
                    task = None
                    continue
            elif enqueued and inbox.empty():
                report = self._wait_for(*enqueued.popleft())
            else:
                try:
                    item = inbox.get(timeout=LOOK_S)
                except Empty:  # here Ctrl-C takes effect
                    continue
                if isinstance(item, Task):
                    task = item
                    continue
                if item is None:  # something hangs, or a thread has reported the end
                    self._raise_hang()
                    continue
                report = item
            task = None
            if answers_known and report[3] is None:
                with lock:
                    known = None if self._over else driver.node.answers.get(report[0])
                    if known is not None:
                        done.append(report)
                        (tasks, self._outcome), driver.node = known
                        for started in tasks:
                            if started.called and not started.enqueued and inbox.empty():
                                task = started  # behind nothing that was enqueued
                            else:
                                started.put(started.job)
                        continue
            self._report(*report)
        return self._outcome

    def _wait_for(self, task: Task, start: int, end: int, error: Exception | None) -> Report:
        """How the subgraph went that was enqueued first."""
        assert isinstance(task.invocation, AsyncInvocation)  # looked at when it was added
        self._running[CALLING_THREAD] = (task.step, perf_counter_ns())
        try:
            task.invocation.wait()
        except Exception as raised:
            error = raised
        self._running[CALLING_THREAD] = None
        return task, start, perf_counter_ns(), error

    def _settle(self, seconds: float) -> bool:
        """Wait for whatever an interrupted or failed run left behind, then forget it; False if that takes longer.

        An interrupt may fall between any two statements, so this counts nothing: each thread says when it gets here.
        """
        if self.hang is not None:
            return False
        deadline = monotonic() + seconds
        rested = {place.queue: threading.Event() for place in self.places.values() if place.dispatch == "blocking"}
        with self._lock:
            self._stale = True
            for queue, rest in rested.items():
                self._threads.inbox(queue).put(rest.set)
        # A wait may hang as well, and cannot be told how long it may take.
        calls = [call for call in self.lanes[0].calls.values() if isinstance(call, AsyncInvocation)]
        waiter = threading.Thread(target=_wait_for_all, args=(calls,), name="nn-stretch rest", daemon=True)
        waiter.start()
        if not all(rest.wait(max(0.0, deadline - monotonic())) for rest in rested.values()):
            return False
        waiter.join(max(0.0, deadline - monotonic()))
        if waiter.is_alive():
            return False
        with self._lock:
            self._enqueued.clear()
            while not self.inbox.empty():
                self.inbox.get_nowait()
            self._running[CALLING_THREAD] = None
            self._alone.restart(Machine.of(self.plan, self.places))
            self._disturbed = self._stale = False
        return True

    # Several in flight.

    def ready(self) -> None:
        """Have everything ready that inferences in flight need."""
        if self._flight is not None:
            return
        self.lanes[1:] = [Lane(self._buffers()) for _ in range(self._in_flight - 1)]
        if self._tenant is None:
            machine = Machine.of(self.plan, self.places, self._in_flight, caller=False, movable=self._code.movable())
            flight = Driver(machine, self._threads, self._lock, self._recorder)
        else:
            flight = self._tenant.driver
        for name, place in self.places.items():
            self._add(name, place)
        with self._lock:
            for place in self.places.values():
                self._threads.open(place.queue, place.thread_cores)
            if self._tenant is not None:
                flight.machine.add(self._client, Client(self.plan, self.places, self._in_flight, self._tenant.weight))
            flight.forget(self._client)  # tasks of an executor that hangs
            flight.executors[self._client] = self
            self._free.extend(range(self._in_flight))
            self._flight = flight

    def submit(self, x: Mapping[str, Array], deadline_s: float = inf, priority: int = 0) -> Future[Values]:
        """Start an inference; waits while as many as may be are in flight."""
        self.ready()
        with self._changed:
            while not self._free and self.hang is None:
                self._changed.wait()
            self._raise_hang()
            number = self._free.popleft()
        lane, future = self.lanes[number], Future[Values]()
        lane.begin(future)
        future.set_running_or_notify_cancel()
        for name, value in x.items():
            np.copyto(lane.buffers.arrays[name], value)  # outside the lock: it takes as long as a small subgraph
        lane.start_ns = perf_counter_ns()
        with self._changed:
            if self._flight is not None and not self._over:  # else its future was told
                deadline_ms = None if deadline_s == inf else deadline_s * 1e3
                self._flight.tell(InputReady(number, self._client, deadline_ms=deadline_ms, priority=priority))
        return future

    def drain(self) -> None:
        """Return when no inference is in flight."""
        with self._changed:
            while self._flight is not None and len(self._free) < len(self.lanes) and self.hang is None:
                self._changed.wait()
            self._raise_hang()

    def traces(self) -> tuple[Trace, ...]:
        """The submitted inferences that ended last, oldest first."""
        with self._changed:
            return tuple(self._traces)

    def depths(self) -> tuple[QueueDepth, ...]:
        """How many subgraphs of submitted inferences waited for each queue, whenever that changed."""
        with self._changed:
            return tuple(self._depths)

    def _hand_out(self, end: Finish | Fail) -> None:
        """Give a submitted inference's result to whoever waits for it, and its lane to the next one."""
        lane = self.lanes[end.lane]
        future, spans = lane.future, self._spans(lane)
        if isinstance(end, Fail):
            error = lane.errors.get(end.step)
            raised = step_failure(end.step, self.places.get(end.step), error, end.error)
            raised.__cause__ = error
            output: Values | None = None
        else:
            output = plain(self._named({name: lane.buffers.arrays[name].copy() for name in self.plan.outputs}))
        if self._code.keeper is not None:
            self._code.keeper.tell(Ended())
        with self._changed:
            self._traces.append(Trace(spans, lane.start_ns, perf_counter_ns(), replaced=dict(self._replaced)))
            self._free.append(end.lane)
            self._changed.notify_all()
        # A hang elsewhere may have answered for it in between.
        assert future is not None
        with suppress(InvalidStateError):
            if output is None:
                future.set_exception(raised)
            else:
                future.set_result(output)

    # Both.

    def work(self, task: Task) -> None:
        """Run a step on the thread of its queue."""
        running, error = self._running, None
        start = perf_counter_ns()
        if task.place is not None:
            running[task.queue] = (task.step, start)
        try:
            task.run()
        except BaseException as raised:  # whatever a delegate raises belongs to the caller
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
        report = (task, start, perf_counter_ns(), error)
        running[task.queue] = None
        if task.news and running.get(CALLING_THREAD) is None:
            self.inbox.put(report)  # the thread that called waits for it: the less is done before it is woken, the better
        else:
            self._report(*report)

    def _report(self, task: Task, start: int, end: int, error: Exception | None) -> None:
        """Tell how a step went, and hand out what that starts, or the result of a submitted inference that it ended."""
        driver = task.driver
        if error is not None:
            event, key = self._lost(task, error), None
        else:
            event, key = task.done, task
            task.lane.done.append((task, start, end, error))
            if task.lane.keep is not None:
                # Nothing that could write over it has started yet: that is what the answer to this event may do.
                arrays = task.lane.buffers.arrays
                task.lane.keep.update({name: arrays[name].copy() for name in self.plan.step(task.step).outputs})
        with self._lock:
            if self._over or (self._stale and driver.works):  # whoever waits for it has been told
                if self._flight is not None:
                    self._flight.left(task.queue)
                return
            if error is not None and isinstance(event, StepReturned):
                self._move(event.step, event.placement, driver)
            ended = driver.tell(event, key)
            if driver.works:
                if ended is not None:
                    self._outcome = ended
                    self.inbox.put(None)
                return
            self._depths.append(QueueDepth(perf_counter_ns(), driver.machine.waiting(self._client)))
        if ended is not None:
            self._hand_out(ended)

    def _lost(self, task: Task, error: Exception) -> Event:
        """What has happened where a step raised: it failed, unless its code for another placement can be made and added now."""
        done, place = task.done, task.place
        if place is not None and (isinstance(error, UnableError) or self._code.keeper is not None):
            try:
                instead = self.places[done.step]
                if instead == place:  # else another inference has met the same, and it is placed anew already
                    instead = self._code.fall_back(done.step, place, error, queues_of(self.places.values()))
                    self._add(done.step, instead)
            except Exception as again:
                error = again
            else:
                return StepReturned(done.lane, done.step, done.queue, instead, done.client)
        task.lane.errors.setdefault(done.step, error)
        return StepFailed(done.lane, done.step, done.queue, str(error), done.client)

    def awaited(self, name: str) -> bool:
        """Return whether another queue than the subgraph's own reads its outputs."""
        outputs, queue = self.plan.subgraphs[name].outputs, self.places[name].queue
        readers = {reader for tensor in outputs for reader in self.plan.readers.get(tensor, ())}
        alone = all(reader in self.places and self.places[reader].queue == queue for reader in readers)
        return not alone or not set(self.plan.outputs).isdisjoint(outputs)

    def replace(self, name: str, place: Placement) -> None:
        """Run a subgraph elsewhere from now on; where it runs already, it ends first."""
        self._add(name, place)
        with self._changed:
            self._move(name, place)

    def _move(self, name: str, place: Placement, informed: Driver | None = None) -> None:
        """Have a subgraph placed elsewhere; the lock is held, and `informed` hears of it by another event."""
        self.places[name], self._replaced[name] = place, place.reason
        for driver, client in ((self._alone, ONLY), (self._flight, self._client)):
            if driver is not None and driver is not informed:
                driver.tell(Replaced(name, place, client))

    def _add(self, name: str, place: Placement) -> None:
        """Have a subgraph's code ready for a placement, bound to every lane's buffers, and a thread for its queue."""
        compiled, site = self._code.get(name, place), Site.of(place)
        with self._adding:
            for lane in self.lanes:
                if (name, site) not in lane.calls:
                    check = self._check(name, place, lane)
                    lane.calls[name, site] = bind_subgraph(self.plan.subgraphs[name], compiled, lane.buffers, check=check)
                if place.dispatch == "async" and not isinstance(lane.calls[name, site], AsyncInvocation):
                    raise StretchError(f"delegate `{place.delegate}` says that it is asynchronous, but its invocations are not")
        if place.dispatch == "blocking" or self._flight is not None:
            with self._changed:
                self._threads.open(place.queue, place.thread_cores)

    def _check(self, name: str, place: Placement, lane: Lane) -> Check | None:
        """What looks at a subgraph's results, where somebody minds faults and the delegate computes."""
        keeper = self._code.keeper
        if keeper is None or not (keeper.policy.finite or keeper.policy.spot_every) or not self._code.computing(place):
            return None
        subgraph = self.plan.subgraphs[name]

        def other() -> tuple[str, list[Array]] | None:
            """Compute a subgraph with another delegate, from the inputs that still exist."""
            code = self._code.other(name, place)
            if code is None:
                return None
            expected = lane.buffers.like(subgraph.outputs)
            bind_subgraph(subgraph, code[1], lane.buffers, expected).run()
            return code[0], [expected[output] for output in subgraph.outputs]

        outputs = [lane.buffers.arrays[output] for output in subgraph.outputs]
        return Check(outputs, other, *self._code.accuracy(name), keeper.policy)

    def forget(self, site: Site) -> None:
        """Let go of the code of an idle site; it is bound again when it is added again."""
        with self._adding:
            for lane in self.lanes:
                lane.calls = {key: call for key, call in lane.calls.items() if key[1] != site}
        self._forget_tasks()

    def _forget_tasks(self) -> None:
        with self._changed:
            self._alone.forget(ONLY)
            if self._flight is not None:
                self._flight.forget(self._client)

    def _overdue(self, thread: str, call: tuple[str, int]) -> bool:
        """Told by the watch: nothing can be waited for any more, unless this does not hang; whether to look again."""
        running, place = self._running, self.places[call[0]]
        ended = self._code.abort(place, hang_reason(self._limit_s)) if running.get(thread) is call else "ended"
        if ended != "no":
            return ended == "restarting"
        failure = HangError.of(call[0], place, self._limit_s)
        with self._changed:
            if running.get(thread) is not call:
                return False
            self.hang, self._over = failure, True
            note_hang(failure)
            if thread == CALLING_THREAD:
                interrupt(self._caller)
            else:
                self.inbox.put(None)
                if self._flight is not None:
                    self._flight.give_up(self._client, thread)
            self._changed.notify_all()
        for lane in self.lanes:
            if lane.future is not None and lane.future.running():
                with suppress(InvalidStateError):
                    lane.future.set_exception(copy(failure))
        return False

    def _raise_hang(self) -> None:
        if self.hang is not None:
            # a new one each time: its traceback would keep whoever it was raised to
            raise copy(self.hang) from None

    def _spans(self, lane: Lane) -> tuple[Span, ...]:
        """The steps of an inference that has ended, and the conversions at their borders."""
        spans: list[Span] = []
        for task, start, end, _ in lane.done:
            call, queue = task.invocation, CALLING_THREAD if task.called and task.place is None else task.queue
            if call is None:
                spans.append(Span(task.step, self.plan.joins[task.step].processor, queue, "join", start, end))
                continue
            if task.enqueued and isinstance(call, AsyncInvocation):
                start, end = call.times() or (start, end)
            spans += subgraph_spans(self.plan.subgraphs[task.step], queue, call, start, end)
        return tuple(spans)

    def close(self, *, wait: bool = True) -> None:
        """Wait for pending inferences and threads, unless they hang, and let go of all compiled code.

        Args:
            wait: False gives up what does not end within a moment.
        """
        with self._changed:
            while self._flight is not None and len(self._free) < len(self.lanes) and self.hang is None:
                if not self._changed.wait(LOOK_S) and not wait:
                    break
            left = [] if self._flight is None else [lane for number, lane in enumerate(self.lanes) if number not in self._free]
            if self._flight is not None and left and not self._over:
                self._flight.tell(ClientRemoved(self._client))
            self._over = True
        self._watch.close()
        for lane in left:
            if lane.future is not None and lane.future.running():  # nobody computes it any more
                with suppress(InvalidStateError):
                    lane.future.set_exception(StretchError("this session was closed before the inference was over"))
        ended = self._tenant is not None or self._threads.close(lambda: wait and self.hang is None and not self._disturbed)
        self._forget_tasks()
        if ended and not left:
            # Bound subgraphs hold memory, files and processes, code holds its bundle, and this object is part of cycles.
            self.lanes, self._enqueued = [], deque()
            vars(self).pop("_code", None)


def _wait_for_all(calls: Sequence[AsyncInvocation]) -> None:
    for call in calls:
        with suppress(Exception):
            call.wait()
