"""Threads that are created once, each pinned, each running one call at a time.

A hand-off through two queues is the quickest of what there is; `ThreadPoolExecutor` adds a future with its lock and condition to every call.
What a future would tell, the completion record tells.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns

from scheduler.cores import pin_thread
from scheduler.runtime.watch import Running

#: How one call went: its name, what it raised, when it started and ended in nanoseconds.
Completion = tuple[str, BaseException | None, int, int]
#: A call by its name, and whether somebody else waits for it.
Call = tuple[str, Callable[[], None], bool]
#: Calls that are run one after the other until one of them raises; None ends the thread.
Job = tuple[Call, ...] | None

#: Seconds for a thread to end after it was asked to; one that hangs in a delegate is left behind.
_LEAVE_S = 0.3


class Worker:
    """One thread bound to `cores`.

    Args:
        running: Where it says under its name what it runs now, for a `Watch`.
    """

    def __init__(self, name: str, cores: tuple[int, ...], completions: SimpleQueue[Completion], running: Running | None = None) -> None:
        #: What it is given to run.
        self.jobs: SimpleQueue[Job] = SimpleQueue()
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
        self.jobs.put(((name, call, True),))

    def submitter(self, calls: Sequence[Call]) -> Callable[[], None]:
        """Has these very calls run in their order, with nothing left to look up or allocate.

        One that raises is the last of them. One for which nobody waits is reported together with the next:
        waking whoever takes the reports takes longer than going on.
        """
        return partial(self.jobs.put, tuple(calls))

    def close(self, *, wait: bool = True) -> None:
        """Return when the thread has ended; what was submitted is run first.

        Args:
            wait: False gives up a thread that does not end within a moment, because its call hangs.
        """
        self._finalizer.detach()
        _stop(self.jobs, self._thread, None if wait else _LEAVE_S)


def _serve(jobs: SimpleQueue[Job], completions: SimpleQueue[Completion], cores: tuple[int, ...], own: str, running: Running) -> None:
    pin_thread(cores)
    call: Callable[[], None] | None = None
    report: Completion | None = None
    while (job := jobs.get()) is not None:
        reports: list[Completion] = []
        for name, call, awaited in job:
            reports.append(_run(name, call, own, running))
            failed = reports[-1][1] is not None
            if awaited or failed:
                for report in reports:
                    completions.put(report)
                reports = []
            if failed:
                break
        # Neither a call nor an error may outlive the inference in this frame.
        job = call = report = None


def _run(name: str, call: Callable[[], None], own: str, running: Running) -> Completion:
    """Run a call; how it went."""
    error: BaseException | None = None
    start = perf_counter_ns()
    running[own] = (name, start)
    try:
        call()
    except BaseException as raised:  # whatever a delegate raises belongs to the caller
        error = raised
    end = perf_counter_ns()
    running[own] = None
    try:
        return name, error, start, end
    finally:
        # its traceback leads to this frame, which must not lead to it
        del error


def _stop(jobs: SimpleQueue[Job], thread: threading.Thread, seconds: float | None) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(seconds)
