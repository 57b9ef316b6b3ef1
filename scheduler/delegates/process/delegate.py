"""The `process` delegate: another delegate in a process of its own, behind a command queue like a GPU's.

For backends whose call holds Python's lock, and as proof that a delegate need
not live in this process: buffers are shared memory, commands are lines of JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.base import Array, AsyncInvocation, Compiled, Delegate, NodePlace, delegates, get_delegate

#: Delegate that the child process runs unless told otherwise.
INNER = "cpu"


class _Child:
    """A child process and the line to it; ends with its owner.

    Args:
        inner: Delegate that it runs.
        cores: Cores that it is pinned to; empty for any.
    """

    def __init__(self, inner: str, cores: tuple[int, ...]) -> None:
        command = [sys.executable, "-m", "scheduler.delegates.process.child", inner, ",".join(map(str, cores))]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            # An interrupt at the terminal is for the parent, which then ends its children.
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, self._process)

    def send(self, **command: Any) -> None:
        """Hand a command over without waiting for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest command that has none yet.

        Raises:
            StretchError: If the command failed or the process is gone.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise StretchError(found["error"], found.get("hint"))
        return found

    def ask(self, **command: Any) -> dict[str, Any]:
        """A command and its answer."""
        self.send(**command)
        return self.answer()

    def _gone(self) -> StretchError:
        code = self._process.poll()
        return StretchError(f"the process of the delegate has ended{'' if code is None else f' with status {code}'}", "make a new Session")


def _end(process: "subprocess.Popen[bytes]") -> None:
    # It may hang in a subgraph, and has nothing to lose.
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


class ProcessInvocation(AsyncInvocation):
    """A subgraph of the child bound to shared memory, which the caller's buffers are copied to and from."""

    def __init__(self, child: _Child, compiled: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._child = child
        self._pending = False
        #: Of those who wait, one reads the answer: what an interrupted run left behind may still be waited for when the next begins.
        self._answered = threading.Lock()
        with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
            described: list[list[dict[str, Any]]] = []
            self._pairs: list[list[tuple[Array, Array]]] = []
            for what, arrays in (("in", inputs), ("out", outputs)):
                files = [Path(folder) / f"{what}{i}" for i in range(len(arrays))]
                shared = [np.memmap(file, array.dtype, "w+", shape=array.shape) for file, array in zip(files, arrays, strict=True)]
                self._pairs.append(list(zip(shared, arrays, strict=True)))
                described.append([{"file": str(f), "shape": a.shape, "dtype": a.dtype.str} for f, a in zip(files, arrays, strict=True)])
            # Once both processes have mapped the files, their names are not needed any more.
            self._number = child.ask(do="bind", compiled=compiled, inputs=described[0], outputs=described[1])["number"]

    def enqueue(self) -> None:
        """Copy the inputs and tell the child to run."""
        for shared, array in self._pairs[0]:
            np.copyto(shared, array)
        self._child.send(do="run", number=self._number)
        self._pending = True

    def wait(self) -> None:
        """Wait for the child, then copy the outputs."""
        with self._answered:
            if not self._pending:
                return
            try:
                self._child.answer()
            except StretchError:
                self._pending = False
                raise
            # Not before: a wait that is interrupted is to be gone on with.
            self._pending = False
            for shared, array in self._pairs[1]:
                np.copyto(array, shared)


def _memory_folder() -> str | None:
    """A folder whose files are memory, where the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class ProcessCompiled(Compiled):
    """A subgraph that the child has made ready."""

    def __init__(self, child: _Child, number: int, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(inputs, outputs)
        self._child = child
        self._number = number

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> ProcessInvocation:
        """Bind it to memory shared with the child."""
        self.check(inputs, outputs)
        return ProcessInvocation(self._child, self._number, inputs, outputs)


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

    def __init__(self, inner: str = INNER, cores: tuple[int, ...] = ()) -> None:
        self._inner = get_delegate(inner)
        self._child = _Child(inner, cores)

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """A delegate whose child is pinned to `cores`."""
        return cls(INNER, cores)

    @classmethod
    def unavailable(cls) -> str | None:
        """What the inner delegate lacks."""
        return get_delegate(INNER).unavailable()

    def compile(self, model: Path) -> ProcessCompiled:
        """Have the child make a subgraph ready."""
        found = self._child.ask(do="compile", model=str(model.resolve()))
        inputs, outputs = ({name: tuple(shape) for name, shape in found[what]} for what in ("inputs", "outputs"))
        return ProcessCompiled(self._child, found["number"], inputs, outputs)

    def close(self) -> None:
        """End the child, at once."""
        self._child.end()

    def places(self, model: Path) -> list[NodePlace]:
        """As the inner delegate places them."""
        return self._inner.create(()).places(model)
