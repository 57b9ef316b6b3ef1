"""Carries out the state machine's instructions with threads, command queues and the calling thread."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from predictors.errors import StretchError
from scheduler.bundle.manifest import Tensor
from scheduler.delegates.base import AsyncInvocation, Compiled
from scheduler.placement.cores import pinned
from scheduler.runtime.buffers import Buffers, bind_subgraph, subgraph_spans
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
from scheduler.runtime.failures import hang_failure, step_failure
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.trace import Span, Trace
from scheduler.runtime.transitions import Node, Transitions
from scheduler.runtime.watch import TIME_LIMIT_S, Watch, interrupt, note_hang
from scheduler.runtime.workers import Completion, Worker

#: Name under which the answer to `InputReady` is remembered; no step may be called so.
INPUT = "input"

#: The calling thread, among those that a `Watch` looks at.
CALLER = "calling thread"

#: Seconds that an interrupted run waits for what it left behind; what takes longer is waited for by the next run.
_REST_S = 0.5

#: What an instruction became: work handed to others, which returns at once …
Hand = Callable[[], None]
#: … or work of the calling thread: the step that is done, what went wrong, or None at the end.
Act = Callable[[], "str | Event | None"]
Actions = tuple[tuple[Hand, ...], Act]


class Executor:
    """Runs one inference at a time of a plan whose subgraphs are compiled.

    A subgraph on an asynchronous processor is enqueued from the calling thread;
    one on a processor whose call blocks goes to that queue's thread, created
    here once; the CPU's run on the calling thread, pinned while they do.

    Args:
        plan: What to run.
        tensors: The tensors that cross subgraphs.
        compiled: Each subgraph, made ready for the delegate of its placement.
        limit_s: Seconds that one call of a delegate may take.

    Raises:
        StretchError: If a subgraph does not fit its tensors.
    """

    def __init__(
        self, plan: ExecutionPlan, tensors: Sequence[Tensor], compiled: Mapping[str, Compiled], limit_s: float = TIME_LIMIT_S
    ) -> None:
        self.plan = plan
        self._limit_s = limit_s
        self.buffers = Buffers(plan, tensors)
        calls = {name: bind_subgraph(subgraph, compiled[name], self.buffers.arrays) for name, subgraph in plan.subgraphs.items()}
        self._calls = calls
        self._runs: dict[str, Hand] = {name: call.run for name, call in calls.items()}
        self._async_calls: dict[str, AsyncInvocation] = {}
        self._enqueued: dict[str, tuple[AsyncInvocation, int]] = {}
        self._inline_cores: tuple[int, ...] = ()
        for name, subgraph in plan.subgraphs.items():
            call, place = calls[name], subgraph.placement
            if place.dispatch == "inline":
                self._inline_cores = place.cores[:1]
            elif place.dispatch == "async":
                if not isinstance(call, AsyncInvocation):
                    raise StretchError(f"delegate `{place.delegate}` says that it is asynchronous, but its invocations are not")
                self._async_calls[name] = call

        self._done: list[tuple[str, int, int]] = []
        self._errors: dict[str, Exception] = {}
        self._disturbed = False
        #: What hangs, and who is to hear of it where the calling thread itself does.
        self._hang: StretchError | None = None
        self._caller = 0
        self._telling = threading.Lock()
        self._marks = count()
        self._table: Transitions[Actions] = Transitions(plan, self._actions)
        self._completions: SimpleQueue[Completion] = SimpleQueue()
        self._watch = Watch(limit_s, self._overdue)
        self._running = self._watch.running
        self._workers: dict[str, Worker] = {}
        for subgraph in plan.subgraphs.values():
            place = subgraph.placement
            if place.dispatch == "blocking" and place.queue not in self._workers:
                self._workers[place.queue] = Worker(place.queue, place.thread_cores, self._completions, self._running)

    def run(self) -> Trace:
        """Run once, from the input's buffer to the output's.

        Returns:
            What ran where and when.

        Raises:
            StretchError: If a delegate fails or takes longer than it may. Everything
                else has come to rest by then, so that the next run starts afresh;
                after a hang there is no next one.
        """
        self._begin()
        try:
            with pinned(self._inline_cores):
                start = perf_counter_ns()
                self._carry_out()
                end = perf_counter_ns()
            self._end()
        except KeyboardInterrupt:
            self._raise_hang()
            raise
        finally:
            self._settle(_REST_S)
        return Trace(tuple(span for record in self._done for span in self._spans(*record)), start, end, os.getloadavg()[0])

    def run_alone(self, name: str) -> Span:
        """Run one subgraph where it is placed, with every other processor idle.

        Args:
            name: The subgraph; it reads what its input buffer holds.

        Raises:
            StretchError: If its delegate fails.
        """
        self._begin()
        placement = self.plan.subgraphs[name].placement
        try:
            if placement.dispatch == "blocking":
                self._workers[placement.queue].submit(name, self._runs[name])
                self._wait()
            else:
                with pinned(placement.cores[:1]):
                    self._run_inline(name, self._runs[name])
            self._end()
        except KeyboardInterrupt:
            self._raise_hang()
            raise
        finally:
            self._settle(_REST_S)
        if name in self._errors:
            raise step_failure(self.plan, name, self._errors[name]) from self._errors[name]
        return self._spans(*self._done[-1])[0]

    def close(self) -> None:
        """End the threads, which finish what they are doing unless it hangs, and let go of everything compiled."""
        for worker in self._workers.values():
            worker.close(wait=not self._disturbed)
        self._watch.close()
        # Calls hold memory, files and processes, and this object is part of cycles.
        self._calls, self._runs, self._async_calls = {}, {}, {}
        self._enqueued.clear()
        del self._table

    def _carry_out(self) -> None:
        """Follow the state machine from the input to the output; the hot path."""
        node = self._table.start
        event: str | Event | None = INPUT
        while event is not None:
            known = node.answers.get(event)
            (handed, act), node = known if known is not None else self._learn(node, event)
            for hand in handed:
                hand()
            event = act()

    def _learn(self, node: Node[Actions], event: str | Event) -> tuple[Actions, Node[Actions]]:
        if not isinstance(event, str):  # a failure: what comes after it is not worth remembering
            return self._table.learn(node, event, None)
        if event == INPUT:
            return self._table.learn(node, InputReady(), event)
        return self._table.learn(node, SubgraphDone(event) if event in self.plan.subgraphs else JoinDone(event), event)

    def _actions(self, instructions: Sequence[Instruction]) -> Actions:
        """An answer of the state machine as calls: only the last one occupies this thread."""
        return tuple(self._hand(instruction) for instruction in instructions[:-1]), self._act(instructions[-1])

    def _hand(self, instruction: Instruction) -> Hand:
        match instruction:
            case Submit(name):
                return self._workers[self.plan.subgraphs[name].placement.queue].submitter(name, self._runs[name])
            case Enqueue(name):
                return partial(self._enqueue, name, self._async_calls[name])
        raise ValueError(f"{instruction} is not handed to others")

    def _act(self, instruction: Instruction) -> Act:
        match instruction:
            case RunInline(name):
                return partial(self._run_inline, name, self._runs[name])
            case Wait():
                return self._wait
            case Join(name):
                return partial(self._join, name)
            case Finish():
                return _nothing
            case Fail(step, error):
                return partial(self._raise, step, error)
        raise ValueError(f"{instruction} does not occupy the calling thread")

    def _enqueue(self, name: str, call: AsyncInvocation) -> None:
        start = perf_counter_ns()
        self._running[CALLER] = (name, start)
        try:
            call.enqueue()
        except Exception as error:
            self._completions.put((name, error, start, perf_counter_ns()))
        else:
            self._enqueued[name] = (call, start)
        self._running[CALLER] = None

    def _run_inline(self, name: str, run: Hand) -> str | Event:
        start = perf_counter_ns()
        self._running[CALLER] = (name, start)
        try:
            run()
        except Exception as error:
            self._errors[name] = error
            self._running[CALLER] = None
            return SubgraphFailed(name, str(error))
        self._running[CALLER] = None
        self._done.append((name, start, perf_counter_ns()))
        return name

    def _join(self, name: str) -> str | Event:
        start = perf_counter_ns()
        work = self.buffers.joins[name]
        if work is not None:
            try:
                work()
            except Exception as error:
                self._errors[name] = error
                return JoinFailed(name, str(error))
        self._done.append((name, start, perf_counter_ns()))
        return name

    def _wait(self) -> str | Event:
        name, error, start, end = self._completions.get() if not self._enqueued else self._wait_for_any()
        if error is None:
            self._done.append((name, start, end))
            return name
        if self._hang is not None:  # what else its thread was given will never run
            raise self._hang
        if not isinstance(error, Exception):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        self._errors[name] = error
        return SubgraphFailed(name, str(error))

    def _wait_for_any(self) -> Completion:
        """A completion that is there already, else that of the subgraph enqueued first."""
        with suppress(Empty):
            return self._completions.get_nowait()
        name, (call, start) = next(iter(self._enqueued.items()))
        error: Exception | None = None
        self._running[CALLER] = (name, perf_counter_ns())
        try:
            call.wait()
        except Exception as raised:
            error = raised
        self._running[CALLER] = None
        del self._enqueued[name]
        return name, error, start, perf_counter_ns()

    def _begin(self) -> None:
        self._raise_hang()
        if not self._settle(self._limit_s):
            raise StretchError("what an interrupted run left behind does not end", "make a new Session")
        self._disturbed = True
        self._caller = threading.get_ident()
        self._done.clear()
        self._errors.clear()

    def _end(self) -> None:
        """The run is over; an interruption that is on its way arrives here and nowhere else."""
        with self._telling:
            hangs = self._hang is not None
        while hangs:
            time.sleep(_REST_S)
        self._disturbed = False

    def _overdue(self, thread: str, call: tuple[str, int]) -> None:
        """Told by the watch: the subgraph is given up."""
        name, start = call
        failure = hang_failure(self.plan, name, self._limit_s)
        with self._telling:
            if self._running.get(thread) is not call:
                return
            self._hang = failure
            note_hang(failure)
            if thread == CALLER:
                interrupt(self._caller)
            else:
                self._completions.put((name, failure, start, perf_counter_ns()))

    def _raise_hang(self) -> None:
        if self._hang is not None:
            raise self._hang from None

    def _settle(self, seconds: float) -> bool:
        """Wait for whatever an interrupted or failed run left behind, then forget it; False if that takes longer.

        An interrupt may fall between any two statements, so this counts
        nothing: each thread is asked for one more completion.
        """
        if not self._disturbed:
            return True
        if self._hang is not None:
            return False
        deadline = time.monotonic() + seconds
        marks = set()
        for queue, worker in self._workers.items():
            mark = f"settled {queue} {next(self._marks)}"
            marks.add(mark)
            worker.submit(mark, _nothing)
        # A wait may hang as well, and cannot be told how long it may take.
        waiter = threading.Thread(target=_wait_for_all, args=(tuple(self._async_calls.values()),), name="nn-stretch rest", daemon=True)
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
        self._running[CALLER] = None
        self._disturbed = False
        return True

    def _spans(self, name: str, start: int, end: int) -> list[Span]:
        """A step, and the conversions at its border."""
        if name not in self.plan.subgraphs:
            return [Span(name, self.plan.joins[name].processor, "calling thread", "join", start, end)]
        call = self._calls[name]
        if isinstance(call, AsyncInvocation):
            start, end = call.times() or (start, end)
        return subgraph_spans(self.plan.subgraphs[name], self.plan.subgraphs[name].placement.queue, call, start, end)

    def _raise(self, step: str, error: str) -> None:
        cause = self._errors.get(step)
        raise step_failure(self.plan, step, cause, error) from cause


def _wait_for_all(calls: Sequence[AsyncInvocation]) -> None:
    for call in calls:
        with suppress(Exception):
            call.wait()


def _nothing() -> None:
    """The end of an inference, and the job whose completion says that those before it are over."""
