"""What one thread hands to another: who waits for it sleeps first, and watches memory when it is due.

Waking a sleeping core costs more than everything else about a hand-off. Steps take about as long each time, so a thread knows
when the next item is due: it sleeps until shortly before, and spins (`scheduler.runtime.spin`) from then on, for a few hundred
microseconds at most. What comes at no certain time, or does not come any more, is waited for asleep.
"""

from collections import deque
from collections.abc import Hashable
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Generic, TypeVar

from scheduler.runtime.spin import Word

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
