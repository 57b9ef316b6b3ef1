"""What only some operating systems have, in one place; where it is missing, callers get a form that every system has.

``NN_STRETCH_SYSTEM=plain`` makes any system as Windows is, so that tests reach that form.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from typing import Any

PLAIN = os.environ.get("NN_STRETCH_SYSTEM") == "plain"

#: Locks of files; None where there are none.
fcntl: Any = None
#: Limits and times of processes; None where there are none.
resource: Any = None
if not PLAIN:
    with suppress(ImportError):
        fcntl, resource = import_module("fcntl"), import_module("resource")

#: Whether a process can become two, a folder be opened as a file is, and memory without a name be shared by processes.
FORKS = not PLAIN and hasattr(os, "fork")
OPENS_FOLDERS = not PLAIN and hasattr(os, "O_DIRECTORY")
SHARES = not PLAIN and hasattr(os, "memfd_create")


def flags(*names: str) -> int:
    """Flags of `os.open` by name; those that the system lacks are left out, and files are never changed as text."""
    return sum(getattr(os, name, 0) for name in ("O_BINARY", *names) if not PLAIN or name in ("O_RDONLY", "O_WRONLY", "O_CREAT", "O_EXCL"))


def affinity() -> set[int] | None:
    """Cores that the calling thread may use; None where the system does not tell."""
    return None if PLAIN or not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)


def set_affinity(cores: Collection[int], thread: int = 0) -> None:
    """Bind a thread, the calling one by default, to cores; nothing where the system cannot."""
    if not PLAIN and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, cores)


def load_average() -> float | None:
    """Processes that wanted to run in the last minute; None where the system does not tell."""
    return None if PLAIN or not hasattr(os, "getloadavg") else os.getloadavg()[0]


def anonymous_memory(name: str) -> int:
    """A file without a name that lives in memory, where there are such (`SHARES`)."""
    return os.memfd_create(name)
