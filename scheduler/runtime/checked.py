"""Results of a delegate that cannot be right: numbers that are none, and those that another delegate does not come to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.delegates.base import Array, AsyncInvocation, Invocation, UnableError
from scheduler.faults.policy import FaultPolicy
from scheduler.runtime.distance import distance

#: Computes a subgraph's outputs from the same inputs by another delegate, whose name comes with them; None if there is no other.
Other = Callable[[], tuple[str, Sequence[Array]] | None]


@dataclass
class Check:
    """Looks at what a subgraph wrote, after each run."""

    outputs: Sequence[Array]  # Its output buffers.
    other: Other  # Computes them by another delegate.
    precision: str  # Of the subgraph.
    allowed: Sequence[float]  # How far each output may be from the other delegate's (`scheduler.runtime.distance.allowed`).
    policy: FaultPolicy  # What is looked at.
    runs: int = 0

    def __call__(self) -> None:
        """Look."""
        self.runs += 1
        spot = self.policy.spot_every > 0 and self.runs % self.policy.spot_every == 0
        if not spot and (not self.policy.finite or all(map(_finite, self.outputs))):
            return
        with np.errstate(all="ignore"):  # numbers may be any
            found = self.other()
        if found is None:
            return
        name, expected = found
        for got, want, allowed in zip(self.outputs, expected, self.allowed, strict=True):
            if not _finite(want):
                continue  # the network itself has no number there
            if not _finite(got):
                raise UnableError(f"it gave NaN or infinity where the delegate `{name}` gives numbers")
            error = distance(got, want, self.precision)
            if not error <= allowed:
                raise UnableError(
                    f"its result is off by {error:.2g} from that of the delegate `{name}`, {allowed:g} is allowed in {self.precision}"
                )


class CheckedInvocation(Invocation):
    """Runs, then looks at the outputs."""

    def __init__(self, call: Invocation, check: Check) -> None:
        self._call, self._check = call, check

    def run(self) -> None:
        """Compute, then look."""
        self._call.run()
        self._check()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """As the delegate converts."""
        return self._call.conversions()


class AsyncCheckedInvocation(AsyncInvocation):
    """Waits, then looks at the outputs."""

    def __init__(self, call: AsyncInvocation, check: Check) -> None:
        self._call, self._check = call, check

    def enqueue(self) -> None:
        """As the delegate enqueues."""
        self._call.enqueue()

    def wait(self) -> None:
        """Wait, then look."""
        self._call.wait()
        self._check()

    def times(self) -> tuple[int, int] | None:
        """As the delegate tells."""
        return self._call.times()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """As the delegate converts."""
        return self._call.conversions()


def checked(call: Invocation, check: Check) -> Invocation:
    """An invocation whose outputs are looked at after each run."""
    return AsyncCheckedInvocation(call, check) if isinstance(call, AsyncInvocation) else CheckedInvocation(call, check)


def _finite(array: Array) -> bool:
    """Whether all numbers are finite; a sum in double precision is not, where one of them is not."""
    return bool(np.isfinite(array.sum(dtype=np.float64)))
