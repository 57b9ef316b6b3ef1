"""Carries out the state machine's instructions with threads, command queues and the calling thread."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from predictors.errors import StretchError
from scheduler.buffers import Buffers
from scheduler.cores import pinned
from scheduler.delegates.base import AsyncInvocation, Compiled, Invocation
from scheduler.events import (
    Enqueue,
    Event,
    Fail,
    Finish,
    InputReady,
    Join,
    JoinDone,
    JoinFailed,
    RunInline,
    SubgraphDone,
    SubgraphFailed,
    Submit,
    Wait,
)
from scheduler.manifest import Tensor
from scheduler.plan import ExecutionPlan
from scheduler.state import SchedulerState
from scheduler.trace import Span, Trace
from scheduler.workers import Completion, Worker


class Executor:
    """Runs one inference at a time of a plan whose subgraphs are compiled.

    A subgraph on an asynchronous processor is enqueued from the calling thread;
    one on a processor whose call blocks goes to that queue's thread, created
    here once; the CPU's run on the calling thread, pinned while they do.

    Args:
        plan: What to run.
        tensors: The tensors that cross subgraphs.
        compiled: Each subgraph, made ready for the delegate of its placement.
    """

    def __init__(self, plan: ExecutionPlan, tensors: Sequence[Tensor], compiled: Mapping[str, Compiled]) -> None:
        self.plan = plan
        self.buffers = Buffers(plan, tensors)
        arrays = self.buffers.arrays
        calls: dict[str, Invocation] = {}
        for name, subgraph in plan.subgraphs.items():
            try:
                calls[name] = compiled[name].bind([arrays[subgraph.input]], [arrays[subgraph.output]])
            except StretchError as error:
                raise StretchError(f"{subgraph.file} does not fit the bundle: {error.message}", error.hint) from error
        self._runs: dict[str, Callable[[], None]] = {name: call.run for name, call in calls.items()}
        self._async_calls: dict[str, AsyncInvocation] = {}
        self._completions: SimpleQueue[Completion] = SimpleQueue()
        self._disturbed = False
        self._enqueued: dict[str, tuple[AsyncInvocation, int]] = {}
        self._done: list[tuple[str, int, int]] = []
        self._workers: dict[str, Worker] = {}
        self._worker_of: dict[str, Worker] = {}
        self._inline_cores: tuple[int, ...] = ()
        self._errors: dict[str, BaseException] = {}
        for name, subgraph in plan.subgraphs.items():
            place = subgraph.placement
            if place.dispatch == "inline":
                self._inline_cores = place.cores[:1]
            elif place.dispatch == "async":
                call = calls[name]
                if not isinstance(call, AsyncInvocation):
                    raise StretchError(f"delegate `{place.delegate}` says that it is asynchronous, but its invocations are not")
                self._async_calls[name] = call
        for name, subgraph in plan.subgraphs.items():
            place = subgraph.placement
            if place.dispatch == "blocking":
                if place.queue not in self._workers:
                    self._workers[place.queue] = Worker(place.queue, place.cores[:1], self._completions)
                self._worker_of[name] = self._workers[place.queue]

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
                self._carry_out(SchedulerState(self.plan))
                end = perf_counter_ns()
            self._disturbed = False
        finally:
            self._settle()
        return Trace(tuple(self._span(*record) for record in self._done), start, end)

    def run_alone(self, name: str) -> Span:
        """Run one subgraph where it is placed, with every other processor idle.

        Args:
            name: The subgraph; it reads what its input buffer holds.
        """
        self._begin()
        placement = self.plan.subgraphs[name].placement
        if placement.dispatch == "blocking":
            self._submit(name)
            self._event(self._completions.get())
        else:
            with pinned(placement.cores[:1]):
                start = perf_counter_ns()
                self._runs[name]()
                self._done.append((name, start, perf_counter_ns()))
        self._disturbed = False
        if name in self._errors:
            raise self._failure(name, str(self._errors[name]))
        return self._span(*self._done[-1])

    def close(self) -> None:
        """End the threads; they finish what they are doing."""
        for worker in self._workers.values():
            worker.close()

    def _carry_out(self, state: SchedulerState) -> None:
        """Feed events to the state machine until it says that the inference is over."""
        event: Event = InputReady()
        while True:
            # Only the last instruction occupies this thread and so leads to the next event.
            for instruction in state.handle(event):
                match instruction:
                    case Submit(name):
                        self._submit(name)
                    case Enqueue(name):
                        self._enqueue(name)
                    case RunInline(name):
                        event = self._run_inline(name)
                    case Wait():
                        event = self._wait()
                    case Join(name):
                        event = self._join(name)
                    case Finish():
                        return
                    case Fail(step, error):
                        raise self._failure(step, error)

    def _submit(self, name: str) -> None:
        self._worker_of[name].submit(name, self._runs[name])

    def _enqueue(self, name: str) -> None:
        call = self._async_calls[name]
        start = perf_counter_ns()
        try:
            call.enqueue()
        except Exception as error:
            self._completions.put(Completion(name, error, start, perf_counter_ns()))
        else:
            self._enqueued[name] = (call, start)

    def _run_inline(self, name: str) -> Event:
        start = perf_counter_ns()
        try:
            self._runs[name]()
        except Exception as error:
            self._errors[name] = error
            return SubgraphFailed(name, str(error))
        self._done.append((name, start, perf_counter_ns()))
        return SubgraphDone(name)

    def _join(self, name: str) -> Event:
        start = perf_counter_ns()
        work = self.buffers.joins[name]
        if work is not None:
            try:
                work()
            except Exception as error:
                self._errors[name] = error
                return JoinFailed(name, str(error))
        self._done.append((name, start, perf_counter_ns()))
        return JoinDone(name)

    def _wait(self) -> Event:
        if not self._enqueued:
            return self._event(self._completions.get())
        with suppress(Empty):
            return self._event(self._completions.get_nowait())
        name, (call, start) = next(iter(self._enqueued.items()))
        error: Exception | None = None
        try:
            call.wait()
        except Exception as raised:
            error = raised
        del self._enqueued[name]
        return self._event(Completion(name, error, start, perf_counter_ns()))

    def _event(self, completion: Completion) -> Event:
        name, error, start, end = completion
        if error is None:
            self._done.append((name, start, end))
            return SubgraphDone(name)
        self._errors[name] = error
        return SubgraphFailed(name, str(error))

    def _begin(self) -> None:
        self._settle()
        self._disturbed = True
        self._done = []
        self._errors = {}

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
            marks.pop(self._completions.get().name, None)
        for call in self._async_calls.values():
            with suppress(Exception):
                call.wait()
        self._enqueued.clear()
        self._disturbed = False

    def _span(self, name: str, start: int, end: int) -> Span:
        subgraph = self.plan.subgraphs.get(name)
        if subgraph is None:
            return Span(name, self.plan.joins[name].processor, "calling thread", "join", start, end)
        return Span(name, subgraph.placement.processor, subgraph.placement.queue, "subgraph", start, end)

    def _failure(self, step: str, text: str) -> StretchError:
        subgraph = self.plan.subgraphs.get(step)
        cause = self._errors.get(step)
        reason = (text.strip().splitlines() or [type(cause).__name__])[0]
        if subgraph is None:
            error = StretchError(f"join `{step}` failed: {reason}")
        else:
            place = subgraph.placement
            error = StretchError(f"subgraph `{step}` failed on processor `{place.processor}` (delegate `{place.delegate}`): {reason}")
        error.__cause__ = cause
        return error


def _nothing() -> None:
    """The job whose completion says that those before it are over."""
