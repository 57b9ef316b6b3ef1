"""A thread for each queue, created once and pinned, a watch that notices calls which do not end, and the one sentence a caller gets when a step fails.

A hand-off through two queues is the quickest way; `ThreadPoolExecutor` adds a future with its lock and
condition to every call. A call that hangs cannot be ended from outside: its thread is abandoned, and the caller gets an
error. The thread that called the session itself is interrupted as by Ctrl-C.
"""

import ctypes
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from math import inf
from queue import SimpleQueue
from time import perf_counter_ns

from predictors import system
from predictors.errors import StretchError
from scheduler.cores import pin_thread
from scheduler.delegates.base import origin
from scheduler.placement.place import Placement


class HangError(StretchError):
    """A delegate did not come back, and cannot be stopped: its thread is lost.

    Attributes:
        subgraph: Name of the subgraph.
        place: Where it runs.
        limit_s: How long it was waited for, s.
    """

    subgraph: str
    placement: Placement
    limit_s: float

    @classmethod
    def of(cls, subgraph: str, placement: Placement, limit_s: float) -> "HangError":
        """The error of a subgraph that hangs."""
        result = cls(
            f"subgraph `{subgraph}` {_timeout_text(limit_s)} on processor `{placement.processor}` (delegate `{placement.delegate}`)",
            f"run it elsewhere with --map {placement.processor}=cpu, or allow more with --time-limit",
        )
        result.subgraph, result.placement, result.limit_s = subgraph, placement, limit_s
        return result


def hang_reason(limit_s: float) -> str:
    """Describe a call that takes too long, as the end of a sentence."""
    return f"it {_timeout_text(limit_s)}"


def _timeout_text(limit_s: float) -> str:
    return f"did not end within {limit_s:g} s"


def step_failure(step: str, place: Placement | None, cause: BaseException | None, text: str = "") -> StretchError:
    """An error that names the step, where it ran and why it failed."""
    words = (str(cause) if cause is not None else text).strip() or text.strip()
    reason = words.splitlines()[0] if words else type(cause).__name__
    if place is None:
        return StretchError(f"join `{step}` failed: {reason}")
    return StretchError(
        f"subgraph `{step}` failed on processor `{place.processor}` (delegate `{place.delegate}`): {reason}", _authors(place.delegate)
    )


def delegate_failure(name: str, action: str, cause: Exception) -> StretchError:
    """An error that names a delegate which broke off, and the package it is from."""
    reason = (str(cause).strip().splitlines() or [""])[0]
    return StretchError(
        f"the delegate `{name}` failed to {action}: {type(cause).__name__}{f': {reason}' if reason else ''}", _authors(name)
    )


def _authors(name: str) -> str | None:
    package = origin(name)
    return f"`{name}` is a plug-in ({package}): report it to its authors" if package else None


#: Seconds after which a wait looks up: a signal that comes between a thread's last step and its sleep does not wake it.
POLL_S = 0.5

#: Work for a thread; None ends it.
Job = Callable[[], object] | None


class QueueThread(threading.Thread):
    """Runs the jobs of one queue.

    Args:
        cores: Cores that it is pinned to; empty for none.
        inbox: Where its jobs come from.
    """

    def __init__(self, queue: str, cores: tuple[int, ...], inbox: SimpleQueue[Job] | None = None) -> None:
        super().__init__(name=f"nn-stretch {queue}", daemon=True)
        self.cores, self.inbox = cores, inbox or SimpleQueue()
        #: Whether another thread has its place, because it hangs.
        self.replaced = False

    def run(self) -> None:
        """Serve the inbox."""
        pin_thread(self.cores)
        while not self.replaced and (job := self.inbox.get()) is not None:
            job()
            job = None  # what it holds must not outlive it in this frame


class QueueThreads:
    """A thread for each queue; callers guard them with a lock."""

    def __init__(self) -> None:
        self._threads: dict[str, QueueThread] = {}
        # what was never closed must not leave its threads behind
        self._finalizer = weakref.finalize(self, _stop_threads, self._threads)

    def open(self, queue: str, cores: tuple[int, ...]) -> None:
        """Start a thread for a queue, unless it has one."""
        if queue not in self._threads:
            self._threads[queue] = QueueThread(queue, cores)
            self._threads[queue].start()
            if not self._finalizer.alive:
                self._threads[queue].inbox.put(None)

    def inbox(self, queue: str) -> SimpleQueue[Job]:
        """Return the inbox of a queue's thread, which runs jobs in order."""
        return self._threads[queue].inbox

    def replace_thread(self, queue: str) -> None:
        """Start another thread for a queue whose thread hangs."""
        hung = self._threads[queue]
        hung.replaced = True  # should it ever come back
        self._threads[queue] = QueueThread(queue, hung.cores, hung.inbox)
        self._threads[queue].start()

    def is_calling_thread(self, queue: str | None = None) -> bool:
        """Whether the caller is the thread of a queue, or of any."""
        threads = self._threads.values() if queue is None else [self._threads.get(queue)]
        return threading.current_thread() in threads

    def close(self, keep_waiting: Callable[[], bool] = lambda: True) -> bool:
        """End the threads after their current work and wait for them; return whether all have ended.

        Args:
            go_on: Whether to wait longer for one that has not ended within a moment.
        """
        self._finalizer()
        for thread in list(self._threads.values()):
            if thread is not threading.current_thread():
                thread.join(POLL_S)
                while thread.is_alive() and keep_waiting():
                    thread.join(POLL_S)
        return not any(thread.is_alive() for thread in self._threads.values())


def _stop_threads(threads: Mapping[str, QueueThread]) -> None:
    for thread in threads.values():
        thread.inbox.put(None)


#: Seconds that one call of a delegate may take: far above any real subgraph, simulators included.
TIME_LIMIT_S = 600.0

#: Running calls by thread: name of the subgraph, and when it started in nanoseconds.
Running = dict[str, tuple[str, int] | None]

_last_hang: list[StretchError] = []


class Watchdog:
    """A thread that checks running calls for a timeout.

    Args:
        limit_s: How long a call may take, s.
        overdue: A method that gets each call that took longer: its thread,
            and the entry of `running` for it; once, unless it answers that it must be called
            again when as much time has gone by. Its object is not kept alive.
    """

    def __init__(self, limit_s: float, on_timeout: Callable[[str, tuple[str, int]], bool]) -> None:
        #: Written by the threads that call delegates.
        self.running: Running = {}
        ended = threading.Event()
        thread = threading.Thread(
            target=_watch_calls, args=(self.running, limit_s, weakref.WeakMethod(on_timeout), ended), name="nn-stretch watch", daemon=True
        )
        thread.start()
        self._finalizer = weakref.finalize(self, _stop, ended, thread)

    def close(self) -> None:
        """Return when the thread has ended."""
        self._finalizer()


def interrupt(thread: int) -> None:
    """Raise `KeyboardInterrupt` in a thread, wherever Python code of it waits or runs.

    Args:
        thread: Its identity, from `threading.get_ident`.
    """
    if thread == threading.main_thread().ident and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # A signal wakes a thread that waits for a lock or sleeps.
        system.interrupt_main(thread)
    else:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


def note_hang(failure: StretchError) -> None:
    """Remember a hang, for the case that the thread it happened in can never say so."""
    # not the error itself, whose traceback would keep the session and its bundle
    _last_hang[:] = [StretchError(failure.message, failure.hint)]


def last_hang() -> StretchError | None:
    """The hang that was noted last."""
    return _last_hang[0] if _last_hang else None


def _watch_calls(
    running: Running, limit_s: float, on_timeout: "weakref.WeakMethod[Callable[[str, tuple[str, int]], bool]]", ended: threading.Event
) -> None:
    limit_ns = int(limit_s * 1e9)
    #: Calls that were reported, and when to report them again.
    reported: dict[str, tuple[tuple[str, int], float]] = {}
    wait = limit_s
    while not ended.wait(min(wait, threading.TIMEOUT_MAX)):
        now, wait = perf_counter_ns(), limit_s
        for thread, call in list(running.items()):
            if call is None:
                continue
            reported_call, report_ns = reported.get(thread, (None, inf))
            remaining_ns = (report_ns if reported_call is call else call[1] + limit_ns) - now
            if remaining_ns > 0:
                wait = min(wait, remaining_ns / 1e9)
            elif report := on_timeout():
                reported[thread] = call, now + limit_ns if report(thread, call) else inf
                del report


def _stop(ended: threading.Event, thread: threading.Thread) -> None:
    ended.set()
    if thread is not threading.current_thread():
        thread.join()
