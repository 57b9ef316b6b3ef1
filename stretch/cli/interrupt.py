"""Ctrl-C where the main thread cannot hear it: in a call of a runtime that never returns.

Python raises `KeyboardInterrupt` between two of its own instructions. A thread
that sits in native code, or waits in a clean-up for one that does, has none
left. So a second thread hears of the signal as well, looks whether the main
thread moves, and ends the process if it does not.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

#: Seconds without a move of the main thread after which it counts as hanging.
GRACE_S = 1.0

#: The same for verbs that write much.
WRITER_GRACE_S = 10.0

#: Times that it is looked at in these seconds.
_LOOKS = 5

_Place = tuple[tuple[object, int], ...]


@contextlib.contextmanager
def interruptible(end: Callable[[], int], grace_s: float = GRACE_S) -> Iterator[None]:
    """Let Ctrl-C end this process and its children even if the main thread hangs.

    Only where Ctrl-C raises `KeyboardInterrupt`: in the main thread of a program
    without a handler of its own, and only as long as that is so.
    """
    if threading.current_thread() is not threading.main_thread() or not _usual():
        yield
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(heard, end, grace_s), name="nn-stretch interrupt", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        # one that came while a child was being started left nobody who would end it
        _kill_children(os.getpid())
        raise
    finally:
        signal.set_wakeup_fd(before)
        told.close()
        thread.join()


def _usual() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _listen(heard: socket.socket, end: Callable[[], int], grace_s: float) -> None:
    with heard:
        while numbers := heard.recv(64):
            if signal.SIGINT in numbers and _stands_still(heard, grace_s):
                code = end()
                _kill_children(os.getpid())
                os._exit(code)


def _stands_still(heard: socket.socket, grace_s: float) -> bool:
    """Watch the main thread until it has stood still for so long, or its work is over."""
    heard.settimeout(grace_s / _LOOKS)
    last, still = _place(), 0
    while still < _LOOKS:
        with contextlib.suppress(TimeoutError):
            if not heard.recv(64):
                return False
        now = _place()
        still = still + 1 if now == last and _usual() else 0
        last = now
    return True


def _place() -> _Place:
    """Where the main thread is: code and instruction of each of its frames."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _kill_children(process: int) -> None:
    """Kill the processes that a process started, and those that they started."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in file.read_text().split():
                _kill_children(int(child))
                os.kill(int(child), signal.SIGKILL)
