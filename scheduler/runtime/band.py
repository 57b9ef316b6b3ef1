"""Subgraphs that read rows which do not lie in one piece: copied into memory of their own before each run."""

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from scheduler.delegates.base import Array, AsyncInvocation, Invocation

#: Memory that a subgraph reads, and the rows of a tensor that belong there.
Copy = tuple[Array, Array]


class _Copies:
    """Copies, and when the last of them began and ended."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self._copies = tuple(copies)
        self.start = self.end = 0

    def run(self) -> None:
        self.start = perf_counter_ns()
        for target, rows in self._copies:
            np.copyto(target, rows)
        self.end = perf_counter_ns()

    @property
    def span(self) -> tuple[str, int, int]:
        return ("rows", self.start, self.end)


class BandInvocation(Invocation):
    """Copies the rows, then runs."""

    def __init__(self, call: Invocation, copies: Sequence[Copy]) -> None:
        self._call, self._rows = call, _Copies(copies)

    def run(self) -> None:
        """Copy, then compute."""
        self._rows.run()
        self._call.run()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """The copy, then what the delegate converts."""
        return (self._rows.span, *self._call.conversions())


class AsyncBandInvocation(AsyncInvocation):
    """Copies the rows, then enqueues."""

    def __init__(self, call: AsyncInvocation, copies: Sequence[Copy]) -> None:
        self._call, self._rows = call, _Copies(copies)

    def enqueue(self) -> None:
        """Copy, then enqueue: the processor reads its buffers from then on."""
        self._rows.run()
        self._call.enqueue()

    def wait(self) -> None:
        """Wait for what was enqueued."""
        self._call.wait()

    def times(self) -> tuple[int, int] | None:
        """From the copy on."""
        found = self._call.times()
        return None if found is None else (self._rows.start, found[1])

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """The copy, then what the delegate converts."""
        return (self._rows.span, *self._call.conversions())


def with_rows(call: Invocation, copies: Sequence[Copy]) -> Invocation:
    """An invocation that first has its rows copied; itself where there is nothing to copy."""
    if not copies:
        return call
    return AsyncBandInvocation(call, copies) if isinstance(call, AsyncInvocation) else BandInvocation(call, copies)
