"""Drives the state machine with several inferences in flight, for throughput: a thread for each queue.

A thread that has ended a step tells the state machine, goes on with what that
gives its own queue, and hands to other threads what it gives theirs: none is
woken for nothing, and none waits for another at a meeting point.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns

import numpy as np

from scheduler.cores import pin_thread
from scheduler.delegates.base import Array
from scheduler.placement.place import Placement
from scheduler.runtime.buffers import Buffers, subgraph_spans
from scheduler.runtime.code import Code
from scheduler.runtime.driver import Driver, Lane
from scheduler.runtime.failures import HangError, hang_reason, step_failure
from scheduler.runtime.inputs import Values, plain
from scheduler.runtime.machine import ONLY, Event, Fail, Finish, InputReady, Machine, Replaced, Start, StepDone
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.record import Recorder
from scheduler.runtime.trace import QueueDepth, Span, Trace
from scheduler.runtime.watch import TIME_LIMIT_S, Watch, note_hang

#: Traces that are kept, of the inferences that ended last.
KEPT_TRACES = 64

#: Seconds after which a close looks again whether what it waits for hangs.
LOOK_S = 0.2


class _QueueThread(threading.Thread):
    """Runs the steps of one queue, each a call; None ends it.

    Args:
        cores: Cores that it is pinned to; empty for none.
    """

    def __init__(self, queue: str, cores: tuple[int, ...]) -> None:
        super().__init__(name=f"nn-stretch {queue} in flight", daemon=True)
        self.cores = cores
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        #: What it was given by the step that it runs: it goes on with that and need not be woken.
        self.following: Callable[[], None] | None = None

    def run(self) -> None:
        pin_thread(self.cores)
        while (step := self.inbox.get()) is not None:
            while step is not None:
                step()
                step, self.following = self.following, None


class QueueThreads:
    """A thread for each queue; whoever uses them guards them with a lock."""

    def __init__(self) -> None:
        self._threads: dict[str, _QueueThread] = {}
        self._dismissed = False

    def open(self, queue: str, cores: tuple[int, ...]) -> None:
        """Have a thread for a queue."""
        if queue not in self._threads:
            thread = self._threads[queue] = _QueueThread(queue, cores)
            thread.start()
            if self._dismissed:
                thread.inbox.put(None)

    def put(self, queue: str, step: Callable[[], None]) -> None:
        """Have a queue, which runs nothing else any more, run a step."""
        if self.calling(queue):
            self._threads[queue].following = step
        else:
            self._threads[queue].inbox.put(step)

    def renew(self, queue: str) -> None:
        """Have another thread for a queue whose thread hangs."""
        hung = self._threads.pop(queue)
        hung.inbox.put(None)  # should it ever come back
        self.open(queue, hung.cores)

    def calling(self, queue: str) -> bool:
        """Whether the caller is the thread of a queue."""
        return self._threads.get(queue) is threading.current_thread()

    @property
    def own_caller(self) -> bool:
        """Whether the caller is one of these threads."""
        return threading.current_thread() in self._threads.values()

    def dismiss(self) -> None:
        """Have every thread end once it has done what it was given, now or when it is made."""
        self._dismissed = True
        for thread in self._threads.values():
            thread.inbox.put(None)

    def join(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Wait until the other threads have ended; whether none is left.

        Args:
            go_on: Whether to wait longer for one that has not ended within a moment.
        """
        threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(LOOK_S)
                while thread.is_alive() and go_on():
                    thread.join(LOOK_S)
        return not any(thread.is_alive() for thread in threads)


class PipelineLane(Lane):
    """A lane, and the inference that is in it."""

    def __init__(self, buffers: Buffers) -> None:
        super().__init__(buffers)
        self.future: Future[Values] = Future()
        self.start_ns = 0
        self.spans: list[Span] = []


class Pipeline(Driver[PipelineLane]):
    """Several inferences in flight over the same processors.

    Args:
        lanes: Memory of the tensors that cross subgraphs, for each inference in flight.
        limit_s: Seconds that one call of a delegate may take.
        recorder: Writes down what the state machine is told and answers; None for nobody.
        named: Gives the outputs, by the names of their tensors, the names that callers know.
        changed: Guards what the state machine knows, and tells of its changes; None for one of its own.
        threads: Run its steps and those of whoever else uses them; None for some of its own.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        placements: Mapping[str, Placement],
        lanes: Sequence[Buffers],
        code: Code,
        limit_s: float = TIME_LIMIT_S,
        recorder: Recorder | None = None,
        named: Callable[[Mapping[str, Array]], Mapping[str, Array]] = dict,
        changed: threading.Condition | None = None,
        threads: QueueThreads | None = None,
    ) -> None:
        super().__init__(plan, [PipelineLane(buffers) for buffers in lanes], code, recorder)
        self._limit_s, self._named = limit_s, named
        self._free = deque(range(len(lanes)))
        placements = {name: self._fitted(place) for name, place in placements.items()}
        self._changed = changed or threading.Condition()
        self._closed = False
        self._hang: HangError | None = None
        self._watch = Watch(limit_s, self._overdue)
        self._traces: deque[Trace] = deque(maxlen=KEPT_TRACES)
        self._depths: deque[QueueDepth] = deque(maxlen=KEPT_TRACES * 16)
        self._threads = threads or QueueThreads()
        self._begin(placements)
        for name, place in placements.items():
            self._add(name, place)

    def _begin(self, placements: Mapping[str, Placement]) -> None:
        """Have a state machine."""
        self._machine = Machine.of(self.plan, placements, len(self._lanes), caller=False, movable=self._code.movable())
        self._begin_record(self._machine)

    def _running(self) -> int:
        """How many inferences have not ended; the lock is held."""
        return self._machine.in_flight()

    def _waiting(self) -> dict[str, int]:
        """Subgraphs that wait for each queue; the lock is held."""
        return self._machine.waiting()

    @property
    def bytes(self) -> int:
        """Memory of all lanes' buffers."""
        return sum(lane.buffers.bytes for lane in self._lanes)

    @property
    def hang(self) -> HangError | None:
        """What hangs, if anything does: nothing runs here any more then."""
        return self._hang

    @property
    def owns_calling_thread(self) -> bool:
        """Whether the caller is a thread of a queue, which must not wait for inferences."""
        return self._threads.own_caller

    def submit(self, x: Mapping[str, Array]) -> Future[Values]:
        """Start an inference; waits while as many as there are lanes are in flight."""
        number = self._filled(x)
        future = self._lanes[number].future
        with self._changed:
            self._tell(InputReady(number))
        return future

    def _filled(self, x: Mapping[str, Array]) -> int:
        """A free lane that holds the inputs, as soon as there is one."""
        with self._changed:
            while not self._free and self._hang is None:
                self._changed.wait()
            self._raise_hang()
            number = self._free.popleft()
        lane = self._lanes[number]
        lane.future, lane.spans, lane.errors = Future(), [], {}
        lane.future.set_running_or_notify_cancel()
        for name, value in x.items():
            np.copyto(lane.buffers.arrays[name], value)  # outside the lock: it takes as long as a small subgraph
        lane.start_ns = perf_counter_ns()
        return number

    def drain(self) -> None:
        """Return when no inference is in flight."""
        with self._changed:
            while self._running() and self._hang is None:
                self._changed.wait()
            self._raise_hang()

    def replace(self, name: str, place: Placement) -> None:
        """Run a subgraph elsewhere from now on; where it runs already, it ends first."""
        place = self._fitted(place)
        self._add(name, place)
        with self._changed:
            self._replaced[name] = place.reason
            self._tell(Replaced(name, place))

    def traces(self) -> tuple[Trace, ...]:
        """The inferences that ended last, oldest first."""
        with self._changed:
            return tuple(self._traces)

    def depths(self) -> tuple[QueueDepth, ...]:
        """How many subgraphs waited for each queue, whenever that changed."""
        with self._changed:
            return tuple(self._depths)

    def stop(self) -> None:
        """Have the threads end by themselves once what is in flight has ended."""
        with self._changed:
            self._closed = True
            if not self._running():
                self._dismiss()

    def close(self, *, wait: bool = True) -> None:
        """Return when what is in flight and the threads have ended; threads that hang are given up."""
        self.stop()
        ended = self._threads.join(lambda: wait and self._hang is None)
        self._watch.close()
        if ended:
            # Bound subgraphs hold memory, files and processes.
            self._lanes = []

    def _fitted(self, place: Placement) -> Placement:
        """Every queue has a thread, which calls its delegate and waits for it."""
        return replace(place, dispatch="blocking")

    def _placed(self) -> Mapping[str, Placement]:
        with self._changed:
            return dict(self._machine.clients[ONLY].placements)

    def _open(self, place: Placement) -> None:
        with self._changed:
            self._threads.open(place.queue, place.thread_cores)

    def _tell(self, event: Event) -> Finish | Fail | None:
        """Tell the state machine, hand out the steps that it answers, and give the end of an inference; the lock is held."""
        end: Finish | Fail | None = None
        for instruction in self._handle(self._machine, event):
            if isinstance(instruction, Finish | Fail):
                end = instruction
            elif isinstance(instruction, Start):
                place = self._machine.clients[ONLY].placements.get(instruction.step)
                self._threads.put(instruction.queue, partial(self.work, instruction, place))
        return end

    def _dismiss(self) -> None:
        """Have every thread end, now or when it is made; the lock is held."""
        self._threads.dismiss()

    def work(self, task: Start, place: Placement | None) -> None:
        """Run a step on the thread of its queue.

        Args:
            place: Where its subgraph was placed when it was started; None for a join.
        """
        lane = self._lanes[task.lane]
        error: Exception | None = None
        start = perf_counter_ns()
        try:
            if place is None:
                if (join := lane.buffers.joins[task.step]) is not None:
                    join()
            else:
                self._watch.running[task.queue] = (task.step, start)
                lane.calls[task.step, place].run()
        except BaseException as raised:  # whatever a delegate raises belongs to the caller
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
        self._watch.running[task.queue] = None
        if error is None:
            lane.spans += self._spans(task, place, start, perf_counter_ns())
            self._report(task, StepDone(task.lane, task.step, task.queue))
        else:
            self._report(task, self._lost(task.lane, task.step, task.queue, place, error))

    def _report(self, task: Start, event: Event) -> None:
        """Tell the state machine, and hand out the result of an inference that ended."""
        lane = self._lanes[task.lane]
        with self._changed:
            if self._hang is not None:  # every future has been told
                self._left(task.queue)
                return
            end = self._tell(event)
            self._depths.append(QueueDepth(perf_counter_ns(), self._waiting()))
            if end is not None:
                self._traces.append(Trace(tuple(lane.spans), lane.start_ns, perf_counter_ns(), replaced=dict(self._replaced)))
        if end is not None:
            self._hand_out(end)

    def _hand_out(self, end: Finish | Fail) -> None:
        """Give an inference's result to whoever waits for it, and its lane to the next one."""
        lane = self._lanes[end.lane]
        future = lane.future
        if isinstance(end, Fail):
            error = lane.errors.get(end.step)
            raised = step_failure(end.step, self._placed().get(end.step), error, end.error)
            raised.__cause__ = error
            output: Values | None = None
        else:
            output = plain(self._named({name: lane.buffers.arrays[name].copy() for name in self.plan.outputs}))
        if self._code.keeper is not None:
            self._code.keeper.ended()
        with self._changed:
            self._free.append(end.lane)
            if self._closed and not self._running():
                self._dismiss()
            self._changed.notify_all()
        # A hang elsewhere may have answered for it in between.
        with suppress(InvalidStateError):
            if output is None:
                future.set_exception(raised)
            else:
                future.set_result(output)

    def _overdue(self, queue: str, call: tuple[str, int]) -> bool:
        """Told by the watch: nothing that is in flight can be waited for any more, unless this does not hang; whether to look again."""
        place = self._placed()[call[0]]
        ended = self._code.abort(place, hang_reason(self._limit_s)) if self._watch.running.get(queue) is call else "ended"
        if ended != "no":
            return ended == "restarting"
        failure = HangError.of(call[0], place, self._limit_s)
        with self._changed:
            if self._watch.running.get(queue) is not call:
                return False
            self._hang = failure
            note_hang(failure)
            self._give_up(queue)
            self._changed.notify_all()
        for lane in self._lanes:
            if lane.future.running():
                with suppress(InvalidStateError):
                    lane.future.set_exception(copy(failure))
        return False

    def _give_up(self, queue: str) -> None:
        """A queue hangs; the lock is held."""
        self._dismiss()

    def _left(self, queue: str) -> None:
        """A step has ended on a queue after something hung; the lock is held."""

    def _raise_hang(self) -> None:
        if self._hang is not None:
            # a new one each time: its traceback would keep whoever it was raised to
            raise copy(self._hang)

    def _spans(self, task: Start, place: Placement | None, start: int, end: int) -> list[Span]:
        if place is None:
            return [Span(task.step, self.plan.joins[task.step].processor, task.queue, "join", start, end)]
        return subgraph_spans(self.plan.subgraphs[task.step], task.queue, self._lanes[task.lane].calls[task.step, place], start, end)
