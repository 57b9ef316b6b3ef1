"""The program on the board: it is sent there over the connection and runs with Python's standard library alone.

It must start with any Python 3.7 or newer, so that an old one can be reported: it has no newer
syntax, and imports no other module of this project. It reads requests on stdin, one line of JSON
each, and answers each with one line of JSON on stdout; content follows in chunks, each preceded
by its length, with an empty chunk and the SHA-256 at the end. When stdin ends, all
programs that it started are ended.

Received files are written under a temporary name and renamed when they are
complete. The next agent removes the files of a killed one.
"""

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
from typing import IO, Any

#: Start of an agent's first line; a login may print other lines before it.
MARK = "nn-stretch agent "

#: Maximum size of a chunk, bytes.
CHUNK = 1 << 18

#: Seconds in which a program may end after an interrupt.
GRACE_S = 10.0

#: Maximum size of a program's answer, bytes.
MAX_ANSWER = 64 << 20


class ConnectionClosedError(Exception):
    """The other end of the connection is gone."""


class Agent:
    """Answers requests until they end."""

    def __init__(self, python: str, requests: IO[bytes], answers: IO[bytes]) -> None:
        self.python = python
        self.requests = requests
        self.answers = answers
        self.root = ""
        self.drafts = 0

    def serve(self) -> None:
        """Answer requests until they end, then remove unfinished files."""
        work = {name: getattr(self, "do_" + name) for name in ("open", "keeps", "put", "make", "run", "get", "scratch", "remove")}
        try:
            self.send({"facts": facts()}, MARK)
            while True:
                line = self.requests.readline()
                if not line:
                    return
                request = json.loads(line.decode())
                try:
                    self.send(work[request.pop("do")](**request) or {})
                except OSError as error:
                    self.send(error_answer(error))
        except (ConnectionClosedError, BrokenPipeError):
            pass
        finally:
            self.clean(os.getpid())

    def send(self, answer: dict[str, Any], mark: str = "") -> None:
        """Write one line of JSON, after an optional mark."""
        self.answers.write((mark + json.dumps(answer) + "\n").encode())
        self.answers.flush()

    def path(self, *names: str) -> str:
        """Return a path inside this agent's folder, and refuse names that lead elsewhere."""
        parts = [part for name in names for part in name.split("/")]
        if not self.root or any(part in ("", ".", "..") for part in parts):
            raise OSError(errno.EINVAL, "the name leads out of the folder", "/".join(names))
        return os.path.join(self.root, *parts)

    def unfinished(self, activity: str) -> str:
        """Return a new path for an incomplete file or folder; it contains the number of this process."""
        self.drafts += 1
        return self.path("unfinished", f"{activity}-{os.getpid()}-{self.drafts}")

    def clean(self, process: int) -> None:
        """Remove the unfinished files of this process and of processes that have ended."""
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
        """Set the folder for all files, and create it."""
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = os.path.abspath(os.path.expanduser(folder or os.path.join(cache, "nn-stretch", "board")))
        os.makedirs(root, mode=0o700, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        self.root = root
        self.clean(0)
        return {"root": root, "free": shutil.disk_usage(root).free}

    def do_keeps(self, name: str, files: dict[str, str]) -> dict[str, Any]:
        """Return whether a folder exists and has files with these SHA-256; None for any content."""
        folder = self.path(name)
        try:
            is_complete = os.path.isdir(folder) and all(sha256(self.path(name, file)) == digest for file, digest in (files or {}).items())
        except OSError:
            is_complete = False
        return {"kept": is_complete}

    def do_put(self, name: str, trial: list[str], replace: bool) -> dict[str, Any]:
        """Unpack the tar archive that follows as folder `name`, if ``python`` with the words of `trial` succeeds on it.

        A folder of this name that appeared meanwhile has the same content and stays, unless it should be replaced.
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
                [self.python, *trial],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=child_environment([part]),
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
        """Create a folder if it does not exist."""
        os.makedirs(self.path(name), mode=0o700, exist_ok=True)
        return {}

    def do_scratch(self) -> dict[str, Any]:
        """Create a temporary folder that is removed when this agent ends, and return its name below the root."""
        folder = self.unfinished("run")
        os.makedirs(folder, mode=0o700)
        return {"name": os.path.relpath(folder, self.root)}

    def do_remove(self, name: str) -> dict[str, Any]:
        """Remove a folder."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        return {}

    def do_run(self, words: list[str], imports: list[str], folder: str) -> dict[str, Any]:
        """Run ``python`` with these words in a folder; send its stderr line by line, and return its answer and exit code."""
        question_in, questions = os.pipe()
        answers, answer_out = os.pipe()
        try:
            child = subprocess.Popen(
                [self.python, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.path(folder),
                env=dict(child_environment([self.path(module) for module in imports]), NN_STRETCH_ASKS=f"{questions},{answers}"),
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
        """Return a child's stdout; pass its messages and questions to the other end, and stop if the other end is gone."""
        assert child.stdout is not None
        assert child.stderr is not None
        answer, buffered, questions = bytearray(), b"", b""
        streams = {child.stdout.fileno(), child.stderr.fileno()}
        with selectors.DefaultSelector() as watched:
            for stream in (*streams, question_in, self.requests.fileno()):
                watched.register(stream, selectors.EVENT_READ)
            while streams:
                for key, _ in watched.select():
                    if key.fd == self.requests.fileno():
                        # there are no requests before the answer, so the other end is gone
                        raise ConnectionClosedError
                    data = os.read(key.fd, CHUNK)
                    if not data:
                        watched.unregister(key.fd)
                        streams.discard(key.fd)
                    elif key.fd == child.stdout.fileno():
                        answer += data
                        if len(answer) > MAX_ANSWER:
                            raise OSError(errno.EFBIG, "the answer is too large")
                    elif key.fd == question_in:
                        *lines, questions = (questions + data).split(b"\n")
                        for line in lines:
                            self.pass_question(json.loads(line.decode()), answer_out)
                    else:
                        *lines, buffered = (buffered + data).split(b"\n")
                        for line in lines:
                            self.send({"said": line[:2000].decode("utf-8", "replace")})
                        buffered = buffered[-2000:]
        if buffered:
            self.send({"said": buffered.decode("utf-8", "replace")})
        return bytes(answer)

    def pass_question(self, question: dict[str, Any], answer_out: int) -> None:
        """Request the content of a file from the other end, write it, and inform the child."""
        self.send({"asks": question["question"]})
        line = self.requests.readline()
        if not line:
            raise ConnectionClosedError
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
        """Send a file of at most `most` bytes."""
        with open(self.path(name), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                raise OSError(errno.EFBIG, "the file is too large", name)
            self.send({"size": size})
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
    """Content that follows a request, readable like a file, and always readable to its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.rest = b""
        self.digest = hashlib.sha256()
        self.sent = b""

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer than `size` only at the end."""
        while len(self.rest) < size and self.more():
            pass
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def more(self) -> bool:
        """Read the next chunk; return False at the end."""
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
        """Read a number of bytes from the stream."""
        data = self.stream.read(size)
        if len(data) < size:
            raise ConnectionClosedError
        return data

    def finish(self) -> None:
        """Read and discard the remaining content."""
        self.rest = b""
        while self.more():
            self.rest = b""

    def check(self) -> None:
        """Read the remaining content; raise OSError unless all data equal the sent data."""
        self.finish()
        if self.sent != self.digest.digest():
            raise OSError(errno.EIO, "the received data differ from the sent data")


def unpack(content: Content, folder: str) -> None:
    """Unpack the plain files of a tar archive, and refuse all other members."""
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
    """Return an error as an answer."""
    return {"error": error.strerror or str(error), "errno": errno.errorcode.get(error.errno or 0, ""), "file": str(error.filename or "")}


def child_environment(imports: list[str]) -> dict[str, str]:
    """Return the environment of a program that imports from the folders `imports`."""
    return dict(os.environ, PYTHONPATH=os.pathsep.join(imports), PYTHONNOUSERSITE="1", PYTHONUNBUFFERED="1", NN_STRETCH_ON_BOARD="1")


def end(child: subprocess.Popen[bytes]) -> None:
    """Interrupt a child and its own children, and kill those that do not end."""
    for number, grace in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, number)
            child.communicate(timeout=grace)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    child.wait()


def sha256(path: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def facts() -> dict[str, Any]:
    """Return facts about this machine."""
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
    """End as if the other end were gone."""
    raise ConnectionClosedError


def main(python: str) -> None:
    """Serve requests on stdin and stdout."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    Agent(python, sys.stdin.buffer, sys.stdout.buffer).serve()
