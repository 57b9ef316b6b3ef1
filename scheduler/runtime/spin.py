"""Watches a byte of memory for a while without Python's lock: quicker than sleep, and whoever writes it is not held up.

A loop in Python would hold the lock most of the time, and whoever ends a step would wait for it. The C library's linear
search (`lfind`) can be that loop: with elements of no size it looks at the same place again and again, and its comparison is
`strcmp`, another function of the C library. ctypes lets go of Python's lock while it runs. It ends when the texts are equal or
after as many looks as were asked for, so nothing has to be compiled and nothing can spin for ever.
"""

import ctypes
import functools
from time import perf_counter_ns
from typing import Any

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
