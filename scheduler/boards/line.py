"""The line to an agent: requests and answers over a program's stdin and stdout, whatever program carries them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files
from types import TracebackType
from typing import IO, Any, Self

from predictors.errors import StretchError

#: Begins the first line of an agent; a login may print other lines before it.
MARK = "nn-stretch agent "

#: Bytes of a chunk.
CHUNK = 1 << 18

#: Seconds that a program gets to end after an interruption.
GRACE_S = 10.0

#: Most bytes of a program's answer.
MAX_ANSWER = 64 << 20


class GoneError(Exception):
    """Nobody is at the other end any more."""


class Agent:
    """Answers requests until they end.

    Args:
        python: Command that starts Python on this machine.
        requests: Stream of requests.
        answers: Stream of answers.
    """

    def __init__(self, python: str, requests: IO[bytes], answers: IO[bytes]) -> None:
        self.python = python
        self.requests = requests
        self.answers = answers
        self.root = ""
        self.drafts = 0

    def serve(self) -> None:
        """Answer requests until they end, then leave nothing unfinished."""
        work = {name: getattr(self, "do_" + name) for name in ("open", "keeps", "put", "make", "run", "get", "scratch", "remove")}
        try:
            self.tell({"facts": facts()}, MARK)
            while True:
                line = self.requests.readline()
                if not line:
                    return
                request = json.loads(line.decode())
                try:
                    self.tell(work[request.pop("do")](**request) or {})
                except OSError as error:
                    self.tell(error_answer(error))
        except (GoneError, BrokenPipeError):
            pass
        finally:
            self.clean(os.getpid())

    def tell(self, answer: dict[str, Any], mark: str = "") -> None:
        """Write one line."""
        self.answers.write((mark + json.dumps(answer) + "\n").encode())
        self.answers.flush()

    def path(self, *names: str) -> str:
        """A path below the folder of this agent, whose names lead nowhere else."""
        inside = [part for name in names for part in name.split("/")]
        if not self.root or any(part in ("", ".", "..") for part in inside):
            raise OSError(errno.EINVAL, "the name leads out of the folder", "/".join(names))
        return os.path.join(self.root, *inside)

    def unfinished(self, what: str) -> str:
        """A new path for what is not whole yet, with the number of this process in it."""
        self.drafts += 1
        return self.path("unfinished", f"{what}-{os.getpid()}-{self.drafts}")

    def clean(self, process: int) -> None:
        """Remove what a process left unfinished, and what those left that are gone."""
        folder = os.path.join(self.root, "unfinished")
        if not self.root or not os.path.isdir(folder):
            return
        for name in os.listdir(folder):
            number = "".join(name.split("-")[1:2])
            if number == str(process) or not os.path.exists("/proc/" + number):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(folder)

    def do_open(self, folder: str) -> dict[str, Any]:
        """Choose the folder that everything lies in, and make it."""
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = os.path.abspath(os.path.expanduser(folder or os.path.join(cache, "nn-stretch", "board")))
        os.makedirs(root, mode=0o700, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        self.root = root
        self.clean(0)
        return {"root": root, "free": shutil.disk_usage(root).free}

    def do_keeps(self, name: str, files: dict[str, str]) -> dict[str, Any]:
        """Whether there is a folder of this name, and in it these files with these SHA-256 (None: whatever is in it)."""
        folder = self.path(name)
        try:
            kept = os.path.isdir(folder) and all(sha256(self.path(name, file)) == digest for file, digest in (files or {}).items())
        except OSError:
            kept = False
        return {"kept": kept}

    def do_put(self, name: str, trial: list[str], replace: bool) -> dict[str, Any]:
        """Unpack a tar archive that follows as the folder `name`, if ``python`` with the words of a trial runs on it.

        One that is there meanwhile is the same, and stays, unless it is to be replaced.
        """
        target, part = self.path(name), self.unfinished("put")
        content = Content(self.requests)
        try:
            os.makedirs(part, mode=0o700)
            unpack(content, part)
            content.check()
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            content.finish()
            raise
        if trial:
            tried = subprocess.run(
                [self.python, *trial], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=surroundings([part])
            )
            if tried.returncode:
                shutil.rmtree(part, ignore_errors=True)
                return {"failed": tried.returncode, "told": tried.stdout[-20000:].decode("utf-8", "replace")}
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        old = self.unfinished("old")
        try:
            if replace and os.path.isdir(target):
                os.rename(target, old)
            if not os.path.isdir(target):
                os.rename(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        return {}

    def do_make(self, name: str) -> dict[str, Any]:
        """Make a folder, if it is not there."""
        os.makedirs(self.path(name), mode=0o700, exist_ok=True)
        return {}

    def do_scratch(self) -> dict[str, Any]:
        """A new folder that is gone when this agent is; its name below the root."""
        folder = self.unfinished("run")
        os.makedirs(folder, mode=0o700)
        return {"name": os.path.relpath(folder, self.root)}

    def do_remove(self, name: str) -> dict[str, Any]:
        """Remove a folder."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        return {}

    def do_run(self, words: list[str], imports: list[str], folder: str) -> dict[str, Any]:
        """Run ``python`` with these words in a folder; what it writes on stderr is told line by line, then its answer and exit code."""
        question_in, questions = os.pipe()
        answers, answer_out = os.pipe()
        try:
            child = subprocess.Popen(
                [self.python, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.path(folder),
                env=dict(surroundings([self.path(module) for module in imports]), NN_STRETCH_ASKS=f"{questions},{answers}"),
                pass_fds=(questions, answers),
                start_new_session=True,
            )
            os.close(questions)
            os.close(answers)
            try:
                answer = self.follow(child, question_in, answer_out)
                return {"code": child.wait(), "answer": answer.decode("utf-8", "replace")}
            except BaseException:
                end(child)
                raise
        finally:
            os.close(question_in)
            os.close(answer_out)

    def follow(self, child: subprocess.Popen[bytes], question_in: int, answer_out: int) -> bytes:
        """What a child writes on stdout; what it says and asks meanwhile goes on to the other end, which is watched."""
        assert child.stdout is not None
        assert child.stderr is not None
        answer, said, questions = bytearray(), b"", b""
        streams = {child.stdout.fileno(), child.stderr.fileno()}
        with selectors.DefaultSelector() as watched:
            for stream in (*streams, question_in, self.requests.fileno()):
                watched.register(stream, selectors.EVENT_READ)
            while streams:
                for key, _ in watched.select():
                    if key.fd == self.requests.fileno():
                        # nothing is asked before the answer is there: the other end is gone
                        raise GoneError
                    data = os.read(key.fd, CHUNK)
                    if not data:
                        watched.unregister(key.fd)
                        streams.discard(key.fd)
                    elif key.fd == child.stdout.fileno():
                        answer += data
                        if len(answer) > MAX_ANSWER:
                            raise OSError(errno.EFBIG, "the answer is too large")
                    elif key.fd == question_in:
                        *whole, questions = (questions + data).split(b"\n")
                        for line in whole:
                            self.pass_question(json.loads(line.decode()), answer_out)
                    else:
                        *whole, said = (said + data).split(b"\n")
                        for line in whole:
                            self.tell({"said": line[:2000].decode("utf-8", "replace")})
                        said = said[-2000:]
        if said:
            self.tell({"said": said.decode("utf-8", "replace")})
        return bytes(answer)

    def pass_question(self, question: dict[str, Any], answer_out: int) -> None:
        """Ask the other end for the content of a file, write it and say so."""
        self.tell({"asks": question["question"]})
        line = self.requests.readline()
        if not line:
            raise GoneError
        problem = json.loads(line.decode())["problem"]
        if not problem:
            content = Content(self.requests)
            try:
                with open(question["file"], "wb") as stream:
                    for chunk in iter(lambda: content.read(CHUNK), b""):
                        stream.write(chunk)
                content.check()
            except OSError as error:
                content.finish()
                problem = f"{question['file']}: {error.strerror or error}"
        os.write(answer_out, json.dumps({"problem": problem}).encode() + b"\n")

    def do_get(self, name: str, most: int) -> dict[str, Any]:
        """Send a file of at most so many bytes."""
        with open(self.path(name), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                raise OSError(errno.EFBIG, "the file is too large", name)
            self.tell({"size": size})
            digest = hashlib.sha256()
            while True:
                chunk = stream.read(CHUNK)
                self.answers.write(struct.pack(">I", len(chunk)) + chunk)
                digest.update(chunk)
                if not chunk:
                    break
            self.answers.write(digest.digest())
        return {}


class Content:
    """Content that follows a request, read as a file; it can be read to its end whatever becomes of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.rest = b""
        self.digest = hashlib.sha256()
        self.sent = b""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` at the end alone."""
        while len(self.rest) < size and self.more():
            pass
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def more(self) -> bool:
        """Read another chunk."""
        if self.sent:
            return False
        length = struct.unpack(">I", self.take(4))[0]
        if length == 0:
            self.sent = self.take(32)
            return False
        chunk = self.take(length)
        self.digest.update(chunk)
        self.rest += chunk
        return True

    def take(self, size: int) -> bytes:
        """Exactly so many bytes of the stream."""
        data = self.stream.read(size)
        if len(data) < size:
            raise GoneError
        return data

    def finish(self) -> None:
        """Read what is left, and forget it."""
        self.rest = b""
        while self.more():
            self.rest = b""

    def check(self) -> None:
        """Read what is left; raise OSError unless all of it is what was sent."""
        self.finish()
        if self.sent != self.digest.digest():
            raise OSError(errno.EIO, "what arrived is not what was sent")


def unpack(content: Content, folder: str) -> None:
    """Unpack plain files of a tar archive; nothing else is in one of ours."""
    stream: Any = content
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            parts = member.name.split("/")
            source = archive.extractfile(member) if member.isfile() else None
            if source is None or any(part in ("", ".", "..") for part in parts):
                raise OSError(errno.EINVAL, "the archive holds what is no plain file", member.name)
            path = os.path.join(folder, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(source, file, CHUNK)


def error_answer(error: OSError) -> dict[str, Any]:
    """An error as an answer."""
    return {"error": error.strerror or str(error), "errno": errno.errorcode.get(error.errno or 0, ""), "file": str(error.filename or "")}


def surroundings(imports: list[str]) -> dict[str, str]:
    """The environment of a program that imports from these folders."""
    return dict(os.environ, PYTHONPATH=os.pathsep.join(imports), PYTHONNOUSERSITE="1", PYTHONUNBUFFERED="1", NN_STRETCH_ON_BOARD="1")


def end(child: subprocess.Popen[bytes]) -> None:
    """Interrupt a child and those that it started, and kill what does not end."""
    for number, grace in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, number)
            child.communicate(timeout=grace)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    child.wait()


def sha256(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def facts() -> dict[str, Any]:
    """What this machine is."""
    libc = ""
    with contextlib.suppress(ValueError, OSError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "bits": 64 if sys.maxsize > 1 << 32 else 32,
        "implementation": sys.implementation.name + ("t" if "t" in getattr(sys, "abiflags", "") else ""),
        "python": platform.python_version(),
        "glibc": libc[6:] if libc.startswith("glibc ") else "",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }


def stop(number: int, frame: Any) -> None:
    """End as if the other end was gone."""
    raise GoneError


def main(python: str) -> None:
    """Serve on stdin and stdout."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    Agent(python, sys.stdin.buffer, sys.stdout.buffer).serve()


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
        code: Its exit code.
        output: What it wrote on stderr.
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
        reason: Why.
        name: Of the error, such as ``ENOSPC``.
        file: That it is about.
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

    def send(self, do: str, write: Callable[[Sending], None], **words: Any) -> dict[str, Any]:
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
