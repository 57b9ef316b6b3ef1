"""A subgraph that the OpenCL kernels do not compute, on a CPU core in its place, behind the same asynchronous interface."""

from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from scheduler.delegates.base import Array, AsyncInvocation, Compiled, Invocation, get_delegate
from scheduler.runtime.workers import Completion, Worker


class FallbackInvocation(AsyncInvocation):
    """An invocation of the `cpu` delegate on a thread of its own, created once."""

    def __init__(self, call: Invocation, cores: tuple[int, ...]) -> None:
        self._completions: SimpleQueue[Completion] = SimpleQueue()
        self._worker = Worker("opencl fallback", cores[:1], self._completions)
        self._submit = self._worker.submitter("run", call.run)
        self._pending = False
        self._times: tuple[int, int] | None = None

    def enqueue(self) -> None:
        """Hand the subgraph to the thread; returns at once."""
        self._pending = True
        self._submit()

    def wait(self) -> None:
        """Return when the thread is done.

        Raises:
            Exception: Whatever the delegate raised.
        """
        if not self._pending:
            return
        self._pending = False
        _, error, start, end = self._completions.get()
        self._times = (start, end)
        if error is not None:
            raise error

    def times(self) -> tuple[int, int] | None:
        """When the thread took up the last run and when it was done."""
        return self._times


class FallbackCompiled(Compiled):
    """A subgraph compiled by the `cpu` delegate.

    Args:
        model: Its ONNX file.
        cores: Cores that it uses.
        reason: Why the OpenCL kernels do not compute it.
    """

    def __init__(self, model: Path, cores: tuple[int, ...], reason: str) -> None:
        self._compiled = get_delegate("cpu").create(cores).compile(model)
        self._cores = cores
        self.reason = reason
        super().__init__(self._compiled.inputs, self._compiled.outputs)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> FallbackInvocation:
        """Tie it to buffers."""
        return FallbackInvocation(self._compiled.bind(inputs, outputs), self._cores)
