"""A few seconds in which an interruption waits, so that what was measured is kept."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interruption_waits() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block, whether it ends well or not.

    Only where Ctrl-C raises `KeyboardInterrupt`: in the main thread of a program without a handler of its own.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if pressed:
            raise KeyboardInterrupt
