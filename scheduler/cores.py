"""CPU cores of this machine, and threads pinned to them."""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from predictors import system


def available_cores() -> tuple[int, ...]:
    """Return the cores that this process may use, with the first thread of each physical core before its siblings.

    Two branches on two hardware threads of one core would share its units, so
    siblings come last. If the system does not report them, cores are in the order of their numbers.
    """
    allowed = system.affinity()
    if allowed is None:
        return tuple(range(os.cpu_count() or 1))
    seen: set[str] = set()
    first: list[int] = []
    siblings: list[int] = []
    for core in sorted(allowed):
        physical = _physical_core(core)
        (siblings if physical in seen else first).append(core)
        seen.add(physical)
    return tuple(first + siblings)


def _physical_core(core: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def little_core(known: Sequence[int] = (), folder: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return a core for a thread that only waits for another processor (paper 003, section 6.2), or None.

    It is the least capable core that this process may use, if the system reports
    different capacities; else the first core in `known` on a machine with Arm cores.

    Args:
        known: Little cores of the device's profile.
    """
    able: dict[int, int] = {}
    for core in available_cores():
        with suppress(OSError, ValueError):
            able[core] = int((folder / f"cpu{core}" / "cpu_capacity").read_text())
    if len(set(able.values())) > 1:
        return min(able, key=lambda core: (able[core], core))
    if platform.machine() == "aarch64":
        return next((core for core in known if core in available_cores()), None)
    return None


def pin_thread(cores: tuple[int, ...]) -> None:
    """Bind the calling thread to `cores`; do nothing if `cores` is empty or the system cannot pin threads."""
    if cores:
        system.set_affinity(cores)


@contextmanager
def pinned(cores: tuple[int, ...]) -> Iterator[None]:
    """Pin the calling thread to `cores` during the block, and restore its own set of cores afterwards."""
    before = system.affinity()
    if not cores or before is None:
        yield
        return
    system.set_affinity(cores)
    try:
        yield
    finally:
        system.set_affinity(before)


@cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of this machine's CPU, by Linux's names; empty on other systems."""
    with suppress(OSError):
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return frozenset(match[1].split()) if match else frozenset()
    return frozenset()
