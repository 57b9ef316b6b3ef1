"""Futures of inferences that are run again where what they ran on hangs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from scheduler.runtime.failures import HangError


def again_after_a_hang(future: Future[Any], run: Callable[[], Any]) -> Future[Any]:
    """A future that has the result of another one, or where that hung, of a second try."""
    found: Future[Any] = Future()
    found.set_running_or_notify_cancel()

    def take(work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:  # it belongs to whoever waits
            found.set_exception(error)
        else:
            found.set_result(result)

    # the first future may be kept by a thread that hangs: once it is done it must not keep what the second try needs
    again = [run]

    def ended(first: Future[Any]) -> None:
        work = again.pop()
        if isinstance(first.exception(), HangError):
            # not here: this is a thread of what hangs
            threading.Thread(target=take, args=(work,), name="nn-stretch second try", daemon=True).start()
        else:
            take(first.result)

    future.add_done_callback(ended)
    return found
