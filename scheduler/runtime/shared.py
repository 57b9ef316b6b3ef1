"""Drives the state machine of several users with threads: one for each queue, which runs steps of any of them."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from time import monotonic

from predictors.errors import StretchError
from scheduler.cores import pin_thread
from scheduler.delegates.base import Array
from scheduler.placement.place import Placement
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.code import Code
from scheduler.runtime.events import Event, Fail, Finish, InputReady, Start
from scheduler.runtime.inputs import Values
from scheduler.runtime.pipeline import InFlight, Pipeline, Task
from scheduler.runtime.plan import ExecutionPlan
from scheduler.runtime.several import Begins, Go, Gone, Left, Several, SharedEvent, Told, User
from scheduler.runtime.turns import PATIENCE_MS
from scheduler.runtime.watch import TIME_LIMIT_S

#: Events that are kept, with what they were answered.
KEPT = 4096

#: Seconds after which a close looks again.
_LOOK_S = 0.2


def now_ms() -> float:
    """Now, by the clock of `time.monotonic`, ms."""
    return monotonic() * 1e3


class SharedQueues:
    """Threads, one a queue, for the inferences of several users.

    Args:
        patience_ms: How long an inference without a deadline waits, at most, before it is the most urgent.
        now: The clock of deadlines, ms.
    """

    def __init__(self, patience_ms: float = PATIENCE_MS, now: Callable[[], float] = now_ms) -> None:
        #: The clock of deadlines, ms.
        self.now = now
        #: Guards everything here and in the users' pipelines.
        self.changed = threading.Condition()
        self.several = Several({}, patience_ms)
        #: What was told, and what that was answered.
        self.events: deque[tuple[SharedEvent, tuple[Go, ...]]] = deque(maxlen=KEPT)
        self._users: dict[str, SharedPipeline] = {}
        self._inboxes: dict[str, SimpleQueue[tuple[SharedPipeline, Task] | None]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._dismissed = False

    def add(self, name: str, user: User, pipeline: "SharedPipeline") -> None:
        """Have a user's inferences, run by a pipeline; the lock is not held."""
        with self.changed:
            self.several.add(name, user)
            self._users[name] = pipeline

    def open(self, queue: str, cores: tuple[int, ...]) -> None:
        """Have a thread for a queue."""
        with self.changed:
            if queue not in self._inboxes:
                self._begin(queue, cores)

    def tell(self, event: SharedEvent) -> Sequence[Go]:
        """Tell the state machine, and hand out the steps that it answers; the lock is held."""
        answer = self.several.handle(event)
        self.events.append((event, tuple(answer)))
        for go in answer:
            if isinstance(go.instruction, Start):
                self._inboxes[go.instruction.queue].put((self._users[go.user], (go.instruction, go.place)))
        return answer

    def give_up(self, user: str, queue: str) -> None:
        """A user's step hangs: its inferences are given up, and its queue gets another thread; the lock is held."""
        self.tell(Gone(user, self.now()))
        hung = self._threads[queue]
        self._inboxes[queue].put(None)  # should it ever come back
        self._begin(queue, getattr(hung, "cores", ()))
        self.tell(Left(queue, self.now()))

    def left(self, queue: str) -> None:
        """A step of a user who was given up has ended; the lock is held."""
        if self._threads.get(queue) is threading.current_thread():
            self.tell(Left(queue, self.now()))

    def serves(self, thread: threading.Thread) -> bool:
        """Whether a thread is one of these."""
        return thread in self._threads.values()

    def dismiss(self) -> None:
        """Have every thread end once it has done what it was given."""
        with self.changed:
            self._dismissed = True
            for inbox in self._inboxes.values():
                inbox.put(None)

    def close(self, *, wait: bool = True) -> None:
        """Return when the threads have ended, but for those that hang."""
        self.dismiss()
        for thread in list(self._threads.values()):
            if wait and thread is not threading.current_thread():
                thread.join()

    def _begin(self, queue: str, cores: tuple[int, ...]) -> None:
        inbox = self._inboxes[queue] = SimpleQueue()
        thread = _QueueThread(queue, cores, inbox)
        self._threads[queue] = thread
        thread.start()
        if self._dismissed:
            inbox.put(None)


class _QueueThread(threading.Thread):
    """Runs steps of one queue.

    Args:
        queue: Its name.
        cores: Cores that it is pinned to; empty for none.
        inbox: What it is to run, one after the other; None ends it.
    """

    def __init__(self, queue: str, cores: tuple[int, ...], inbox: "SimpleQueue[tuple[SharedPipeline, Task] | None]") -> None:
        super().__init__(name=f"nn-stretch {queue} shared", daemon=True)
        self.cores, self._inbox = cores, inbox

    def run(self) -> None:
        pin_thread(self.cores)
        while (job := self._inbox.get()) is not None:
            pipeline, (start, place) = job
            pipeline.work(start, place)
            del job, pipeline, start, place  # nothing may outlive its inference in this frame


class SharedPipeline(Pipeline):
    """One user's inferences among those of others.

    Args:
        plan: What to run.
        placements: Where each subgraph runs.
        lanes: Memory of the tensors that cross subgraphs, for each inference in flight.
        code: The subgraphs, compiled for their placements.
        shared: The threads.
        user: Name of this user there.
        weight: Of this user.
        limit_s: Seconds that one call of a delegate may take.
        named: As of `Pipeline`.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        placements: Mapping[str, Placement],
        lanes: Sequence[Buffers],
        code: Code,
        shared: SharedQueues,
        user: str,
        weight: float = 1.0,
        limit_s: float = TIME_LIMIT_S,
        named: Callable[[Mapping[str, Array]], Mapping[str, Array]] = dict,
    ) -> None:
        self._shared, self._user, self._weight, self._count = shared, user, weight, len(lanes)
        #: Whether it was closed.
        self._gone = False
        super().__init__(plan, placements, lanes, code, limit_s, None, named, shared.changed)

    @property
    def owns_calling_thread(self) -> bool:
        """Whether the caller is a thread of a queue, which must not wait for inferences."""
        return self._shared.serves(threading.current_thread())

    def submit(self, x: Mapping[str, Array], deadline_s: float = inf, priority: int = 0) -> Future[Values]:
        """Start an inference; waits while as many of this user as there are lanes are in flight."""
        number = self._filled(x)
        future = self._lanes[number].future
        with self._changed:
            if self._hang is None and not self._gone:  # else its future was told
                self._shared.tell(Begins(self._user, number, self._shared.now(), deadline_s * 1e3, priority))
        return future

    def work(self, task: Start, place: Placement | None) -> None:
        """Run a step, on the thread of its queue."""
        self._work(task, place)

    def close(self, *, wait: bool = True) -> None:
        """Return when what is in flight has ended."""
        self.stop()
        with self._changed:
            while len(self._free) < self._count and self._hang is None:
                if not self._changed.wait(_LOOK_S) and not wait:
                    break
            left = [lane for number, lane in enumerate(self._lanes) if number not in self._free]
            if self._hang is None and not self._gone:
                self._gone = True
                self._shared.tell(Gone(self._user, self._shared.now()))
        self._watch.close()
        for lane in left:
            if lane.future.running():  # nobody computes it any more
                with suppress(InvalidStateError):
                    lane.future.set_exception(StretchError("this session was closed before the inference was over"))
        if not left:
            # Bound subgraphs hold memory, files and processes.
            self._lanes = []

    def _begun(self, placements: Mapping[str, Placement]) -> InFlight:
        self._shared.add(self._user, User(self.plan, placements, self._count, self._weight), self)
        return _Own(self._shared.several, self._user)

    def _open(self, place: Placement) -> None:
        self._shared.open(place.queue, place.thread_cores)

    def _tell(self, event: Event, own: str | None = None) -> tuple[Task | None, Finish | Fail | None]:
        assert not isinstance(event, InputReady)
        if self._gone:
            if own is not None:
                self._left(own)
            return None, None
        answer = self._shared.tell(Told(self._user, self._shared.now(), event))
        ended = [go.instruction for go in answer if isinstance(go.instruction, Finish | Fail)]
        return None, next(iter(ended), None)

    def _dismiss(self) -> None:
        """The threads serve others, too."""

    def _give_up(self, queue: str) -> None:
        self._shared.give_up(self._user, queue)

    def _left(self, queue: str) -> None:
        self._shared.left(queue)


class _Own:
    """What is known of one user's inferences.

    Args:
        several: Of all of them.
        user: Whose.
    """

    def __init__(self, several: Several, user: str) -> None:
        self._several, self._user = several, user

    @property
    def placements(self) -> Mapping[str, Placement]:
        return self._several.placements(self._user)

    @property
    def in_flight(self) -> int:
        return self._several.in_flight(self._user)

    def waiting(self) -> dict[str, int]:
        return self._several.waiting(self._user)
