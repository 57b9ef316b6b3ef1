"""What one inference at a time is handed to: threads, command queues and the calling thread, all of them watched for calls that hang."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty
from time import perf_counter_ns

from predictors.errors import StretchError
from scheduler.delegates.base import AsyncInvocation
from scheduler.placement.place import Placement
from scheduler.runtime.code import Aborted
from scheduler.runtime.failures import HangError, hang_reason
from scheduler.runtime.mailbox import Mailbox
from scheduler.runtime.watch import Watch, interrupt, note_hang
from scheduler.runtime.workers import Call, Completion, Worker

#: Whether threads watch memory when they are due to be handed something (`scheduler.runtime.mailbox`): worth it where cores sleep
#: deeply while nothing else runs on them, a loss where they are kept awake by others.
SPINS = False

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
        self._completions: Mailbox[Completion] = Mailbox()
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

    def spin(self, own: Collection[str], caller: str | None) -> None:
        """Who may watch memory when it is due to be handed something, from now on.

        Args:
            own: Queues whose core nobody else computes on.
            caller: Queue of the calling thread; None for none.
        """
        self._completions.spins = SPINS and caller in own
        for queue, worker in self._workers.items():
            worker.jobs.spins = SPINS and queue in own

    def wake(self, names: Collection[str]) -> None:
        """Have the threads of some queues awake for what they will be given in a moment, if they spin at all."""
        for queue in names:
            if queue in self._workers and self._workers[queue].jobs.spins:
                self._workers[queue].wake()

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

    def wait(self, after: str = "") -> Completion:
        """How a step went that was handed to others: the first that has ended.

        Args:
            after: What ended before the wait; waits after the same take about the same time.
        """
        found = self._completion(after) if not self._enqueued else self._wait_for_any()
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
            worker.submit(mark, _nothing)
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

    def _completion(self, after: str) -> Completion:
        while True:
            try:
                return self._completions.get(after, LOOK_S)
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


def _nothing() -> None:
    """The job whose completion says that those before it are over."""
