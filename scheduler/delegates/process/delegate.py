"""The `process` delegate: another delegate in a process of its own, behind a command queue like a GPU's.

For backends whose call holds Python's lock, crashes or hangs, and as proof that a delegate need
not live in this process: buffers are memory that both have mapped, commands are lines of JSON.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array, AsyncInvocation, Compiled, Delegate, NodePlace, delegates, get_delegate
from scheduler.delegates.process.line import GoneError, Line
from scheduler.shared import can_share, describe, shared_like

#: Delegate that the child process runs unless told otherwise.
INNER = "cpu"


class ProcessInvocation(AsyncInvocation):
    """A subgraph of the child bound to memory that both processes have mapped.

    Buffers that lie in shared memory (`scheduler.shared`) are read and written by the child where they are; others are copied to
    and from memory of its own. A child that has ended is replaced. What it was computing is computed once more by the new one:
    inputs are in the shared memory as they were, and a subgraph gives the same again.

    Attributes:
        copied_bytes: What is copied for one run, in both directions.
    """

    def __init__(self, line: Line, compiled: "ProcessCompiled", inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # what it is bound to must not be dropped before it is
        self._line, self._compiled = line, compiled
        self._pending: int | None = None
        #: Of those who wait, one reads the answer: what an interrupted run left behind may still be waited for when the next begins.
        self._answered = threading.Lock()
        buffers = [*inputs, *outputs]
        copies = iter(shared_like([array for array in buffers if describe(array) is None]))
        #: What the child reads and writes, which has to stay where it is.
        self._shared = [next(copies) if describe(array) is None else array for array in buffers]
        pairs = list(zip(self._shared, buffers, strict=True))
        self._reads = [(shared, array) for shared, array in pairs[: len(inputs)] if shared is not array]
        self._writes = [(shared, array) for shared, array in pairs[len(inputs) :] if shared is not array]
        self.copied_bytes = sum(array.nbytes for _, array in (*self._reads, *self._writes))
        descriptions = [describe(array) for array in self._shared]
        self._key, _ = line.make(do="bind", compiled=compiled.key, inputs=descriptions[: len(inputs)], outputs=descriptions[len(inputs) :])
        weakref.finalize(self, line.drop, self._key)

    def enqueue(self) -> None:
        """Tell the child to run, on copies of inputs that it cannot see."""
        self._line.revive()
        for shared, array in self._reads:
            np.copyto(shared, array)
        self._pending = self._told()

    def wait(self) -> None:
        """Wait for the child, then copy outputs that it cannot write."""
        with self._answered:
            if self._pending is None:
                return
            try:
                self._answer(self._pending)
            except StretchError:
                self._pending = None
                raise
            # Not before: a wait that is interrupted is to be gone on with.
            self._pending = None
            for shared, array in self._writes:
                np.copyto(array, shared)

    def _told(self) -> int:
        try:
            return self._line.send(do="run", bound=self._key)
        except GoneError:
            self._line.revive()
            return self._line.send(do="run", bound=self._key)

    def _answer(self, number: int) -> None:
        try:
            self._line.answer(number)
        except GoneError:
            if self._line.aborted:
                raise
            self._line.revive()
            self._line.answer(self._line.send(do="run", bound=self._key))


class ProcessCompiled(Compiled):
    """A subgraph that the child has made ready."""

    def __init__(self, line: Line, key: int, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(inputs, outputs)
        self._line = line
        self.key = key
        weakref.finalize(self, line.drop, key)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> ProcessInvocation:
        """Bind it to memory shared with the child."""
        self.check(inputs, outputs)
        return ProcessInvocation(self._line, self, inputs, outputs)


@delegates.register("process")
class ProcessDelegate(Delegate):
    """Runs subgraphs with another delegate in a child process, without a thread of this one.

    Args:
        inner: Delegate that the child runs.
        cores: Cores that the child is pinned to; empty for any.

    Raises:
        UnknownNameError: If there is no such delegate.
    """

    summary = "ONNX Runtime in a process of its own, enqueued without a thread"
    precisions = ("fp32", "fp16", "int8")
    asynchronous = True
    shares = True

    def __init__(self, inner: str = INNER, cores: tuple[int, ...] = ()) -> None:
        self._inner = get_delegate(inner)
        self._line = Line(inner, cores)

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """A delegate whose child is pinned to `cores`."""
        return cls(INNER, cores)

    @classmethod
    def unavailable(cls) -> str | None:
        """What the inner delegate or the system lacks."""
        if not can_share():
            return "this system has no anonymous memory that processes share"
        return get_delegate(INNER).unavailable()

    def compile(self, model: Path) -> ProcessCompiled:
        """Have the child make a subgraph ready."""
        key, reply = self._line.make(do="compile", model=str(model.resolve()))
        inputs, outputs = ({name: tuple(shape) for name, shape in reply[what]} for what in ("inputs", "outputs"))
        return ProcessCompiled(self._line, key, inputs, outputs)

    def close(self) -> None:
        """End the child, at once."""
        self._line.end()

    def abort(self, why: str) -> bool:
        """End the child where it hangs: the call comes back with `why`, and the next one finds a new child."""
        self._line.abort(why)
        return True

    @property
    def pid(self) -> int:
        """Number of the child process there is now."""
        return self._line.pid

    @property
    def restarting(self) -> bool:
        """Whether a new child is being made ready."""
        return self._line.reviving

    def places(self, model: Path) -> list[NodePlace]:
        """As the inner delegate places them."""
        return self._inner.create(()).places(model)
