"""Carries out the state machine's instructions with threads, command queues and the calling thread."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from predictors.errors import StretchError
from scheduler.buffers import Buffers, bind_subgraph, subgraph_spans
from scheduler.cores import pinned
from scheduler.delegates.base import AsyncInvocation, Compiled
from scheduler.events import (
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
from scheduler.failures import step_failure
from scheduler.manifest import Tensor
from scheduler.plan import ExecutionPlan
from scheduler.trace import Span, Trace
from scheduler.transitions import Node, Transitions
from scheduler.workers import Completion, Worker

#: Name under which the answer to `InputReady` is remembered; no step may be called so.
INPUT = "input"

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

    Raises:
        StretchError: If a subgraph does not fit its tensors.
    """

    def __init__(self, plan: ExecutionPlan, tensors: Sequence[Tensor], compiled: Mapping[str, Compiled]) -> None:
        self.plan = plan
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
        self._table: Transitions[Actions] = Transitions(plan, self._actions)
        self._completions: SimpleQueue[Completion] = SimpleQueue()
        self._workers: dict[str, Worker] = {}
        for subgraph in plan.subgraphs.values():
            place = subgraph.placement
            if place.dispatch == "blocking" and place.queue not in self._workers:
                self._workers[place.queue] = Worker(place.queue, place.thread_cores, self._completions)

    def run(self) -> Trace:
        """Run once, from the input's buffer to the output's.

        Returns:
            What ran where and when.

        Raises:
            StretchError: If a delegate fails. Everything else has come to rest
                by then, so that the next run starts afresh.
        """
        self._begin()
        try:
            with pinned(self._inline_cores):
                start = perf_counter_ns()
                self._carry_out()
                end = perf_counter_ns()
            self._disturbed = False
        finally:
            self._settle()
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
            self._disturbed = False
        finally:
            self._settle()
        if name in self._errors:
            raise step_failure(self.plan, name, self._errors[name]) from self._errors[name]
        return self._spans(*self._done[-1])[0]

    def close(self) -> None:
        """End the threads; they finish what they are doing."""
        for worker in self._workers.values():
            worker.close()

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
        try:
            call.enqueue()
        except Exception as error:
            self._completions.put((name, error, start, perf_counter_ns()))
        else:
            self._enqueued[name] = (call, start)

    def _run_inline(self, name: str, run: Hand) -> str | Event:
        start = perf_counter_ns()
        try:
            run()
        except Exception as error:
            self._errors[name] = error
            return SubgraphFailed(name, str(error))
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
        try:
            call.wait()
        except Exception as raised:
            error = raised
        del self._enqueued[name]
        return name, error, start, perf_counter_ns()

    def _begin(self) -> None:
        self._settle()
        self._disturbed = True
        self._done.clear()
        self._errors.clear()

    def _settle(self) -> None:
        """Wait for whatever an interrupted or failed run left behind, then forget it.

        An interrupt may fall between any two statements, so this counts
        nothing: each thread is asked for one more completion.
        """
        if not self._disturbed:
            return
        marks = {f"settled {queue}": worker for queue, worker in self._workers.items()}
        for mark, worker in marks.items():
            worker.submit(mark, _nothing)
        while marks:
            marks.pop(self._completions.get()[0], None)
        for call in self._async_calls.values():
            with suppress(Exception):
                call.wait()
        self._enqueued.clear()
        self._disturbed = False

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


def _nothing() -> None:
    """The end of an inference, and the job whose completion says that those before it are over."""
