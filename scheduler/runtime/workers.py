"""Threads that are created once, each pinned, each running one call at a time.

A hand-off through two mailboxes (`scheduler.runtime.mailbox`) is the quickest of what
there is; `ThreadPoolExecutor` adds a future with its lock and condition to every call.
What a future would tell, the completion record tells.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns

from scheduler.cores import pin_thread
from scheduler.runtime.mailbox import Mailbox
from scheduler.runtime.watch import Running

#: How one call went: its name, what it raised, when it started and ended in nanoseconds.
Completion = tuple[str, BaseException | None, int, int]
#: Calls that are run one after the other, each by its name, until one of them raises; None ends the thread.
Job = tuple[tuple[str, Callable[[], None]], ...] | None

#: What a thread has done that was woken early.
EARLY = "woken early"

#: Seconds for a thread to end after it was asked to; one that hangs in a delegate is left behind.
_LEAVE_S = 0.3


class Worker:
    """One thread bound to `cores`.

    Args:
        name: Name of the thread.
        cores: Cores it is pinned to; empty for none.
        completions: Where it reports each call.
        running: Where it says under its name what it runs now, for a `Watch`.
    """

    def __init__(self, name: str, cores: tuple[int, ...], completions: Mailbox[Completion], running: Running | None = None) -> None:
        #: What it is given to run.
        self.jobs: Mailbox[Job] = Mailbox()
        self._thread = threading.Thread(
            target=_serve,
            args=(self.jobs, completions, cores, name, {} if running is None else running),
            name=f"nn-stretch {name}",
            daemon=True,
        )
        self._thread.start()
        # A session that was never closed must not leave its threads behind.
        self._finalizer = weakref.finalize(self, _stop, self.jobs, self._thread, _LEAVE_S)

    def submit(self, name: str, call: Callable[[], None]) -> None:
        """Have `call` run after those submitted before it."""
        self.jobs.put(((name, call),))

    def wake(self) -> None:
        """Have the thread awake for what it will be given in a moment."""
        self.jobs.put(())

    def submitter(self, calls: Sequence[tuple[str, Callable[[], None]]]) -> Callable[[], None]:
        """`submit` of these very calls, with nothing left to look up or allocate; one that raises is the last of them."""
        return partial(self.jobs.put, tuple(calls))

    def close(self, *, wait: bool = True) -> None:
        """Return when the thread has ended; what was submitted is run first.

        Args:
            wait: False gives up a thread that does not end within a moment, because its call hangs.
        """
        self._finalizer.detach()
        _stop(self.jobs, self._thread, None if wait else _LEAVE_S)


def _serve(jobs: Mailbox[Job], completions: Mailbox[Completion], cores: tuple[int, ...], own: str, running: Running) -> None:
    pin_thread(cores)
    name = ""
    call: Callable[[], None] | None = None
    while (job := jobs.get(name)) is not None:
        name = EARLY
        for name, call in job:
            if not _run(name, call, completions, own, running):
                break
        # No call may outlive the inference in this frame.
        job = call = None


def _run(name: str, call: Callable[[], None], completions: Mailbox[Completion], own: str, running: Running) -> bool:
    """Run a call and report it; whether it raised nothing."""
    error: BaseException | None = None
    start = perf_counter_ns()
    running[own] = (name, start)
    try:
        call()
    except BaseException as raised:  # whatever a delegate raises belongs to the caller
        error = raised
    end = perf_counter_ns()
    running[own] = None
    completions.put((name, error, start, end))
    return error is None


def _stop(jobs: Mailbox[Job], thread: threading.Thread, seconds: float | None) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(seconds)
