"""Ctrl-C while the main thread hangs in native code, such as a runtime call that never returns.

Python raises `KeyboardInterrupt` between two bytecode instructions. A thread
that is stuck in native code, or waits for such a thread, executes none.
So a second thread also receives the signal, watches whether the main
thread makes progress, and ends the process if it does not.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

#: Seconds without progress of the main thread after which it counts as hanging.
GRACE_S = 1.0

#: Seconds without progress for verbs that write large files.
WRITER_GRACE_S = 10.0

#: Number of checks in these seconds.
_MAX_CHECKS = 5

_Position = tuple[tuple[object, int], ...]


@contextlib.contextmanager
def interruptible(end: Callable[[], int], grace_s: float = GRACE_S) -> Iterator[None]:
    """Let Ctrl-C end this process and its children even if the main thread hangs; only active if Ctrl-C raises `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread() or not _raises_interrupt():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(reader, end, grace_s), name="nn-stretch interrupt", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        # a signal during the start of a child process may have been lost
        _kill_children(os.getpid())
        raise
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()


def _raises_interrupt() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _listen(heard: socket.socket, end: Callable[[], int], grace_s: float) -> None:
    with heard:
        while numbers := heard.recv(64):
            if signal.SIGINT in numbers and _is_hanging(heard, grace_s):
                code = end()
                _kill_children(os.getpid())
                os._exit(code)


def _is_hanging(heard: socket.socket, grace_s: float) -> bool:
    """Return True after `grace_s` without progress of the main thread, False when the main thread has finished."""
    heard.settimeout(grace_s / _MAX_CHECKS)
    last, still = _position(), 0
    while still < _MAX_CHECKS:
        with contextlib.suppress(TimeoutError):
            if not heard.recv(64):
                return False
        now = _position()
        still = still + 1 if now == last and _raises_interrupt() else 0
        last = now
    return True


def _position() -> _Position:
    """Return the position of the main thread: code and instruction of each of its frames."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(frames)


def _kill_children(process: int) -> None:
    """Kill all descendants of a process."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in file.read_text().split():
                _kill_children(int(child))
                os.kill(int(child), signal.SIGKILL)
