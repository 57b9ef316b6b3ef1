"""Functions that only some operating systems have; on other systems callers get a replacement that works everywhere.

``NN_STRETCH_SYSTEM=plain`` makes any system behave like Windows, so that tests reach the replacements.
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
    """Return the flags of `os.open` by name; flags that the system lacks are left out, and files are always binary."""
    return sum(getattr(os, name, 0) for name in ("O_BINARY", *names) if not PLAIN or name in ("O_RDONLY", "O_WRONLY", "O_CREAT", "O_EXCL"))


def affinity() -> set[int] | None:
    """Return the cores that the calling thread may use; None if the system does not report them."""
    return None if PLAIN or not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)


def set_affinity(cores: Collection[int], thread: int = 0) -> None:
    """Bind a thread, by default the calling one, to cores; do nothing if the system cannot."""
    if not PLAIN and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, cores)


def load_average() -> float | None:
    """Return the number of runnable processes in the last minute; None if the system does not report it."""
    return None if PLAIN or not hasattr(os, "getloadavg") else os.getloadavg()[0]


def memory_bytes() -> float:
    """Return the memory of this machine in bytes; infinite if the system does not report it."""
    return math.inf if PLAIN or not hasattr(os, "sysconf") else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


#: Numbers of glibc's `mallopt`, with the default values.
_TRIM_THRESHOLD, _MMAP_MAX = (-1, 128 * 1024), (-4, 65536)


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory for the next allocation instead of returning it to the system, if the C library is glibc.

    glibc returns each large tensor to the system, which clears its pages again for the next one; this takes most of the time of
    networks that run on many images. Memory that is free at the end is returned.
    """
    import ctypes  # imported here, because the command line starts without it

    library: Any = ctypes.CDLL(None) if sys.platform == "linux" and not PLAIN else None
    if not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_MAX[0], 0)
    library.mallopt(_TRIM_THRESHOLD[0], 2**31 - 1)
    try:
        yield
    finally:
        for number, default in (_TRIM_THRESHOLD, _MMAP_MAX):
            library.mallopt(number, default)
        library.malloc_trim(0)


def interrupt_main(thread: int) -> None:
    """Raise `KeyboardInterrupt` in the main thread, given by its identity; without thread signals, as soon as it runs Python code."""
    if hasattr(signal, "pthread_kill"):  # even if PLAIN is set, because a call that waits for a lock would otherwise continue to wait
        signal.pthread_kill(thread, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, whether the block succeeds or fails.

    This works only where Ctrl-C raises `KeyboardInterrupt`: in the main thread of a program without its own handler.
    """
    handler = signal.getsignal(signal.SIGINT)
    interrupts: list[int] = []
    try:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    except ValueError:  # another thread, in which Ctrl-C raises nothing
        handler = None
    try:
        yield
    finally:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        if interrupts:
            raise KeyboardInterrupt


def shared_file() -> tuple[int, str, bool]:
    """Return a file for memory shared by processes: its descriptor, the path that others open, and whether it must be removed.

    The file is in memory and has no name if the system supports it, else it is a temporary file.
    """
    if PLAIN or not hasattr(os, "memfd_create"):
        return *tempfile.mkstemp(prefix="nn-stretch-"), True
    file = os.memfd_create("nn-stretch")
    return file, f"/proc/{os.getpid()}/fd/{file}", False
