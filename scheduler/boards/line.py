"""The line to an agent: requests and answers over a program's stdin and stdout, whatever program carries them."""

import contextlib
import hashlib
import json
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files
from types import TracebackType
from typing import IO, Any, Self

from predictors.errors import StretchError
from scheduler.boards.agent import CHUNK, MARK

#: Python there: of the same series as here, else whatever is called so, to be told of. Single quotes hold in every shell of a
#: login, so nothing in them is a single quote, a backslash, an exclamation mark or a new line.
BOOT = (
    "for name in {names}; do python=$(command -v $name) && "
    'exec "$python" -u -c "import sys; sys.version_info < (3, 7) and sys.exit({old}); sys.path[:] = filter(None, sys.path); '
    'exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))); main(sys.argv[1])" "$python"; '
    "done; exit {missing}"
)

#: Exit codes of `BOOT` where there is no Python, and where it is older than the agent understands.
NO_PYTHON, OLD_PYTHON = 97, 96

#: What a login may print before the agent speaks, bytes.
_MAX_GREETING = 1 << 16

#: Longest line of an agent: the answer of a verb is in it.
_MAX_LINE = 256 << 20

#: Seconds in which the program ends once nothing is asked of it any more, and where it was interrupted.
_END_S, _INTERRUPTED_S = 10.0, 0.2


class LostError(Exception):
    """The program ended before it had answered.

    Args:
        greeting: What came instead of an agent; None if one had answered.
    """

    def __init__(self, code: int, output: str, greeting: str | None) -> None:
        super().__init__(output)
        self.code = code
        self.stderr = output
        self.greeting = greeting


class RefusedError(Exception):
    """The agent could not do what it was asked for.

    Args:
        name: Of the error, such as ``ENOSPC``.
    """

    def __init__(self, reason: str, name: str, file: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.name = name
        self.file = file


def boot(names: Sequence[str]) -> str:
    """What a shell there runs, as one argument of ssh."""
    return f"sh -c '{BOOT.format(names=' '.join(names), missing=NO_PYTHON, old=OLD_PYTHON)}'"


class Line:
    """An agent, asked one thing after the other; it ends, and all that it runs, when this is closed.

    Args:
        command: Starts a shell's `boot`, with its stdin and stdout.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # a file, because a connection that ssh shares may keep a pipe open for longer than ssh lives
        self._told: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed with the line
        # Ctrl-C is ours to hear: it would end ssh before the other end has heard of it
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._told, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._ended: LostError | None = None
        try:
            #: What the agent says of its machine.
            self.facts: object = self._start()
        except BaseException:
            self.close(_INTERRUPTED_S)
            raise

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it; without waiting for long where it was interrupted."""
        self.close(_END_S if kind is None or issubclass(kind, StretchError) else _INTERRUPTED_S)

    def close(self, grace_s: float = _END_S) -> None:
        """Let the agent end; it goes on with that by itself where the program is killed."""
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._told.close()

    def ask(
        self, do: str, said: Callable[[str], None] | None = None, make: Callable[[str], bytes] | None = None, **words: Any
    ) -> dict[str, Any]:
        """Ask for something and wait for the answer.

        Args:
            said: Told each line that a program there writes on stderr.
            make: Makes the files that a program there asks for, from its question; raises StretchError where it cannot.
        """
        self._write(json.dumps({"do": do, **words}).encode() + b"\n")
        while "asks" in (answer := self._answer(said)):
            self._give(str(answer["asks"]), make)
        return answer

    def send(self, do: str, write: Callable[["Sending"], None], **words: Any) -> dict[str, Any]:
        """Ask for something with content behind it."""
        self._write(json.dumps({"do": do, **words}).encode() + b"\n")
        content = Sending(self._write)
        write(content)
        content.end()
        return self._answer()

    def receive(self, name: str, most: int) -> bytes:
        """The content of a file."""
        self.ask("get", name=name, most=most)
        digest, content = hashlib.sha256(), bytearray()
        while length := struct.unpack(">I", self._take(4))[0]:
            if length > CHUNK or len(content) + length > most:
                raise self._lost()
            chunk = self._take(length)
            digest.update(chunk)
            content += chunk
        if self._take(32) != digest.digest():
            raise self._lost()
        self._answer()
        return bytes(content)

    def _give(self, question: str, make: Callable[[str], bytes] | None) -> None:
        content, problem = b"", ""
        try:
            if make is None:
                problem = "files are not served"
            else:
                content = make(question)
        except StretchError as error:
            problem = error.message
        self._write(json.dumps({"problem": problem}).encode() + b"\n")
        if not problem:
            sending = Sending(self._write)
            sending.write(content)
            sending.end()

    def _start(self) -> object:
        source = files("scheduler.boards").joinpath("agent.py").read_bytes()
        self._write(b"%d\n" % len(source) + source, greeting="")
        greeting = b""
        while not (line := self._out.readline(_MAX_GREETING)).startswith(MARK.encode()):
            greeting += line
            if not line.endswith(b"\n") or len(greeting) > _MAX_GREETING:
                raise self._lost(greeting.decode(errors="replace"))
        return self._read(line[len(MARK) :])["facts"]

    def _answer(self, said: Callable[[str], None] | None = None) -> dict[str, Any]:
        while True:
            line = self._out.readline(_MAX_LINE)
            if not line.endswith(b"\n"):
                raise self._lost()
            answer = self._read(line)
            if "error" in answer:
                raise RefusedError(*(str(answer.get(key, "")) for key in ("error", "errno", "file")))
            if "said" not in answer:
                return answer
            if said is not None:
                said(str(answer["said"]))

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise self._lost() from error
        if not isinstance(answer, dict):
            raise self._lost()
        return answer

    def _take(self, size: int) -> bytes:
        data = self._out.read(size)
        if len(data) < size:
            raise self._lost()
        return data

    def _write(self, data: bytes, greeting: str | None = None) -> None:
        # an archive that breaks off still wants to write its end
        if self._ended is not None:
            raise self._ended
        try:
            self._in.write(data)
            self._in.flush()
        except OSError as error:
            # what it says before it ends is the reason
            raise self._lost(None if greeting is None else self._out.read(_MAX_GREETING).decode(errors="replace")) from error

    def _lost(self, greeting: str | None = None) -> LostError:
        # whatever it is that writes there has nobody to write to any more
        self._out.close()
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._told.seek(0)
        self._ended = LostError(code, self._told.read(_MAX_GREETING).decode(errors="replace"), greeting)
        return self._ended


class Sending:
    """Content on its way, as a file that is written to."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._put = write
        self._digest = hashlib.sha256()
        #: Bytes so far.
        self.sent = 0

    def write(self, data: bytes) -> int:
        """Send some more."""
        for at in range(0, len(data), CHUNK):
            chunk = data[at : at + CHUNK]
            self._put(struct.pack(">I", len(chunk)) + chunk)
            self._digest.update(chunk)
            self.sent += len(chunk)
        return len(data)

    def end(self) -> None:
        """Say that this was all, and what it was."""
        self._put(struct.pack(">I", 0) + self._digest.digest())
