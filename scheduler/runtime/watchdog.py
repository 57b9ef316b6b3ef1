"""The watchdog, which notices calls of delegates that do not end.

A call that hangs cannot be ended from outside: its thread is abandoned, and the caller gets an
error. If the caller's own thread hangs, it is interrupted as by Ctrl-C.
"""

import ctypes
import signal
import threading
import weakref
from collections.abc import Callable
from math import inf
from time import perf_counter_ns

from predictors import system
from predictors.errors import StretchError

#: Default time limit in seconds of one call of a delegate: far above any real subgraph, simulators included.
TIME_LIMIT_S = 600.0

#: Running calls by thread: name of the subgraph, and start in ns.
Running = dict[str, tuple[str, int] | None]

_last_hang: list[StretchError] = []


class Watchdog:
    """A thread that checks running calls for a timeout.

    Args:
        limit_s: Time limit of a call, s.
        on_timeout: Method that gets each call that exceeds the limit: its thread,
            and its entry of `running`. It is called once per call, or again after the same time
            if it returns True. Its object is not kept alive.
    """

    def __init__(self, limit_s: float, on_timeout: Callable[[str, tuple[str, int]], bool]) -> None:
        #: Entries are written by the threads that call delegates.
        self.running: Running = {}
        ended = threading.Event()
        thread = threading.Thread(
            target=_watch_calls, args=(self.running, limit_s, weakref.WeakMethod(on_timeout), ended), name="nn-stretch watch", daemon=True
        )
        thread.start()
        self._finalizer = weakref.finalize(self, _stop, ended, thread)

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._finalizer()


def interrupt(thread: int) -> None:
    """Raise `KeyboardInterrupt` in a thread, wherever its Python code waits or runs.

    Args:
        thread: Identity of the thread, from `threading.get_ident`.
    """
    if thread == threading.main_thread().ident and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # A signal wakes a thread that waits for a lock or sleeps.
        system.interrupt_main(thread)
    else:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


def note_hang(failure: StretchError) -> None:
    """Remember a hang, in case the thread in which it happened can never report it."""
    # not the error itself, because its traceback would keep the session and its bundle alive
    _last_hang[:] = [StretchError(failure.message, failure.hint)]


def last_hang() -> StretchError | None:
    """Return the last hang, or None."""
    return _last_hang[0] if _last_hang else None


def _watch_calls(
    running: Running, limit_s: float, on_timeout: "weakref.WeakMethod[Callable[[str, tuple[str, int]], bool]]", ended: threading.Event
) -> None:
    limit_ns = int(limit_s * 1e9)
    #: Reported calls, with the time at which to report each again.
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
