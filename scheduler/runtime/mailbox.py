"""What one thread hands to another: who waits for it sleeps first, and watches memory when it is due.

Waking a sleeping core costs more than everything else about a hand-off. Steps take about as long each time, so a thread knows
when the next item is due: it sleeps until shortly before, and spins (`scheduler.runtime.mailbox`) from then on, for a few hundred
microseconds at most. What comes at no certain time, or does not come any more, is waited for asleep.
"""

import ctypes
import functools
from collections import deque
from collections.abc import Hashable
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

# Watches a byte of memory for a while without Python's lock: quicker than sleep, and whoever writes it is not held up.
#
# A loop in Python would hold the lock most of the time, and whoever ends a step would wait for it. The C library's linear
# search (`lfind`) can be that loop: with elements of no size it looks at the same place again and again, and its comparison is
# `strcmp`, another function of the C library. ctypes lets go of Python's lock while it runs. It ends when the texts are equal or
# after as many looks as were asked for, so nothing has to be compiled and nothing can spin for ever.

#: Looks from which the length of one is measured.
_TRIED = 10_000


class Word:
    """A byte that one thread watches and others set."""

    __slots__ = ("_at", "_bytes", "_looks", "_search", "_wanted")

    def __init__(self) -> None:
        # text of one character or none, which `strcmp` takes for equal to the wanted one or not
        self._bytes = bytearray(2)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        self._wanted = ctypes.create_string_buffer(b"\1")
        self._looks = ctypes.c_size_t()
        self._search = _search()

    def set(self) -> None:
        """End the watching, now or when it begins."""
        self._bytes[0] = 1

    def clear(self) -> None:
        """What was set before does not count."""
        self._bytes[0] = 0

    def watch(self, ns: float) -> bool:
        """Return when the byte is set, or after `ns` nanoseconds or so; at once where this system cannot."""
        if self._search is None or self._bytes[0]:
            return bool(self._bytes[0])
        search, compare = self._search
        now = perf_counter_ns()
        end = now + ns
        # a core may be slower or quicker than when a look was measured
        while now < end and not self._bytes[0]:
            self._looks.value = max(1, int((end - now) / look_ns()))
            search(self._wanted, self._at, self._looks, 0, compare)
            now = perf_counter_ns()
        return bool(self._bytes[0])


@functools.cache
def look_ns() -> float:
    """Nanoseconds that a look takes, measured once; infinite where this system cannot watch memory so."""
    found = _search()
    if found is None:
        return float("inf")
    search, compare = found
    never, wanted, looks = ctypes.create_string_buffer(2), ctypes.create_string_buffer(b"\1"), ctypes.c_size_t(_TRIED)
    best = float("inf")
    for _ in range(5):
        start = perf_counter_ns()
        search(wanted, ctypes.addressof(never), looks, 0, compare)
        best = min(best, perf_counter_ns() - start)
    return max(best / _TRIED, 0.1)


@functools.cache
def _search() -> tuple[Any, ctypes.c_void_p] | None:
    """`lfind` and the address of `strcmp`; None where the system has none."""
    try:
        library = ctypes.CDLL(None)
        search = library.lfind
        compare = ctypes.cast(library.strcmp, ctypes.c_void_p)
    except (OSError, TypeError, AttributeError):
        return None
    search.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t, ctypes.c_void_p]
    search.restype = ctypes.c_void_p
    return search, compare


T = TypeVar("T")

#: Nanoseconds that a thread spins at most before it sleeps.
SPIN_NS = 500_000

#: Nanoseconds by which a sleep that has an end is cut short: so long a core may take to wake up from it.
WAKE_NS = 150_000

#: Nanoseconds of a wait of which what waking costs is no part worth saving.
LONG_NS = 200_000_000

#: Waits that are remembered, and how many of them must be known before anything is expected of the next.
KEPT, LEAST = 8, 3

#: Waits are remembered after so many different things.
_KINDS = 4096


class Expectation:
    """How long a wait takes, from the last ones: as long as all of them but the shortest and the longest."""

    __slots__ = ("_last", "advice")

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=KEPT)
        #: How long to sleep, and how long to spin after that, both in ns; nothing of both where it cannot be told when the wait ends.
        self.advice = (0, 0)

    def add(self, ns: int) -> None:
        """Another wait, ns."""
        self._last.append(ns)
        self.advice = self._advice()

    def _advice(self) -> tuple[int, int]:
        known = sorted(self._last)
        if len(known) < LEAST:
            return 0, 0
        early, late = known[1], known[-2]
        if late - early > SPIN_NS or late > LONG_NS:
            return 0, 0
        rest = early - WAKE_NS
        if rest < WAKE_NS:
            rest = 0
        spin = late + WAKE_NS - rest
        return (rest, min(spin, SPIN_NS)) if rest or late < SPIN_NS else (0, 0)


class Mailbox(Generic[T]):
    """Items in order, put there by any thread and taken by one.

    Args:
        spins: Whether who waits may spin: not where its core is another thread's as well.
    """

    def __init__(self, *, spins: bool = False) -> None:
        self.spins = spins
        self._items: SimpleQueue[T] = SimpleQueue()
        self._word = Word()
        self._expected: dict[Hashable, Expectation] = {}
        #: Of the last waits: what they came after and how long they were, looked at when there is time.
        self._waits: deque[tuple[Hashable, int]] = deque(maxlen=KEPT)

    def put(self, item: T) -> None:
        """Add an item; returns at once."""
        self._items.put(item)
        self._word.set()

    def get(self, after: Hashable = None, timeout: float | None = None) -> T:
        """The next item, once there is one.

        Args:
            after: What came before the wait; waits after the same take about the same time.
            timeout: Seconds to wait at most, those aside in which it is due; None for any time.
        """
        items = self._items
        if not self.spins:
            return items.get(timeout=timeout)
        self._word.clear()
        if items.qsize():  # asked after the clear: what is put from now on sets it again
            return items.get()
        expected = self._expected.get(after)
        rest, spin = (0, 0) if expected is None else expected.advice
        begun = perf_counter_ns()
        try:
            found = self._due(rest, spin)
        except Empty:
            found = items.get(timeout=timeout)
        self._waits.append((after, perf_counter_ns() - begun))
        return found

    def get_nowait(self) -> T:
        """The next item that is there already."""
        return self._items.get_nowait()

    def qsize(self) -> int:
        """Number of items that wait to be taken."""
        return self._items.qsize()

    def _learn(self) -> None:
        """Take the last waits into account."""
        expected = self._expected
        for after, ns in self._waits:
            if after not in expected:
                if len(expected) >= _KINDS:
                    expected.clear()
                expected[after] = Expectation()
            expected[after].add(ns)
        self._waits.clear()

    def _due(self, rest: int, spin: int) -> T:
        """The next item if it comes when it is due."""
        if rest:
            try:
                return self._items.get(timeout=rest / 1e9)
            except Empty:
                self._learn()
        else:
            self._learn()
        if spin:
            self._word.watch(spin)
        return self._items.get_nowait()
