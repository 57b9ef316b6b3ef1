"""CPU cores of this machine, and threads pinned to them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def available_cores() -> tuple[int, ...]:
    """Cores this process may use, the first thread of each physical core before its siblings.

    Two branches on two hardware threads of one core would share its units, so
    siblings come last. Where the system does not tell, cores keep their numbers' order.
    """
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    allowed = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    first: list[int] = []
    siblings: list[int] = []
    for core in allowed:
        physical = _physical_core(core)
        (siblings if physical in seen else first).append(core)
        seen.add(physical)
    return tuple(first + siblings)


def _physical_core(core: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def pin_thread(cores: tuple[int, ...]) -> None:
    """Bind the calling thread to `cores`; nothing where `cores` is empty or the system cannot pin."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@contextmanager
def pinned(cores: tuple[int, ...]) -> Iterator[None]:
    """The calling thread bound to `cores`, given back its own set afterwards."""
    if not cores or not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
