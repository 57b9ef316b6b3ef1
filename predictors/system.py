"""Functions that only some operating systems have, in one place; elsewhere callers get a form that every system has.

``NN_STRETCH_SYSTEM=plain`` makes any system as Windows is, so that tests reach that form.
"""

import _thread
import math
import os
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

PLAIN = os.environ.get("NN_STRETCH_SYSTEM") == "plain"

#: The module for file locks; None on systems without them.
fcntl: Any = None
#: The module for limits and times of processes; None on systems without them.
resource: Any = None
if not PLAIN:
    with suppress(ImportError):
        fcntl, resource = import_module("fcntl"), import_module("resource")

#: Whether a folder can be opened like a file.
OPENS_FOLDERS = not PLAIN and hasattr(os, "O_DIRECTORY")


def flags(*names: str) -> int:
    """Return the flags of `os.open` by name; those that the system lacks are left out, and files are never changed as text."""
    return sum(getattr(os, name, 0) for name in ("O_BINARY", *names) if not PLAIN or name in ("O_RDONLY", "O_WRONLY", "O_CREAT", "O_EXCL"))


def affinity() -> set[int] | None:
    """Return the cores that the calling thread may use; None if the system does not say."""
    return None if PLAIN or not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)


def set_affinity(cores: Collection[int], thread: int = 0) -> None:
    """Bind a thread, the calling one by default, to cores; nothing where the system cannot."""
    if not PLAIN and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, cores)


def load_average() -> float | None:
    """Return the number of processes ready to run in the last minute; None if the system does not say."""
    return None if PLAIN or not hasattr(os, "getloadavg") else os.getloadavg()[0]


def memory_bytes() -> float:
    """Return the bytes of memory that this machine has; infinite if the system does not say."""
    return math.inf if PLAIN or not hasattr(os, "sysconf") else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


#: Numbers of glibc's `mallopt`, with its values as a program starts.
_TRIM_THRESHOLD, _MMAP_MAX = (-1, 128 * 1024), (-4, 65536)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory for the next allocation instead of returning it to the system, where the C library is glibc.

    glibc returns each large tensor, and the system clears its pages again for the next one: most of the time where networks run on
    many images. Memory that is free at the end goes back.
    """
    import ctypes  # the command line starts without it

    library: Any = ctypes.CDLL(None) if sys.platform == "linux" and not PLAIN else None
    if not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_MAX[0], 0)
    library.mallopt(_TRIM_THRESHOLD[0], 2**31 - 1)
    try:
        yield
    finally:
        for number, usual in (_TRIM_THRESHOLD, _MMAP_MAX):
            library.mallopt(number, usual)
        library.malloc_trim(0)


def interrupt_main(thread: int) -> None:
    """Raise `KeyboardInterrupt` in the main thread, by its identity; where the system has no signals for threads, once it runs Python code."""
    if hasattr(signal, "pthread_kill"):  # whatever PLAIN says: without it a call that waits for a lock would wait on
        signal.pthread_kill(thread, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block, whether it ends well or not.

    Only where Ctrl-C raises `KeyboardInterrupt`: in the main thread of a program without a handler of its own.
    """
    usual = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    try:
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    except ValueError:  # another thread, where Ctrl-C raises nothing
        usual = None
    try:
        yield
    finally:
        if usual is signal.default_int_handler:
            signal.signal(signal.SIGINT, usual)
        if pressed:
            raise KeyboardInterrupt


def shared_file() -> tuple[int, str, bool]:
    """Return a file for memory that processes share: its descriptor, what others open it by, and whether it must be removed.

    It lives in memory and has no name where the system has such files, else it is a temporary one.
    """
    if PLAIN or not hasattr(os, "memfd_create"):
        return *tempfile.mkstemp(prefix="nn-stretch-"), True
    file = os.memfd_create("nn-stretch")
    return file, f"/proc/{os.getpid()}/fd/{file}", False
