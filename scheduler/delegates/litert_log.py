"""Keeps LiteRT's greetings off the terminal: it has no setting for what its native part prints."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

_LOCK = threading.Lock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what native code writes to stderr, and pass on afterwards what are not mere notes.

    Standard error belongs to the whole process: what other threads write there
    meanwhile is passed on as well, a moment later.
    """
    with _LOCK, contextlib.ExitStack() as stack:
        held = stack.enter_context(tempfile.TemporaryFile())
        try:
            sys.stderr.flush()
            real = os.dup(2)
        except (OSError, ValueError, AttributeError):  # there is no standard error
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held:
                if not line.startswith((b"INFO:", b"VERBOSE:")):
                    os.write(2, line)
