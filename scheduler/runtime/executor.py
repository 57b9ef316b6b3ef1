"""Drives the state machine with threads: a single inference for latency, several in flight, several clients.

Every queue has a thread. A thread that has finished a step reports it to the state machine and starts the next steps;
a step on its own queue needs no wake-up, and no thread is woken without need. For latency the calling thread also works:
it runs the CPU's subgraphs and joins, and puts subgraphs of asynchronous processors into their command queues.
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
from scheduler.faults.policy import InferenceEnded, Site
from scheduler.placement.place import Placement, queues_of
from scheduler.runtime.buffers import Buffers, bind_subgraph, subgraph_spans
from scheduler.runtime.code import CompiledSubgraphs
from scheduler.runtime.failures import HangError, hang_reason, step_failure
from scheduler.runtime.inputs import Values, unwrap_single
from scheduler.runtime.machine import (
    CALLING_THREAD,
    ONLY_CLIENT,
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
)
from scheduler.runtime.plan import ExecutionPlan, build_plan
from scheduler.runtime.record import Recorder
from scheduler.runtime.replay import ReplayTable
from scheduler.runtime.sequential import Check
from scheduler.runtime.threads import POLL_S, QueueThreads
from scheduler.runtime.trace import QueueDepth, Span, Trace
from scheduler.runtime.watchdog import TIME_LIMIT_S, Watchdog, interrupt, note_hang

#: Maximum number of traces kept, of the latest submitted inferences.
MAX_TRACES = 64

#: Maximum number of events of shared queues kept, with their answers.
MAX_EVENTS = 4096

#: Seconds that an interrupted run waits for its unfinished steps; the next run waits for the remaining ones.
GRACE_S = 0.5


class Lane:
    """Buffers of one inference in flight, the subgraphs bound to them, and the inference that uses them.

    Args:
        buffers: Memory of the tensors that cross subgraphs.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        #: Bound subgraphs by name and site.
        self.calls: dict[tuple[str, Site], Invocation] = {}
        self.begin()

    def begin(self, future: "Future[Values] | None" = None, keep: dict[str, Array] | None = None) -> None:
        """Start the next inference.

        Args:
            future: Future that gets the result.
            keep: Dictionary that gets a copy of every tensor as soon as it is written.
        """
        self.future = future
        #: Reports of finished steps.
        self.done: list[Report] = []
        #: Errors by step.
        self.errors: dict[str, Exception] = {}
        self.keep = keep
        self.start_ns = perf_counter_ns()


class Task:
    """A step of a lane on a queue, reused for every inference."""

    def __init__(self, driver: "Driver", executor: "Executor", start: Start, placement: Placement | None) -> None:
        self.driver, self.executor, self.step, self.queue = driver, executor, start.step, start.queue
        #: Placement of its subgraph at the start; None for a join.
        self.placement = placement
        #: Event that reports its end.
        self.done = StepDone(start.lane, start.step, start.queue, start.client)
        self.lane = executor.lanes[start.lane]
        #: Whether the calling thread runs the step, and whether it only enqueues the step.
        self.on_caller, self.enqueued = driver.caller_works and not isinstance(start, Submit), isinstance(start, Enqueue)
        self.invocation = None if placement is None else self.lane.calls[start.step, Site.of(placement)]
        self.run: Callable[[], object]
        if self.invocation is None:
            self.run = self.lane.buffers.joins[start.step] or _do_nothing
        elif isinstance(self.invocation, AsyncInvocation) and self.enqueued:
            self.run = self.invocation.enqueue
        else:
            self.run = self.invocation.run
        #: Whether the end of the step wakes an idle calling thread, because other queues read its outputs.
        self.wakes_caller = driver.caller_works and not self.on_caller and executor.is_read_elsewhere(start.step)
        #: Puts `job` into the inbox of its thread.
        self.put = executor.inbox.put if self.on_caller else driver.threads.inbox(start.queue).put
        self.job: Any = self if self.on_caller else partial(executor.run_task, self)


def _do_nothing() -> None:
    """Do nothing: the work of a join whose branches have written in place, and a job that only wakes a thread."""


#: A finished step: task, start and end in ns, and its error if it failed. A plain tuple, because creating a named tuple runs code
#: that the last subgraph has evicted from the caches.
Report = tuple[Task, int, int, Exception | None]

#: An answer of the state machine: the tasks to start, and the end of an inference.
Answer = tuple[tuple[Task, ...], Finish | Fail | None]


class Driver:
    """A state machine and the tasks that it starts; all methods require its lock.

    Args:
        lock: Lock of the inferences' state.
        recorder: Records events and answers of the state machine; None for no record.
        memoize: Whether answers are computed once and then looked up; for a machine with one client and few states.
        now: Clock of the events, ms; None for events without times.
    """

    def __init__(
        self,
        machine: Machine,
        threads: QueueThreads,
        lock: threading.RLock,
        recorder: Recorder | None = None,
        *,
        memoize: bool = False,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.threads, self.lock = threads, lock
        self._recorder, self._now = recorder, now
        #: Executor of each client, by the client's name.
        self.executors: dict[str, Executor] = {}
        #: Last events with their answers, if events have times.
        self.events: deque[tuple[Event, tuple[Instruction, ...]]] = deque(maxlen=MAX_EVENTS)
        self._tasks: dict[tuple[Start, Placement | None], Task] = {}
        #: Whether the calling thread also works.
        self.caller_works = machine.caller is not None
        self.table: ReplayTable[Answer] | None = ReplayTable(self._prepare) if memoize and recorder is None else None
        self.restart(machine)

    def restart(self, machine: Machine) -> None:
        """Continue with a machine that has nothing in flight."""
        self._machine = machine
        self._recorded = 0 if self._recorder is None else self._recorder.open(machine)
        if self.table is not None:
            self.node = self.table.node(machine)

    @property
    def machine(self) -> Machine:
        """The state, which only `handle` may change."""
        return self._machine if self.table is None else self.node.machine

    def handle(self, event: Event, key: object = None) -> Finish | Fail | None:
        """Report an event to the state machine, start the steps of its answer, and return the end of an inference if it ended.

        Args:
            key: Key of the memoized answer; None for an answer that is not memoized.
        """
        if self.table is None:
            if self._now is not None:
                event = structs.replace(event, at_ms=self._now())
            instructions = self._machine.handle(event)
            if self._recorder is not None:
                self._recorder.write(self._recorded, event, instructions)
            if self._now is not None:
                self.events.append((event, tuple(instructions)))
            tasks, end = self._prepare(instructions)
        else:
            cached = self.node.answers.get(key)
            (tasks, end), self.node = cached if cached is not None else self.table.compute(self.node, event, key)
        for task in tasks:
            task.put(task.job)
        return end

    def _prepare(self, instructions: Sequence[Instruction]) -> Answer:
        tasks = tuple(self._task(instruction) for instruction in instructions if isinstance(instruction, Start))
        return tasks, next((instruction for instruction in instructions if isinstance(instruction, Finish | Fail)), None)

    def _task(self, start: Start) -> Task:
        executor = self.executors[start.client]
        place = executor.placements[start.step] if start.step in executor.plan.subgraphs else None
        if (start, place) not in self._tasks:
            self._tasks[start, place] = Task(self, executor, start, place)
        return self._tasks[start, place]

    def abandon(self, client: str, queue: str) -> None:
        """Abandon a client's inferences because a step hangs, and start a new thread for the queue."""
        self.handle(ClientRemoved(client))
        self.threads.replace_thread(queue)
        if self.machine.is_abandoned(queue):
            self.handle(QueueReleased(queue))

    def release_abandoned(self, queue: str) -> None:
        """Release the queue of an abandoned step, which has ended."""
        if self.threads.is_calling_thread(queue) and self.machine.is_abandoned(queue):
            self.handle(QueueReleased(queue))

    def drop_tasks(self, client: str) -> None:
        """Drop a client's tasks, which hold its compiled code."""
        self._tasks = {key: task for key, task in self._tasks.items() if key[0].client != client}
        if self.table is not None:
            self.table.clear()
            self.node = self.table.node(self.node.machine)


class Tenant(NamedTuple):
    """An executor's client on a shared driver."""

    driver: Driver  # Driver shared by all clients.
    client: str  # Name of the client on the driver.
    weight: float = 1.0  # A client with twice the weight gets twice the share of a contended processor.


class Executor:
    """Runs inferences of a plan: one at a time (`run`) or several in flight (`submit`), but not both at once.

    A subgraph that its delegate cannot run, or can no longer run, continues on its fallback.

    Args:
        placements: Placement of each subgraph.
        buffers: Creates the memory of the tensors between subgraphs, for each inference in flight.
        limit_s: Time limit of one call of a delegate in seconds.
        recorder: Records events and answers of the state machines; None for no record.
        in_flight: Number of inferences that `submit` runs at once.
        name_outputs: Maps the tensor names of the outputs to public names.
        tenant: Driver and client whose queues submitted inferences share; None for separate queues.
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
        name_outputs: Callable[[Mapping[str, Array]], Mapping[str, Array]] = dict,
        tenant: Tenant | None = None,
    ) -> None:
        self.plan = plan
        #: Current placement of each subgraph.
        self.placements = dict(placements)
        self._buffers, self._code, self._limit_s = buffers, code, limit_s
        self._recorder, self._in_flight, self._name_outputs, self._tenant = recorder, in_flight, name_outputs, tenant
        self._client = ONLY_CLIENT if tenant is None else tenant.client
        self._threads = QueueThreads() if tenant is None else tenant.driver.threads
        self._lock = threading.RLock() if tenant is None else tenant.driver.lock
        self._condition = threading.Condition(self._lock)
        #: Messages to the calling thread: steps to run, reports of other steps, or None to check `_outcome`, the end of its inference.
        self.inbox: SimpleQueue[Task | Report | None] = SimpleQueue()
        self._outcome: Finish | Fail | None = None
        self.lanes = [Lane(buffers())]
        self._free_lanes: deque[int] = deque()
        self._flight_driver: Driver | None = None
        #: Subgraphs that were moved to another placement, with the reason.
        self._replaced: dict[str, str] = {}
        self._traces: deque[Trace] = deque(maxlen=MAX_TRACES)
        self._depths: deque[QueueDepth] = deque(maxlen=MAX_TRACES * 16)
        self._bind_lock = threading.Lock()
        self._enqueued: deque[Report] = deque()
        #: Whether a run has begun and not ended, and whether reports of its remaining steps are dropped.
        self._interrupted = self._discard_reports = False
        self._caller = 0
        #: The hang that ended this executor, or None.
        self.hang: HangError | None = None
        #: Whether a call hangs, or this executor was closed.
        self._stopped = False
        self._watchdog = Watchdog(limit_s, self._on_timeout)
        self._running = self._watchdog.running
        self._single_driver = Driver(Machine.of(plan, self.placements), self._threads, self._lock, recorder, memoize=True)
        self._single_driver.executors[ONLY_CLIENT] = self
        for name, place in placements.items():
            self._bind(name, place)

    @property
    def buffers(self) -> Buffers:
        """Memory of the single inference."""
        return self.lanes[0].buffers

    @property
    def bytes(self) -> int:
        """Memory of all lanes' buffers in bytes."""
        return sum(lane.buffers.bytes for lane in self.lanes)

    @property
    def owns_calling_thread(self) -> bool:
        """Whether the caller is the thread of a queue, which must not wait for inferences."""
        return self._threads.is_calling_thread()

    # One inference at a time.

    def run(self, keep: dict[str, Array] | None = None) -> Trace:
        """Run one inference, from the buffers of the inputs to those of the outputs, while nothing is in flight.

        Args:
            keep: Dictionary that gets a copy of every tensor between subgraphs.
        """
        if keep is not None:
            keep.update({name: self.buffers.arrays[name].copy() for name in self.plan.inputs})
        start, end = self._infer(self._single_driver, keep)
        return Trace(self._spans(self.lanes[0]), start, end, system.load_average(), dict(self._replaced))

    def run_alone(self, name: str) -> Span:
        """Run one subgraph at its placement, while every other processor is idle."""
        subgraph, place = self.plan.subgraphs[name], self.placements[name]
        machine = Machine.of(build_plan(subgraph.inputs, subgraph.outputs, [subgraph], []), {name: place})
        driver = Driver(machine, self._threads, self._lock)
        driver.executors[ONLY_CLIENT] = self
        self._infer(driver, None)
        return next(span for span in self._spans(self.lanes[0]) if span.name == name)

    def _infer(self, driver: Driver, keep: dict[str, Array] | None) -> tuple[int, int]:
        """Run one inference on the calling thread, after the unfinished steps of an interrupted one; return start and end in ns."""
        self._raise_hang()
        if self._interrupted and not self._wait_for_leftovers(self._limit_s):
            raise StretchError("what an interrupted run left behind does not end", "make a new Session")
        lane, self._interrupted, self._caller = self.lanes[0], True, threading.get_ident()
        lane.begin(keep=keep)
        self._outcome = None
        try:
            with pinned(next((place.cores[:1] for place in self.placements.values() if place.dispatch == "inline"), ())):
                start = perf_counter_ns()
                with self._lock:  # not the condition, because an interrupt would leave it locked
                    driver.handle(InputReady(0), InputReady)
                ended = self._serve(driver)
                end = perf_counter_ns()
            with self._lock:
                hangs = self.hang is not None
            while hangs:  # a pending interrupt must arrive here
                time.sleep(GRACE_S)
            self._interrupted = False
        except KeyboardInterrupt:
            self._raise_hang()
            raise
        finally:
            if self._interrupted:
                self._wait_for_leftovers(GRACE_S)
        if isinstance(ended, Fail):
            error = lane.errors.get(ended.step)
            raise step_failure(ended.step, self.placements.get(ended.step), error, ended.error) from error
        return start, end

    def _serve(self, driver: Driver) -> Finish | Fail:
        """Run the calling thread's part of an inference: the hot path, whose code and data every subgraph evicts from the caches."""
        inbox, enqueued, running, lock, done = self.inbox, self._enqueued, self._running, self._lock, self.lanes[0].done
        use_table = driver.table is not None and self.lanes[0].keep is None
        task: Task | None = None
        while self._outcome is None:
            if task is not None:
                start, error = perf_counter_ns(), None
                if task.placement is not None:
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
                report = self._wait_for_enqueued(enqueued.popleft())
            else:
                try:
                    item = inbox.get(timeout=POLL_S)
                except Empty:  # Ctrl-C takes effect here
                    continue
                if isinstance(item, Task):
                    task = item
                    continue
                if item is None:  # a call hangs, or another thread has reported the end
                    self._raise_hang()
                    continue
                report = item
            task = None
            if use_table and report[3] is None:
                with lock:
                    cached = None if self._stopped else driver.node.answers.get(report[0])
                    if cached is not None:
                        done.append(report)
                        (tasks, self._outcome), driver.node = cached
                        for started in tasks:
                            if started.on_caller and not started.enqueued and inbox.empty():
                                task = started  # no enqueued step waits before this one
                            else:
                                started.put(started.job)
                        continue
            self._handle_report(report)
        return self._outcome

    def _wait_for_enqueued(self, report: Report) -> Report:
        """Wait for the subgraph that was enqueued first, and return its report."""
        task, start, _, error = report
        assert isinstance(task.invocation, AsyncInvocation)  # checked when it was enqueued
        self._running[CALLING_THREAD] = (task.step, perf_counter_ns())
        try:
            task.invocation.wait()
        except Exception as raised:
            error = raised
        self._running[CALLING_THREAD] = None
        return task, start, perf_counter_ns(), error

    def _wait_for_leftovers(self, seconds: float) -> bool:
        """Wait for the unfinished steps of an interrupted or failed run, then drop them; return False if that takes longer.

        An interrupt may fall between any two statements, so nothing is counted: each queue's thread sets an event when it is idle.
        """
        if self.hang is not None:
            return False
        deadline = monotonic() + seconds
        idle_events = {place.queue: threading.Event() for place in self.placements.values() if place.dispatch == "blocking"}
        with self._lock:
            self._discard_reports = True
            for queue, idle in idle_events.items():
                self._threads.inbox(queue).put(idle.set)
        # A wait may hang as well, and its duration is unknown.
        calls = [call for call in self.lanes[0].calls.values() if isinstance(call, AsyncInvocation)]
        waiter = threading.Thread(target=_wait_for_all, args=(calls,), name="nn-stretch rest", daemon=True)
        waiter.start()
        if not all(idle.wait(max(0.0, deadline - monotonic())) for idle in idle_events.values()):
            return False
        waiter.join(max(0.0, deadline - monotonic()))
        if waiter.is_alive():
            return False
        with self._lock:
            self._enqueued.clear()
            while not self.inbox.empty():
                self.inbox.get_nowait()
            self._running[CALLING_THREAD] = None
            self._single_driver.restart(Machine.of(self.plan, self.placements))
            self._interrupted = self._discard_reports = False
        return True

    # Several in flight.

    def prepare_in_flight(self) -> None:
        """Prepare lanes, threads and the driver of inferences in flight."""
        if self._flight_driver is not None:
            return
        self.lanes[1:] = [Lane(self._buffers()) for _ in range(self._in_flight - 1)]
        if self._tenant is None:
            machine = Machine.of(self.plan, self.placements, self._in_flight, caller=False, movable=self._code.movable())
            driver = Driver(machine, self._threads, self._lock, self._recorder)
        else:
            driver = self._tenant.driver
        for name, place in self.placements.items():
            self._bind(name, place)
        with self._lock:
            for place in self.placements.values():
                self._threads.open(place.queue, place.thread_cores)
            if self._tenant is not None:
                driver.machine.add(self._client, Client(self.plan, self.placements, self._in_flight, self._tenant.weight))
            driver.drop_tasks(self._client)  # tasks of an executor that hangs
            driver.executors[self._client] = self
            self._free_lanes.extend(range(self._in_flight))
            self._flight_driver = driver

    def submit(self, x: Mapping[str, Array], deadline_s: float = inf, priority: int = 0) -> Future[Values]:
        """Start an inference; wait while the maximum number is in flight."""
        self.prepare_in_flight()
        with self._condition:
            while not self._free_lanes and self.hang is None:
                self._condition.wait()
            self._raise_hang()
            number = self._free_lanes.popleft()
        lane, future = self.lanes[number], Future[Values]()
        lane.begin(future)
        future.set_running_or_notify_cancel()
        for name, value in x.items():
            np.copyto(lane.buffers.arrays[name], value)  # outside the lock, because a copy takes as long as a small subgraph
        lane.start_ns = perf_counter_ns()
        with self._condition:
            if self._flight_driver is not None and not self._stopped:  # otherwise its future already has its result
                deadline_ms = None if deadline_s == inf else deadline_s * 1e3
                self._flight_driver.handle(InputReady(number, self._client, deadline_ms=deadline_ms, priority=priority))
        return future

    def drain(self) -> None:
        """Wait until no inference is in flight."""
        with self._condition:
            while self._flight_driver is not None and len(self._free_lanes) < len(self.lanes) and self.hang is None:
                self._condition.wait()
            self._raise_hang()

    def traces(self) -> tuple[Trace, ...]:
        """Return the traces of the latest submitted inferences, oldest first."""
        with self._condition:
            return tuple(self._traces)

    def depths(self) -> tuple[QueueDepth, ...]:
        """Return the numbers of ready subgraphs that waited for each queue, at each change."""
        with self._condition:
            return tuple(self._depths)

    def _complete(self, end: Finish | Fail) -> None:
        """Set the future of a submitted inference, and free its lane."""
        lane = self.lanes[end.lane]
        future, spans = lane.future, self._spans(lane)
        if isinstance(end, Fail):
            error = lane.errors.get(end.step)
            raised = step_failure(end.step, self.placements.get(end.step), error, end.error)
            raised.__cause__ = error
            output: Values | None = None
        else:
            output = unwrap_single(self._name_outputs({name: lane.buffers.arrays[name].copy() for name in self.plan.outputs}))
        if self._code.fault_tracker is not None:
            self._code.fault_tracker.handle(InferenceEnded())
        with self._condition:
            self._traces.append(Trace(spans, lane.start_ns, perf_counter_ns(), replaced=dict(self._replaced)))
            self._free_lanes.append(end.lane)
            self._condition.notify_all()
        # A hang elsewhere may have set the future in between.
        assert future is not None
        with suppress(InvalidStateError):
            if output is None:
                future.set_exception(raised)
            else:
                future.set_result(output)

    # Both.

    def run_task(self, task: Task) -> None:
        """Run a step on the thread of its queue."""
        running, error = self._running, None
        start = perf_counter_ns()
        if task.placement is not None:
            running[task.queue] = (task.step, start)
        try:
            task.run()
        except BaseException as raised:  # the caller gets any exception that a delegate raises
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
        report = (task, start, perf_counter_ns(), error)
        running[task.queue] = None
        if task.wakes_caller and running.get(CALLING_THREAD) is None:
            self.inbox.put(report)  # the calling thread waits for this report, so it is woken first
        else:
            self._handle_report(report)

    def _handle_report(self, report: Report) -> None:
        """Report the end of a step to its driver, and complete the submitted inference that it ended."""
        task, _, _, error = report
        driver = task.driver
        if error is not None:
            event, key = self._failure_event(task, error), None
        else:
            event, key = task.done, task
            task.lane.done.append(report)
            if task.lane.keep is not None:
                # The answer to this event may start steps that overwrite these tensors.
                arrays = task.lane.buffers.arrays
                task.lane.keep.update({name: arrays[name].copy() for name in self.plan.step(task.step).outputs})
        with self._lock:
            if self._stopped or (self._discard_reports and driver.caller_works):  # waiting callers were already answered
                if self._flight_driver is not None:
                    self._flight_driver.release_abandoned(task.queue)
                return
            if error is not None and isinstance(event, StepReturned):
                self._set_placement(event.step, event.placement, driver)
            ended = driver.handle(event, key)
            if driver.caller_works:
                if ended is not None:
                    self._outcome = ended
                    self.inbox.put(None)
                return
            self._depths.append(QueueDepth(perf_counter_ns(), driver.machine.waiting(self._client)))
        if ended is not None:
            self._complete(ended)

    def _failure_event(self, task: Task, error: Exception) -> Event:
        """Return the event of a step that raised: a failure, or a return if its code can be compiled and bound for another placement."""
        done, place = task.done, task.placement
        if place is not None and (isinstance(error, UnableError) or self._code.fault_tracker is not None):
            try:
                replacement = self.placements[done.step]
                if replacement == place:  # otherwise another inference has failed in the same way and has already moved the subgraph
                    replacement = self._code.fall_back(done.step, place, error, queues_of(self.placements.values()))
                    self._bind(done.step, replacement)
            except Exception as second_error:
                error = second_error
            else:
                return StepReturned(done.lane, done.step, done.queue, replacement, done.client)
        task.lane.errors.setdefault(done.step, error)
        return StepFailed(done.lane, done.step, done.queue, str(error), done.client)

    def is_read_elsewhere(self, name: str) -> bool:
        """Return whether a queue other than the subgraph's reads its outputs, or the caller does."""
        outputs, queue = self.plan.subgraphs[name].outputs, self.placements[name].queue
        readers = {reader for tensor in outputs for reader in self.plan.readers.get(tensor, ())}
        alone = all(reader in self.placements and self.placements[reader].queue == queue for reader in readers)
        return not alone or not set(self.plan.outputs).isdisjoint(outputs)

    def replace(self, name: str, place: Placement) -> None:
        """Run a subgraph at another placement from now on; a running call of it ends first."""
        self._bind(name, place)
        with self._condition:
            self._set_placement(name, place)

    def _set_placement(self, name: str, place: Placement, informed_driver: Driver | None = None) -> None:
        """Set a subgraph's placement, with the lock held; `informed_driver` already gets another event for the change."""
        self.placements[name], self._replaced[name] = place, place.reason
        for driver, client in ((self._single_driver, ONLY_CLIENT), (self._flight_driver, self._client)):
            if driver is not None and driver is not informed_driver:
                driver.handle(Replaced(name, place, client))

    def _bind(self, name: str, place: Placement) -> None:
        """Compile a subgraph for a placement, bind it to every lane's buffers, and start a thread for its queue."""
        compiled, site = self._code.get(name, place), Site.of(place)
        with self._bind_lock:
            for lane in self.lanes:
                if (name, site) not in lane.calls:
                    check = self._check(name, place, lane)
                    lane.calls[name, site] = bind_subgraph(self.plan.subgraphs[name], compiled, lane.buffers, check=check)
                if place.dispatch == "async" and not isinstance(lane.calls[name, site], AsyncInvocation):
                    raise StretchError(f"delegate `{place.delegate}` says that it is asynchronous, but its invocations are not")
        if place.dispatch == "blocking" or self._flight_driver is not None:
            with self._condition:
                self._threads.open(place.queue, place.thread_cores)

    def _check(self, name: str, place: Placement, lane: Lane) -> Check | None:
        """Return a check of a subgraph's outputs, if faults are handled and the delegate computes real results."""
        tracker = self._code.fault_tracker
        if tracker is None or not (tracker.policy.finite or tracker.policy.spot_every) or not self._code.computes_at(place):
            return None
        subgraph = self.plan.subgraphs[name]

        def recompute() -> tuple[str, list[Array]] | None:
            """Compute the subgraph with another delegate, from inputs that still exist; return None without another delegate."""
            code = self._code.compile_other(name, place)
            if code is None:
                return None
            expected = lane.buffers.new_arrays(subgraph.outputs)
            bind_subgraph(subgraph, code[1], lane.buffers, expected).run()
            return code[0], [expected[output] for output in subgraph.outputs]

        outputs = [lane.buffers.arrays[output] for output in subgraph.outputs]
        return Check(outputs, recompute, *self._code.accuracy(name), tracker.policy)

    def drop_site(self, site: Site) -> None:
        """Drop the code of an idle site; it is bound again on its next use."""
        with self._bind_lock:
            for lane in self.lanes:
                lane.calls = {key: call for key, call in lane.calls.items() if key[1] != site}
        self._drop_tasks()

    def _drop_tasks(self) -> None:
        with self._condition:
            self._single_driver.drop_tasks(ONLY_CLIENT)
            if self._flight_driver is not None:
                self._flight_driver.drop_tasks(self._client)

    def _on_timeout(self, thread: str, call: tuple[str, int]) -> bool:
        """Handle a call that exceeds the time limit, for the watchdog; return whether to check the call again."""
        running, place = self._running, self.placements[call[0]]
        ended = self._code.abort(place, hang_reason(self._limit_s)) if running.get(thread) is call else "ended"
        if ended != "no":
            return ended == "restarting"
        failure = HangError.of(call[0], place, self._limit_s)
        with self._condition:
            if running.get(thread) is not call:
                return False
            self.hang, self._stopped = failure, True
            note_hang(failure)
            if thread == CALLING_THREAD:
                interrupt(self._caller)
            else:
                self.inbox.put(None)
                if self._flight_driver is not None:
                    self._flight_driver.abandon(self._client, thread)
            self._condition.notify_all()
        for lane in self.lanes:
            if lane.future is not None and lane.future.running():
                with suppress(InvalidStateError):
                    lane.future.set_exception(copy(failure))
        return False

    def _raise_hang(self) -> None:
        if self.hang is not None:
            # a new error each time, because its traceback would keep the frames of the caller
            raise copy(self.hang) from None

    def _spans(self, lane: Lane) -> tuple[Span, ...]:
        """Return the steps of a finished inference, with the conversions at their borders."""
        spans: list[Span] = []
        for task, start, end, _ in lane.done:
            call, queue = task.invocation, CALLING_THREAD if task.on_caller and task.placement is None else task.queue
            if call is None:
                spans.append(Span(task.step, self.plan.joins[task.step].processor, queue, "join", start, end))
                continue
            if task.enqueued and isinstance(call, AsyncInvocation):
                start, end = call.times() or (start, end)
            spans += subgraph_spans(self.plan.subgraphs[task.step], queue, call, start, end)
        return tuple(spans)

    def close(self, *, wait: bool = True) -> None:
        """Wait for pending inferences and threads, except for hanging ones, and drop all compiled code.

        Args:
            wait: Whether to wait for work that does not end soon; False abandons it.
        """
        with self._condition:
            while self._flight_driver is not None and len(self._free_lanes) < len(self.lanes) and self.hang is None:
                if not self._condition.wait(POLL_S) and not wait:
                    break
            unfinished = (
                [] if self._flight_driver is None else [lane for number, lane in enumerate(self.lanes) if number not in self._free_lanes]
            )
            if self._flight_driver is not None and unfinished and not self._stopped:
                self._flight_driver.handle(ClientRemoved(self._client))
            self._stopped = True
        self._watchdog.close()
        for lane in unfinished:
            if lane.future is not None and lane.future.running():  # no thread computes its result any more
                with suppress(InvalidStateError):
                    lane.future.set_exception(StretchError("this session was closed before the inference was over"))
        ended = self._tenant is not None or self._threads.close(lambda: wait and self.hang is None and not self._interrupted)
        self._drop_tasks()
        if ended and not unfinished:
            # Bound subgraphs hold memory, files and processes, the code holds its bundle, and this object is part of reference cycles.
            self.lanes, self._enqueued = [], deque()
            vars(self).pop("_code", None)


def _wait_for_all(calls: Sequence[AsyncInvocation]) -> None:
    for call in calls:
        with suppress(Exception):
            call.wait()
