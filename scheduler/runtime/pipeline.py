"""Runs several inferences at once: a thread for each queue that helps itself to the next step.

For throughput, not for latency: here no thread waits for another at a meeting
point, each takes whatever is ready, of whichever inference.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from time import perf_counter_ns

import numpy as np

from predictors.errors import StretchError
from scheduler.bundle.manifest import Tensor
from scheduler.delegates.base import Array, Compiled
from scheduler.placement.cores import pin_thread
from scheduler.runtime.buffers import Buffers, bind_subgraph, subgraph_spans
from scheduler.runtime.failures import hang_failure, step_failure
from scheduler.runtime.pipeline_state import PipelineState, Task
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.trace import QueueDepth, Span, Trace
from scheduler.runtime.watch import TIME_LIMIT_S, Watch, note_hang

#: Traces that are kept, of the inferences that ended last.
KEPT_TRACES = 64

#: Seconds after which a close looks again whether what it waits for hangs.
_LOOK_S = 0.2


class _Lane:
    """Buffers of one inference, and its subgraphs bound to them."""

    def __init__(self, plan: ExecutionPlan, tensors: Sequence[Tensor], compiled: Mapping[str, Compiled]) -> None:
        buffers = Buffers(plan, tensors)
        self.bytes = buffers.bytes
        self.input, self.output = buffers.arrays[plan.input], buffers.arrays[plan.output]
        self.joins = buffers.joins
        self.calls = {name: bind_subgraph(subgraph, compiled[name], buffers.arrays) for name, subgraph in plan.subgraphs.items()}
        self.future: Future[Array] = Future()
        self.start_ns = 0
        self.spans: list[Span] = []


class Pipeline:
    """Several inferences in flight over the same processors.

    Args:
        plan: What to run.
        tensors: The tensors that cross subgraphs.
        compiled: Each subgraph, made ready for the delegate of its placement.
        lanes: Inferences in flight at most, each with buffers of its own.
        movable: Whether a queue may run subgraphs of another one whose
            delegate and number of cores are the same.
        limit_s: Seconds that one call of a delegate may take.

    Raises:
        StretchError: If a subgraph does not fit its tensors or memory is short.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        tensors: Sequence[Tensor],
        compiled: Mapping[str, Compiled],
        lanes: int,
        movable: Callable[[str], bool],
        limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._plan = plan
        self._lanes = [_Lane(plan, tensors, compiled) for _ in range(lanes)]
        self._state = PipelineState(plan, lanes, interchangeable(plan, movable))
        self._changed = threading.Condition()
        self._closed = False
        self._limit_s = limit_s
        self._hang: StretchError | None = None
        self._watch = Watch(limit_s, self._overdue)
        self._traces: deque[Trace] = deque(maxlen=KEPT_TRACES)
        self._depths: deque[QueueDepth] = deque(maxlen=KEPT_TRACES * 16)
        cores = {s.placement.queue: s.placement.thread_cores for s in plan.subgraphs.values()}
        self._threads = [
            threading.Thread(target=self._serve, args=(queue, cores[queue]), name=f"nn-stretch {queue} in flight", daemon=True)
            for queue in plan.queues
        ]
        for thread in self._threads:
            thread.start()

    @property
    def bytes(self) -> int:
        """Memory of all lanes' buffers."""
        return sum(lane.bytes for lane in self._lanes)

    @property
    def owns_calling_thread(self) -> bool:
        """Whether the caller is a thread of this pipeline, which must not wait for it."""
        return threading.current_thread() in self._threads

    def submit(self, x: Array) -> Future[Array]:
        """Start an inference; waits while as many as there are lanes are in flight.

        Args:
            x: An input that was checked; it is copied.
        """
        with self._changed:
            while not self._state.free_lanes and self._hang is None:
                self._changed.wait()
            self._raise_hang()
            number = self._state.reserve()
        lane = self._lanes[number]
        lane.future, lane.spans = Future(), []
        lane.future.set_running_or_notify_cancel()
        np.copyto(lane.input, x)  # outside the lock: it takes as long as a small subgraph
        with self._changed:
            lane.start_ns = perf_counter_ns()
            self._state.arrive(number)
            self._changed.notify_all()
        return lane.future

    def drain(self) -> None:
        """Return when no inference is in flight.

        Raises:
            StretchError: If one of them hangs.
        """
        with self._changed:
            while self._state.in_flight and self._hang is None:
                self._changed.wait()
            self._raise_hang()

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
            self._changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Return when what is in flight and the threads have ended; threads that hang are given up.

        Args:
            wait: False gives up what does not end within a moment.
        """
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LOOK_S)
                while wait and thread.is_alive() and self._hang is None:
                    thread.join(_LOOK_S)
        self._watch.close()
        if not any(thread.is_alive() for thread in self._threads):
            # Bound subgraphs hold memory, files and processes.
            self._lanes = []

    def _serve(self, queue: str, cores: tuple[int, ...]) -> None:
        pin_thread(cores)
        while (task := self._next(queue)) is not None:
            lane = self._lanes[task.lane]
            call = lane.joins[task.step] if task.step in lane.joins else lane.calls[task.step].run
            error: Exception | None = None
            start = perf_counter_ns()
            if task.step in lane.calls:
                self._watch.running[queue] = (task.step, start)
            try:
                if call is not None:
                    call()
            except BaseException as raised:  # whatever a delegate raises belongs to the caller
                error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
            self._watch.running[queue] = None
            lane.spans += self._spans(task, queue, start, perf_counter_ns())
            self._report(task, error)

    def _next(self, queue: str) -> Task | None:
        with self._changed:
            while (task := self._state.take(queue)) is None:
                if self._hang is not None or (self._closed and not self._state.in_flight):
                    return None
                self._changed.wait()
            return task

    def _report(self, task: Task, error: Exception | None) -> None:
        """Tell the state, wake whom it concerns, and hand out the result of an inference that ended."""
        state, lane = self._state, self._lanes[task.lane]
        with self._changed:
            if self._hang is not None:  # every future has been told
                return
            over = state.done(task) if error is None else state.failed(task, error)
            failure = state.failure(task.lane)
            self._depths.append(QueueDepth(perf_counter_ns(), state.waiting()))
            if over:
                self._traces.append(Trace(tuple(lane.spans), lane.start_ns, perf_counter_ns()))
            else:
                self._changed.notify_all()
        if not over:
            return
        future, output = lane.future, None if failure else lane.output.copy()
        with self._changed:
            state.forget(task.lane)
            state.release(task.lane)
            self._changed.notify_all()
        if output is not None:
            # A hang elsewhere may have answered for it in between.
            with suppress(InvalidStateError):
                future.set_result(output)
        elif failure is not None:
            step, cause = failure
            raised = step_failure(self._plan, step, cause)
            raised.__cause__ = cause
            with suppress(InvalidStateError):
                future.set_exception(raised)

    def _overdue(self, queue: str, call: tuple[str, int]) -> None:
        """Told by the watch: nothing that is in flight can be waited for any more."""
        failure = hang_failure(self._plan, call[0], self._limit_s)
        with self._changed:
            if self._watch.running.get(queue) is not call:
                return
            self._hang = failure
            note_hang(failure)
            self._changed.notify_all()
        for lane in self._lanes:
            if lane.future.running():
                with suppress(InvalidStateError):
                    lane.future.set_exception(failure)

    def _raise_hang(self) -> None:
        if self._hang is not None:
            raise self._hang

    def _spans(self, task: Task, queue: str, start: int, end: int) -> list[Span]:
        subgraph = self._plan.subgraphs.get(task.step)
        if subgraph is None:
            return [Span(task.step, self._plan.joins[task.step].processor, queue, "join", start, end)]
        return subgraph_spans(subgraph, queue, self._lanes[task.lane].calls[task.step], start, end)


def interchangeable(plan: ExecutionPlan, movable: Callable[[str], bool]) -> dict[str, tuple[str, ...]]:
    """Queues that can do each other's work: the same movable delegate on as many cores.

    Args:
        plan: The plan.
        movable: Whether subgraphs of a delegate may run on any thread, several of them at once.
    """
    kinds: dict[str, tuple[str, int]] = {}
    for subgraph in plan.subgraphs.values():
        place = subgraph.placement
        if place.cores and movable(place.delegate):
            kinds[place.queue] = (place.delegate, len(place.cores))
    return {queue: tuple(other for other, same in kinds.items() if same == kind and other != queue) for queue, kind in kinds.items()}
