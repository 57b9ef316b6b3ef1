"""Drives the state machine one inference at a time, for latency: with threads, command queues and the calling thread."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import TypeVar

from predictors.errors import StretchError
from scheduler.cores import pinned
from scheduler.delegates.base import Array, AsyncInvocation
from scheduler.placement.place import Placement
from scheduler.runtime.buffers import Buffers, subgraph_spans
from scheduler.runtime.code import Aborted, Code
from scheduler.runtime.driver import Driver, Lane
from scheduler.runtime.failures import HangError, hang_reason, step_failure
from scheduler.runtime.machine import (
    Enqueue,
    Event,
    Fail,
    Finish,
    InputReady,
    Instruction,
    Join,
    Machine,
    Node,
    Replaced,
    RunInline,
    StepDone,
    StepReturned,
    Submit,
    Transitions,
    Wait,
)
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.record import Recorder
from scheduler.runtime.trace import Span, Trace
from scheduler.runtime.watch import TIME_LIMIT_S, Watch, interrupt, note_hang
from scheduler.runtime.workers import Call, Completion, Worker

#: The calling thread, among those that a `Watch` looks at.
CALLER = "calling thread"

#: Seconds that an interrupted run waits for what it left behind; what takes longer is waited for by the next run.
REST_S = 0.5

#: Seconds after which a wait looks up: a signal that comes between a thread's last step and its sleep does not wake it.
LOOK_S = 0.5


class Queues:
    """Everything that runs a step, and how it went.

    Args:
        limit_s: Seconds that one call of a delegate may take.
        abort: Ends what hangs at a placement, so that its call raises what it is given (`scheduler.runtime.code.Code.abort`).
    """

    def __init__(
        self, limit_s: float, place_of: Callable[[str], Placement], abort: Callable[[Placement, str], Aborted] = lambda place, why: "no"
    ) -> None:
        self._limit_s = limit_s
        self._place_of, self._abort = place_of, abort
        self._completions: SimpleQueue[Completion] = SimpleQueue()
        self._watch = Watch(limit_s, self._overdue)
        #: What runs now, by thread; who runs a step on the calling thread says so here.
        self.running = self._watch.running
        self._workers: dict[str, Worker] = {}
        self._enqueued: dict[str, tuple[AsyncInvocation, int]] = {}
        self._marks = count()
        #: Whether a run has begun and not come to its end.
        self.disturbed = False
        #: What hangs, and who is to hear of it where the calling thread itself does.
        self._hang: HangError | None = None
        self._caller = 0
        self._telling = threading.Lock()

    def open(self, place: Placement) -> None:
        """Have a thread for a placement whose calls block; one a queue, created once."""
        if place.dispatch == "blocking" and place.queue not in self._workers:
            self._workers[place.queue] = Worker(place.queue, place.thread_cores, self._completions, self.running)

    def submitter(self, queue: str, *calls: Call) -> Callable[[], None]:
        """What hands steps to the thread of their queue, each with its name and whether it is waited for (`Worker.submitter`)."""
        return self._workers[queue].submitter(calls)

    def enqueue(self, name: str, call: AsyncInvocation) -> None:
        """Put a step into its processor's command queue; a refusal is found by `wait`."""
        start = perf_counter_ns()
        self.running[CALLER] = (name, start)
        try:
            call.enqueue()
        except Exception as error:
            self._completions.put((name, error, start, perf_counter_ns()))
        else:
            self._enqueued[name] = (call, start)
        self.running[CALLER] = None

    def wait(self) -> Completion:
        """How a step went that was handed to others: the first that has ended."""
        found = self._completion() if not self._enqueued else self._wait_for_any()
        if found[1] is not None and self._hang is not None:  # what else its thread was given will never run
            raise self._hang
        return found

    def begin(self, calls: Callable[[], Iterable[AsyncInvocation]]) -> None:
        """A run begins; what the last one left behind has come to rest.

        Args:
            calls: Gives everything that may be in a command queue.
        """
        self.raise_hang()
        if self.disturbed and not self.settle(self._limit_s, calls):
            raise StretchError("what an interrupted run left behind does not end", "make a new Session")
        self.disturbed = True
        self._caller = threading.get_ident()

    def end(self) -> None:
        """The run is over; an interruption that is on its way arrives here and nowhere else."""
        with self._telling:
            hangs = self._hang is not None
        while hangs:
            time.sleep(REST_S)
        self.disturbed = False

    def settle(self, seconds: float, calls: Callable[[], Iterable[AsyncInvocation]]) -> bool:
        """Wait for whatever an interrupted or failed run left behind, then forget it; False if that takes longer.

        An interrupt may fall between any two statements, so this counts
        nothing: each thread is asked for one more completion.
        """
        if self._hang is not None:
            return False
        deadline = time.monotonic() + seconds
        marks = set()
        for queue, worker in self._workers.items():
            mark = f"settled {queue} {next(self._marks)}"
            marks.add(mark)
            worker.submit(mark, _queues_nothing)
        # A wait may hang as well, and cannot be told how long it may take.
        waiter = threading.Thread(target=_wait_for_all, args=(tuple(calls()),), name="nn-stretch rest", daemon=True)
        waiter.start()
        try:
            while marks:
                marks.discard(self._completions.get(timeout=max(0.0, deadline - time.monotonic()))[0])
        except Empty:
            return False
        waiter.join(max(0.0, deadline - time.monotonic()))
        if waiter.is_alive():
            return False
        self._enqueued.clear()
        self.running[CALLER] = None
        self.disturbed = False
        return True

    def raise_hang(self) -> None:
        """Raise what hangs, if anything does."""
        if self._hang is not None:
            raise self._hang from None

    def close(self) -> None:
        """End the threads, which finish what they are doing unless it hangs."""
        for worker in self._workers.values():
            worker.close(wait=not self.disturbed)
        self._watch.close()
        self._enqueued.clear()

    def _completion(self) -> Completion:
        while True:
            try:
                return self._completions.get(timeout=LOOK_S)
            except Empty:  # here Ctrl-C takes effect
                continue

    def _wait_for_any(self) -> Completion:
        """A completion that is there already, else that of the subgraph enqueued first."""
        with suppress(Empty):
            return self._completions.get_nowait()
        name, (call, start) = next(iter(self._enqueued.items()))
        error: Exception | None = None
        self.running[CALLER] = (name, perf_counter_ns())
        try:
            call.wait()
        except Exception as raised:
            error = raised
        self.running[CALLER] = None
        del self._enqueued[name]
        return name, error, start, perf_counter_ns()

    def _overdue(self, thread: str, call: tuple[str, int]) -> bool:
        """Told by the watch: the subgraph is given up, unless it does not hang; whether to look again."""
        name, start = call
        place = self._place_of(name)
        ended = self._abort(place, hang_reason(self._limit_s)) if self.running.get(thread) is call else "ended"
        if ended != "no":
            return ended == "restarting"
        failure = HangError.of(name, place, self._limit_s)
        with self._telling:
            if self.running.get(thread) is not call:
                return False
            self._hang = failure
            note_hang(failure)
            if thread == CALLER:
                interrupt(self._caller)
            else:
                self._completions.put((name, failure, start, perf_counter_ns()))
        return False


def _wait_for_all(calls: Sequence[AsyncInvocation]) -> None:
    for call in calls:
        with suppress(Exception):
            call.wait()


def _queues_nothing() -> None:
    """The job whose completion says that those before it are over."""


# Steps that a queue may go on with by itself: what follows on it whatever else happens.
#
# A thread that has ended a step is told of the next one by the state machine. Where only one step can be next on its queue, and
# needs nothing but what that thread has computed or what was there before, the thread may as well be given both: the state
# machine then finds that what it says is done already.


def followers(plan: ExecutionPlan, queues: Mapping[str, str]) -> dict[str, str]:
    """The step that each one's queue can go on with as soon as it has ended; a step without such a one has none."""
    writers = {tensor: name for name in plan.order for tensor in plan.step(name).outputs}
    #: All that a step waits for, directly or not.
    before: dict[str, set[str]] = {}
    for name in plan.order:
        direct = {writers[tensor] for tensor in plan.step(name).inputs if tensor in writers}
        before[name] = direct.union(*(before[each] for each in direct))
    found: dict[str, str] = {}
    served: dict[str, list[str]] = {}
    for name in plan.order:
        if name in queues:
            served.setdefault(queues[name], []).append(name)
    for names in served.values():
        for number, (name, following) in enumerate(pairwise(names)):
            # nothing else that the queue serves may be ready between the two
            alone = all(each in before[name] for each in names[:number]) and all(following in before[each] for each in names[number + 2 :])
            if alone and name in before[following] and before[following] <= before[name] | {name}:
                found[name] = following
    return found


def in_a_row(name: str, following: Mapping[str, str]) -> tuple[str, ...]:
    """A step, and those that its queue goes on with, in order.

    Args:
        following: As `followers` tells.
    """
    found = [name]
    while found[-1] in following:
        found.append(following[found[-1]])
    return tuple(found)


def awaited(plan: ExecutionPlan, name: str) -> bool:
    """Whether more than one step reads what a step writes, or whoever runs the plan does: then its end is news to others."""
    written = plan.step(name).outputs
    readers = {reader for tensor in written for reader in plan.readers.get(tensor, ())}
    return len(readers) != 1 or not set(plan.outputs).isdisjoint(written)


T = TypeVar("T")

#: Name under which the answer to `InputReady` is remembered; no step may be called so.
INPUT = "input"

#: What an instruction became: work handed to others, which returns at once …
Hand = Callable[[], None]
#: … or work of the calling thread: the step that is done, what went wrong, or None at the end.
Act = Callable[[], "str | Event | None"]
Actions = tuple[tuple[Hand, ...], Act]


class Executor(Driver[Lane]):
    """Runs one inference at a time of a plan.

    A subgraph on an asynchronous processor is enqueued from the calling thread;
    one on a processor whose call blocks goes to that queue's thread, created
    once; the CPU's run on the calling thread, pinned while they do. A subgraph
    that its delegate cannot run (any more) goes on where it falls back on.

    Args:
        buffers: Memory of the tensors that cross subgraphs.
        limit_s: Seconds that one call of a delegate may take.
        recorder: Writes down what the state machine is told and answers; None for nobody.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        placements: Mapping[str, Placement],
        buffers: Buffers,
        code: Code,
        limit_s: float = TIME_LIMIT_S,
        recorder: Recorder | None = None,
    ) -> None:
        lane = Lane(buffers)
        super().__init__(plan, (lane,), code, recorder)
        self.buffers = buffers
        self._calls, self._errors = lane.calls, lane.errors
        self._places = dict(placements)
        self._done: list[tuple[str, int, int]] = []
        self._queues = Queues(limit_s, self._places.__getitem__, code.abort)
        for name, place in placements.items():
            self._add(name, place)
        #: The code of each subgraph where it runs now.
        self._now = {name: self._calls[name, place] for name, place in placements.items()}
        self._table: Transitions[Actions] = Transitions(self._actions)
        #: Steps whose queue goes on with them by itself, of those that were handed to it in this inference.
        self._ahead: set[str] = set()
        #: Whether steps are handed together: not where somebody wants to see what each has written.
        self._together = True
        self._idle: Node[Actions]
        self._begin_anew()

    def run(self, keep: dict[str, Array] | None = None) -> Trace:
        """Run once, from the inputs' buffers to the outputs'."""
        start, end = self._begun(lambda: self._timed(keep))
        spans = tuple(span for record in self._done for span in self._spans(*record))
        return Trace(spans, start, end, os.getloadavg()[0], dict(self._replaced))

    def run_alone(self, name: str) -> Span:
        """Run one subgraph where it is placed, with every other processor idle."""
        place = self._places[name]
        event = self._begun(lambda: self._alone(name, place))
        if isinstance(event, StepReturned):
            self._place(name, event.placement)
            return self.run_alone(name)
        if name in self._errors:
            raise step_failure(name, place, self._errors[name]) from self._errors[name]
        return self._spans(*self._done[-1])[0]

    @property
    def places(self) -> Mapping[str, Placement]:
        """Where each subgraph runs now."""
        return self._places

    def replace(self, name: str, place: Placement) -> None:
        """Run a subgraph elsewhere from the next inference on."""
        self._add(name, place)
        self._place(name, place)

    def close(self) -> None:
        """End the threads, which finish what they are doing unless it hangs, and let go of everything compiled."""
        self._queues.close()
        # Calls hold memory, files and processes, and this object is part of cycles.
        self._lanes, self._calls, self._now = [], {}, {}
        self._table.clear()
        del self._table, self._idle, self._code

    def _open(self, place: Placement) -> None:
        self._queues.open(place)

    def _placed(self) -> Mapping[str, Placement]:
        return self._places

    def _place(self, name: str, place: Placement) -> None:
        """Between two inferences, tell the state machine where a subgraph runs from now on."""
        machine = self._idle.machine.copy()
        self._handle(machine, Replaced(name, place))
        self._replaced[name] = place.reason
        self._moved(name, place)
        self._idle = self._table.node(machine)

    def _moved(self, name: str, place: Placement) -> None:
        self._places[name] = place
        self._now[name] = self._calls[name, place]
        self._know_cores()

    def _know_cores(self) -> None:
        """Where the calling thread is pinned, and which steps are handed together, as subgraphs are placed now."""
        inline = next((place for place in self._places.values() if place.dispatch == "inline"), None)
        self._inline_cores = () if inline is None else inline.cores[:1]
        handed = {name: place.queue for name, place in self._places.items() if place.dispatch == "blocking"}
        self._following = followers(self.plan, handed)

    def _begin_anew(self) -> None:
        """The state machine with nothing in flight, wherever the last run left off."""
        machine = Machine.of(self.plan, self._places)
        self._know_cores()
        self._idle = self._table.node(machine)
        self._begin_record(machine)

    def _carry_out(self) -> None:
        """Follow the state machine from the input to the output; the hot path."""
        node = self._idle
        event: str | Event | None = INPUT
        while event is not None:
            known = node.answers.get(event)
            (handed, act), node = known if known is not None else self._learn(node, event)
            for hand in handed:
                hand()
            event = act()
        self._idle = node

    def _learn(self, node: Node[Actions], event: str | Event) -> tuple[Actions, Node[Actions]]:
        if isinstance(event, str):
            return self._table.learn(node, self._event(event), event)
        # What comes after it is not worth remembering.
        if isinstance(event, StepReturned):
            self._moved(event.step, event.placement)
        return self._table.learn(node, event, None)

    def _event(self, name: str) -> Event:
        """What a name in the table stands for."""
        return InputReady(0) if name == INPUT else StepDone(0, name, self._queue(name))

    def _queue(self, step: str) -> str:
        return self._places[step].queue if step in self._places else self._idle.machine.caller or CALLER

    def _carry_out_watched(self, keep: dict[str, Array] | None) -> None:
        """As `_carry_out`, with every event and every tensor handed to whoever wants it."""
        arrays, machine = self.buffers.arrays, self._idle.machine.copy()
        if keep is not None:
            keep.update({name: arrays[name].copy() for name in self.plan.inputs})
        told: str | Event | None = INPUT
        while told is not None:
            event = self._event(told) if isinstance(told, str) else told
            if isinstance(event, StepReturned):
                self._moved(event.step, event.placement)
            elif isinstance(event, StepDone) and keep is not None:
                # Nothing that could write over it has started yet: that is what the answer to this event may do.
                keep.update({name: arrays[name].copy() for name in self.plan.step(event.step).outputs})
            handed, act = self._actions(self._handle(machine, event))
            for hand in handed:
                hand()
            told = act()
        self._idle = self._table.node(machine)

    def _actions(self, instructions: Sequence[Instruction]) -> Actions:
        """An answer of the state machine as calls: only the last one occupies this thread."""
        return tuple(self._hand(instruction) for instruction in instructions[:-1]), self._act(instructions[-1])

    def _hand(self, instruction: Instruction) -> Hand:
        match instruction:
            case Submit(_, name, queue):
                steps = in_a_row(name, self._following if self._together else {})
                calls = [(each, self._now[each].run, each == steps[-1] or awaited(self.plan, each)) for each in steps]
                return partial(self._submit, name, steps[1:], self._queues.submitter(queue, *calls))
            case Enqueue(_, name):
                call = self._now[name]
                assert isinstance(call, AsyncInvocation)  # looked at when it was added
                return partial(self._queues.enqueue, name, call)
        raise ValueError(f"{instruction} is not handed to others")

    def _submit(self, name: str, following: tuple[str, ...], submit: Hand) -> None:
        """Hand a step and those that follow it to their queue, unless it was given them together with one before."""
        if name in self._ahead:
            return
        if following:
            self._ahead.update(following)
        submit()

    def _act(self, instruction: Instruction) -> Act:
        match instruction:
            case RunInline(_, name):
                return partial(self._run_inline, name, self._now[name].run)
            case Wait():
                return self._wait
            case Join(_, name):
                return partial(self._join, name)
            case Finish():
                return _nothing
            case Fail(_, step, error):
                return partial(self._raise, step, error)
        raise ValueError(f"{instruction} does not occupy the calling thread")

    def _run_inline(self, name: str, run: Hand) -> str | Event:
        running = self._queues.running
        start = perf_counter_ns()
        running[CALLER] = (name, start)
        try:
            run()
        except Exception as error:
            running[CALLER] = None
            return self._raised(name, error)
        running[CALLER] = None
        self._done.append((name, start, perf_counter_ns()))
        return name

    def _join(self, name: str) -> str | Event:
        start = perf_counter_ns()
        work = self.buffers.joins[name]
        if work is not None:
            try:
                work()
            except Exception as error:
                return self._raised(name, error)
        self._done.append((name, start, perf_counter_ns()))
        return name

    def _wait(self) -> str | Event:
        name, error, start, end = self._queues.wait()
        if error is not None:
            return self._raised(name, error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}"))
        self._done.append((name, start, end))
        return name

    def _raised(self, name: str, error: Exception) -> Event:
        """What has happened where a step raised; what its queue was to go on with has not begun."""
        self._ahead.difference_update(in_a_row(name, self._following))
        return self._lost(0, name, self._queue(name), self._places.get(name), error)

    def _async_calls(self) -> tuple[AsyncInvocation, ...]:
        return tuple(call for call in self._calls.values() if isinstance(call, AsyncInvocation))

    def _begun(self, work: Callable[[], T]) -> T:
        """Do a run, from what the last one left behind to its own end."""
        queues = self._queues
        stale = queues.disturbed
        queues.begin(self._async_calls)
        if stale:
            self._begin_anew()
        self._done.clear()
        self._errors.clear()
        self._ahead.clear()
        try:
            found = work()
            queues.end()
        except KeyboardInterrupt:
            queues.raise_hang()
            raise
        finally:
            if queues.disturbed and queues.settle(REST_S, self._async_calls):
                self._begin_anew()
        return found

    def _timed(self, keep: dict[str, Array] | None) -> tuple[int, int]:
        """One inference: when it began and ended."""
        self._together = keep is None
        with pinned(self._inline_cores):
            start = perf_counter_ns()
            if keep is None and self._recorder is None:
                self._carry_out()
            else:
                self._carry_out_watched(keep)
            return start, perf_counter_ns()

    def _alone(self, name: str, place: Placement) -> str | Event:
        run = self._now[name].run
        if place.dispatch == "blocking":
            self._queues.submitter(place.queue, (name, run, True))()
            return self._wait()
        with pinned(place.cores[:1]):
            return self._run_inline(name, run)

    def _spans(self, name: str, start: int, end: int) -> list[Span]:
        """A step, and the conversions at its border."""
        if name not in self.plan.subgraphs:
            return [Span(name, self.plan.joins[name].processor, "calling thread", "join", start, end)]
        place = self._places[name]
        call = self._now[name]
        if isinstance(call, AsyncInvocation):
            start, end = call.times() or (start, end)
        return subgraph_spans(self.plan.subgraphs[name], place.queue, call, start, end)

    def _raise(self, step: str, error: str) -> None:
        cause = self._errors.get(step)
        raise step_failure(step, self._places.get(step), cause, error) from cause


def _nothing() -> None:
    """The end of an inference."""
