"""The `process` delegate: another delegate in a child process, behind a command queue like a GPU's.

It is meant for backends whose call holds Python's lock, crashes or hangs, and proves that a delegate need
not be in this process: both processes map the buffers, and commands are lines of JSON.
"""

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from predictors.errors import StretchError
from predictors.system import deferred_interrupts
from scheduler.cores import pin_thread
from scheduler.delegates.base import (
    Allocate,
    Array,
    AsyncInvocation,
    Compiled,
    Delegate,
    Invocation,
    NodePlacement,
    delegates,
    get_delegate,
)
from scheduler.shared import describe, open_array, shared_bytes, shared_like


class Server:
    """The child's side: reads commands from stdin, one line of JSON per command, and answers on stdout.

    Args:
        inner: Name of the delegate that computes.
        cores: Cores that it uses; empty for any.
    """

    def __init__(self, inner: str, cores: tuple[int, ...]) -> None:
        self._delegate = get_delegate(inner).create(cores)
        self._compiled: dict[int, Compiled] = {}
        self._bound: dict[int, Invocation] = {}

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute one command and return its answer."""
        for key in command.get("drop", ()):
            self._compiled.pop(key, None)
            self._bound.pop(key, None)
        match command["do"]:
            case "compile":
                compiled = self._delegate.compile(Path(command["model"]))
                self._compiled[command["key"]] = compiled
                return {"inputs": list(compiled.inputs.items()), "outputs": list(compiled.outputs.items())}
            case "bind":
                inputs, outputs = ([open_array(description) for description in command[key]] for key in ("inputs", "outputs"))
                self._bound[command["key"]] = self._compiled[command["compiled"]].bind(inputs, outputs)
                return {}
            case "run":
                self._bound[command["bound"]].run()
                return {}
        raise StretchError(f"the child process does not know the command `{command['do']}`")


def serve(server: Server, commands: BinaryIO, answers: BinaryIO) -> None:
    """Answer each command in order until the input ends; a failure is an answer, too."""
    for line in commands:
        command = json.loads(line)
        try:
            answer = server.handle(command)
        except StretchError as error:
            answer = {"error": error.message, "hint": error.hint}
        except Exception as error:  # the parent raises it in the call that sent the command
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({**answer, "number": command["number"]}).encode() + b"\n")
        answers.flush()


def child(inner: str, cores: str) -> None:
    """Serve the parent process with a delegate on the comma-separated `cores`."""
    chosen = tuple(int(core) for core in cores.split(",") if core)
    # Libraries may print, but only answers belong on the line to the parent.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pin_thread(chosen[:1])
    serve(Server(inner, chosen), sys.stdin.buffer, answers)


#: Code that the child process executes.
_START = "import sys; from scheduler.delegates.process import child; child(*sys.argv[1:])"

#: Commands that create an object in the child; a new child gets them again.
_CREATING = ("compile", "bind")

#: Seconds in which a new child may repeat the commands of its predecessor.
START_S = 120.0


class ChildEndedError(StretchError):
    """The child process has ended, and all its objects are lost."""


class ChildProcess:
    """A child process that ends with this object and is replaced if it ends by itself.

    Args:
        inner: Delegate that the child runs.
        cores: Cores that the child is pinned to; empty for any.
    """

    def __init__(self, inner: str, cores: tuple[int, ...]) -> None:
        self._command = [sys.executable, "-c", _START, inner, ",".join(map(str, cores))]
        self._sending, self._reading = threading.Lock(), threading.RLock()
        self._last_number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        #: Commands that created the child's objects still in use, by key, in order.
        self._created: dict[int, dict[str, Any]] = {}
        self._keys = count()
        #: Keys of the child's objects that are no longer used.
        self._dropped: list[int] = []
        #: Reason why this process ended the child, or None.
        self._aborted: str | None = None
        #: Whether a new child is starting.
        self.restarting = False
        self._ended = False
        self._process, self._end = self._start()

    def _start(self) -> tuple["subprocess.Popen[bytes]", "weakref.finalize[Any, ChildProcess]"]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        # an interrupt between start and registration would leave a child that outlives the parent
        with deferred_interrupts():
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                # An interrupt at the terminal is for the parent, which ends its children.
                start_new_session=True,
            )
            return process, weakref.finalize(self, _end, process)

    def end(self) -> None:
        """End the child process at once."""
        self._ended = True
        self._end()

    def abort(self, reason: str) -> None:
        """End the child from another thread: pending calls fail with the reason, and the next command starts a new child."""
        self._aborted = reason
        with suppress(OSError):
            self._process.kill()

    @property
    def pid(self) -> int:
        """Process number of the child."""
        return self._process.pid

    @property
    def aborted(self) -> bool:
        """Whether this process ended the child and has not started another since."""
        return self._aborted is not None

    def ensure_running(self) -> None:
        """Start a new child if the old one has ended, and create all its objects again."""
        if self._alive():
            return  # a thread that waits for an answer holds the lock
        with self._reading:
            if self._alive():
                return
            if self._ended:
                raise ChildEndedError("the delegate was closed")
            self.restarting = True
            try:
                self._end()
                self._aborted, self._answers, self._dropped = None, {}, []
                self._process, self._end = self._start()
                timer = threading.Timer(START_S, self._process.kill)
                timer.daemon = True
                timer.start()
                try:
                    for command in list(self._created.values()):
                        self.answer(self.send(**command))
                except BaseException:
                    # the child would lack objects that others use: the next command starts another child
                    self._process.kill()
                    self._process.wait()
                    raise
                finally:
                    timer.cancel()
            finally:
                self.restarting = False

    def _alive(self) -> bool:
        return self._process.poll() is None and self._aborted is None

    def send(self, **command: Any) -> int:
        """Send a command without waiting for its answer, and return its number."""
        with self._sending:
            self._last_number += 1
            number = self._last_number
            dropped, self._dropped = self._dropped, []
            if dropped:
                command["drop"] = dropped
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({**command, "number": number}).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise self._ended_error() from error
        return number

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the answer to a command and return it."""
        with self._reading:
            while number not in self._answers:
                assert self._process.stdout is not None
                try:
                    line = self._process.stdout.readline()
                except ValueError as error:  # closed meanwhile
                    raise self._ended_error() from error
                if not line.endswith(b"\n"):
                    raise self._ended_error()
                reply: dict[str, Any] = json.loads(line)
                self._answers[reply.pop("number")] = reply
            reply = self._answers.pop(number)
        if "error" in reply:
            raise StretchError(reply["error"], reply.get("hint"))
        return reply

    def create(self, **command: Any) -> tuple[int, dict[str, Any]]:
        """Create an object in the child, and in each later child until the object is dropped."""
        assert command["do"] in _CREATING
        command["key"] = next(self._keys)
        self.ensure_running()
        try:
            reply = self.answer(self.send(**command))
        except ChildEndedError:
            # the child may have ended a moment ago, unnoticed
            self.ensure_running()
            reply = self.answer(self.send(**command))
        self._created[command["key"]] = command
        return command["key"], reply

    def compile(self, model: Path) -> "ProcessCompiled":
        """Let the child compile the subgraph in a file."""
        key, reply = self.create(do="compile", model=str(model.resolve()))
        inputs, outputs = ({name: tuple(shape) for name, shape in reply[key]} for key in ("inputs", "outputs"))
        return ProcessCompiled(self, key, inputs, outputs)

    def drop(self, key: int) -> None:
        """Remove an unused object from the child, with the next command."""
        # called by the garbage collector, possibly while a lock is held: hence sent with the next command
        if self._created.pop(key, None) is not None:
            self._dropped.append(key)

    def _ended_error(self) -> ChildEndedError:
        if self._aborted is not None:
            return ChildEndedError(self._aborted)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.poll()
        return ChildEndedError(f"the process of the delegate has ended{'' if code is None else f' with status {code}'}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    # The child may hang in a subgraph, and keeps no state worth saving.
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


#: Delegate that the child process runs by default.
INNER = "cpu"


class ProcessInvocation(AsyncInvocation):
    """A subgraph of the child, bound to memory that both processes have mapped.

    The child reads and writes buffers in shared memory (`scheduler.shared`) directly; other buffers are copied to
    and from shared memory. A child that has ended is replaced. The new child repeats the interrupted computation:
    the inputs in shared memory are unchanged, and a subgraph gives the same result again.
    """

    def __init__(self, child: ChildProcess, compiled: "ProcessCompiled", inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # the compiled subgraph must not be dropped before this invocation
        self._child, self._compiled = child, compiled
        self._pending: int | None = None
        #: Held by the thread that reads the answer: a wait of an interrupted run may last until the next run begins.
        self._answer_lock = threading.Lock()
        buffers = [*inputs, *outputs]
        copies = iter(shared_like([array for array in buffers if describe(array) is None]))
        #: Arrays that the child reads and writes, and that must stay in place.
        self._shared = [next(copies) if describe(array) is None else array for array in buffers]
        pairs = list(zip(self._shared, buffers, strict=True))
        self._reads = [(shared, array) for shared, array in pairs[: len(inputs)] if shared is not array]
        self._writes = [(shared, array) for shared, array in pairs[len(inputs) :] if shared is not array]
        descriptions = [describe(array) for array in self._shared]
        self._key, _ = child.create(
            do="bind", compiled=compiled.key, inputs=descriptions[: len(inputs)], outputs=descriptions[len(inputs) :]
        )
        weakref.finalize(self, child.drop, self._key)

    def enqueue(self) -> None:
        """Copy the inputs that the child cannot map, and send it the command to run."""
        self._child.ensure_running()
        for shared, array in self._reads:
            np.copyto(shared, array)
        self._pending = self._send_run()

    def wait(self) -> None:
        """Wait for the child, then copy the outputs that it cannot map."""
        with self._answer_lock:
            if self._pending is None:
                return
            try:
                self._await_answer(self._pending)
            except StretchError:
                self._pending = None
                raise
            # Cleared only now, because an interrupted wait is resumed.
            self._pending = None
            for shared, array in self._writes:
                np.copyto(array, shared)

    def _send_run(self) -> int:
        try:
            return self._child.send(do="run", bound=self._key)
        except ChildEndedError:
            self._child.ensure_running()
            return self._child.send(do="run", bound=self._key)

    def _await_answer(self, number: int) -> None:
        try:
            self._child.answer(number)
        except ChildEndedError:
            if self._child.aborted:
                raise
            self._child.ensure_running()
            self._child.answer(self._child.send(do="run", bound=self._key))


class ProcessCompiled(Compiled):
    """A subgraph that the child has compiled."""

    def __init__(
        self, child: ChildProcess, key: int, inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[int, ...]]
    ) -> None:
        super().__init__(inputs, outputs)
        self._child = child
        self.key = key
        weakref.finalize(self, child.drop, key)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> ProcessInvocation:
        """Bind the subgraph to memory shared with the child."""
        self.check(inputs, outputs)
        return ProcessInvocation(self._child, self, inputs, outputs)


class ChildDelegate(Delegate):
    """A delegate that computes in a child process."""

    asynchronous = True
    _child: ChildProcess | None = None  # None until the first subgraph is compiled.

    def allocator(self) -> Allocate:
        """Return an allocator of memory that the child can map, which saves a copy."""
        return shared_bytes

    def close(self) -> None:
        """End the child process at once."""
        if self._child is not None:
            self._child.end()

    def abort(self, reason: str) -> bool:
        """End the child if it hangs: the call fails with `reason`, and the next call starts a new child."""
        if self._child is not None:
            self._child.abort(reason)
        return self._child is not None

    @property
    def restarting(self) -> bool:
        """Whether a new child is starting."""
        return self._child is not None and self._child.restarting


@delegates.register("process")
class ProcessDelegate(ChildDelegate):
    """Runs subgraphs with another delegate in a child process, without a thread of this one.

    Args:
        inner: Delegate that the child runs.
        cores: Cores that the child is pinned to; empty for any.

    Raises:
        UnknownNameError: If there is no such delegate.
    """

    summary = "ONNX Runtime in a process of its own, enqueued without a thread"
    precisions = ("fp32", "fp16", "int8")

    def __init__(self, inner: str = INNER, cores: tuple[int, ...] = ()) -> None:
        self._inner = get_delegate(inner)
        self._child: ChildProcess = ChildProcess(inner, cores)

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """Return a delegate with a child pinned to `cores`."""
        return cls(INNER, cores)

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason why the inner delegate is unavailable."""
        return get_delegate(INNER).unavailable()

    def compile(self, model: Path) -> ProcessCompiled:
        """Let the child compile a subgraph."""
        return self._child.compile(model)

    @property
    def pid(self) -> int:
        """Process number of the current child."""
        return self._child.pid

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return the placements of the inner delegate."""
        return self._inner.create(()).node_placements(model)
