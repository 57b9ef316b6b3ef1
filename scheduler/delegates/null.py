"""The `null` delegate: computes nothing and takes configured times, to measure the overhead of the scheduler."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.delegates.base import Array, AsyncInvocation, Compiled, Delegate, delegates
from scheduler.formats.onnx import open_onnx


class NullInvocation(AsyncInvocation):
    """Lets `seconds` pass from `enqueue` on, like a processor with a command queue."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = 0.0

    def enqueue(self) -> None:
        """Start the clock of the configured time."""
        self._end = time.perf_counter() + self._seconds

    def wait(self) -> None:
        """Sleep until the configured time has passed since `enqueue`."""
        left = self._end - time.perf_counter()
        if left > 0:
            time.sleep(left)


class NullCompiled(Compiled):
    """A subgraph of which only shapes and time are known."""

    def __init__(self, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]], seconds: float) -> None:
        super().__init__(inputs, outputs)
        self._seconds = seconds

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> NullInvocation:
        """Check the buffers; no run writes to them."""
        self.check(inputs, outputs)
        return NullInvocation(self._seconds)


@delegates.register("null")
class NullDelegate(Delegate):
    """Computes nothing and leaves the output buffers as they are.

    Args:
        seconds: Time of every subgraph, or a time by the file's stem; a stem
            without a time takes none.
    """

    summary = "does nothing; waits for a given time (for tests)"
    computes = False

    def __init__(self, seconds: float | Mapping[str, float] = 0.0) -> None:
        self._seconds = seconds

    def compile(self, model: Path) -> NullCompiled:
        """Return the shapes of `model` with its time."""
        inputs, outputs = open_onnx(model).ends
        cost = self._seconds if isinstance(self._seconds, int | float) else self._seconds.get(model.stem, 0.0)
        return NullCompiled(inputs, outputs, float(cost))


@delegates.register("null_async")
class AsyncNullDelegate(NullDelegate):
    """`null` behind a command queue: enqueued without a thread, as a GPU is."""

    summary = "as null, enqueued without a thread of its own"
    asynchronous = True
