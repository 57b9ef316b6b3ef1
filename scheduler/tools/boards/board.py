"""A board on which a verb can run: nn-stretch is copied there, bundles are copied once, programs run there and their files come back."""

import contextlib
import functools
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, Self

import msgspec
from packaging.markers import default_environment
from packaging.requirements import Requirement

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UnknownNameError, UsageError, install_line
from scheduler.answer import BoardAnswer
from scheduler.bundle.load import MANIFEST, Bundle
from scheduler.bundle.signature import SIGNATURE
from scheduler.tools.boards.agent import CHUNK, MARK
from scheduler.tools.boards.facts import SERIES, Facts, check_facts, check_host, read_facts

# Files for a board: their names there and here, their size, and a name for all of them by their content.

#: Number of digits of a digest in a name.
DIGITS = 16

#: Compression level, twice as fast as the default with little larger results.
_LEVEL = 4


@dataclass(frozen=True)
class BoardArchive:
    """Files that become one folder on the board."""

    name: str  # Name of the folder there, which ends with a digest of its content.
    files: Mapping[str, Path]  # Files by name in that folder.
    compress: bool = True  # Whether compression makes them smaller.

    @property
    def bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(path.stat().st_size for path in self.files.values())

    def write(self, stream: Any, step: Callable[[int], None] = lambda done: None) -> None:
        """Write the files as a tar archive, without owners and times (`step`: called with the bytes done after each file)."""
        done, context = 0, nullcontext(stream)
        packed: Any = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=_LEVEL, mtime=0) if self.compress else context
        with packed as target, tarfile.open(fileobj=target, mode="w|") as archive:
            for name in sorted(self.files):
                with self.files[name].open("rb") as content:
                    member = tarfile.TarInfo(name)
                    member.size = os.fstat(content.fileno()).st_size
                    archive.addfile(member, content)
                done += member.size
                step(done)


def files_below(folder: Path, skipped: Iterable[str] = ()) -> dict[str, Path]:
    """Return the files of a folder, by their relative name."""
    left_out = set(skipped)
    paths = (path for path in folder.rglob("*") if path.is_file() and left_out.isdisjoint(path.relative_to(folder).parts))
    return {path.relative_to(folder).as_posix(): path for path in paths}


def digest_of(parts: Iterable[str]) -> str:
    """Return the first `DIGITS` digits of the SHA-256 of several texts in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:DIGITS]


DISTRIBUTION = "nn-stretch"

#: Packages of the base installation, which a board gets.
PACKAGES = ("predictors", "scheduler", "stretch")

_SKIPPED = ("__pycache__", ".mypy_cache")


def distribution() -> metadata.Distribution:
    """Return the metadata of the installed distribution."""
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise MissingBackendError("the packages for a board are known only if nn-stretch is installed", install_line()) from error


def our_archive() -> BoardArchive:
    """Return the packages and their metadata, as a folder that Python imports from, named by its content."""
    files: dict[str, Path] = {}
    for package in PACKAGES:
        folder = Path(str(resources.files(package)))
        files |= {f"{package}/{name}": path for name, path in files_below(folder, _SKIPPED).items()}
    distribution_package = distribution()
    for entry in distribution_package.files or ():
        # records and links of an editable install belong to this machine only
        if entry.parent.name.endswith(".dist-info") and entry.name in ("METADATA", "entry_points.txt", "LICENSE"):
            files[entry.as_posix()] = Path(str(distribution_package.locate_file(entry)))
    content = (f"{name}:{hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sorted(files.items()))
    return BoardArchive(f"nn-stretch/{digest_of(content)}", files)


# Third-party packages that nn-stretch needs on a board: pip or uv fetches them here, for the board's processor and Python.

#: Extras of this package that a board may need to run bundles, and the extra to fit its profile.
EXTRAS = ("opencl", "litert", "openvino", "ncnn", "qnn", "fit")

#: Minor version of the oldest glibc in names of wheels.
_OLDEST = 17

#: Minor versions of glibc in uv's platform names.
_UV_GLIBC_MINORS = (17, 28, *range(31, 41))


def requirements(extras: Sequence[str], facts: Facts) -> list[Requirement]:
    """Return the packages that nn-stretch needs on such a board."""
    for extra in extras:
        if extra not in EXTRAS:
            raise UnknownNameError.among("extra for a board", extra, EXTRAS)
    stated = [Requirement(text) for text in distribution().requires or ()]
    return [requirement for requirement in stated if _holds(requirement, facts, ("", *extras))]


def _holds(requirement: Requirement, facts: Facts, extras: Sequence[str]) -> bool:
    marker = requirement.marker
    environment = {"platform_machine": facts.arch, "python_full_version": facts.python, "platform_system": "Linux", "sys_platform": "linux"}
    local: Mapping[str, object] = default_environment()
    return marker is None or any(marker.evaluate({**local, **environment, "extra": extra}) for extra in extras)  # type: ignore[dict-item]


def pins(stated: Sequence[Requirement], facts: Facts) -> list[str]:
    """Return the versions installed here of the required packages and of their dependencies.

    Packages that are not installed here are not pinned.
    """
    versions: dict[str, str] = {}
    left = list(stated)
    while left:
        current = left.pop()
        try:
            package = metadata.distribution(current.name)
        except metadata.PackageNotFoundError:
            continue
        if package.metadata["Name"] not in versions:
            versions[package.metadata["Name"]] = package.version
            inner = (Requirement(text) for text in package.requires or ())
            left += [requirement for requirement in inner if _holds(requirement, facts, ("", *current.extras))]
    return sorted(f"{name}=={version}" for name, version in versions.items())


@contextmanager
def package_archive(host: str, facts: Facts, stated: Sequence[Requirement], name: str, wheels: Path | None) -> Iterator[BoardArchive]:
    """Create the packages as a folder that Python imports from, and remove it after the block."""
    with tempfile.TemporaryDirectory(prefix="nn-stretch-") as folder:
        target, limits = Path(folder, "packages"), Path(folder, "pins.txt")
        # a folder of wheels determines the versions itself
        limits.write_text("".join(f"{pin}\n" for pin in ([] if wheels else pins(stated, facts))))
        command = [*installer(facts), "--target", str(target), "--constraint", str(limits)]
        command += ["--no-index", "--find-links", str(wheels)] if wheels else []
        requirements = [
            f"{requirement.name}{'[' + ','.join(sorted(requirement.extras)) + ']' if requirement.extras else ''}{requirement.specifier}"
            for requirement in stated
        ]
        done = subprocess.run(
            [*command, *requirements], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            index_hint = "see that the package index can be reached from here, or name a folder with the board's wheels by --wheels"
            hint = f"put the missing wheels into {wheels}" if wheels else index_hint
            raise MissingBackendError(f"the packages for {host} ({facts}) cannot be had: {_packages_reason(done.stderr)}", hint)
        yield BoardArchive(name, files_below(target, ("__pycache__", "bin")))


def package_name(stated: Sequence[Requirement], facts: Facts, wheels: Path | None) -> str:
    """Return the name of the packages' folder on the board, from everything that determines them."""
    if wheels is None:
        chosen = pins(stated, facts)
    else:
        files = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
        if not files:
            raise StretchError(f"{wheels} is no folder with wheels", "name one that holds .whl files, for the board's processor and Python")
        chosen = [f"{wheel.name}:{wheel.stat().st_size}" for wheel in files]
    return f"packages/{digest_of([facts.arch, facts.series, *sorted(map(str, stated)), *chosen])}"


def installer(facts: Facts) -> list[str]:
    """Return the command that starts pip, or uv if pip is missing, to fetch only wheels for such a board."""
    minor = int(facts.glibc.split(".")[1]) if facts.glibc.startswith("2.") else _OLDEST
    if importlib.util.find_spec("pip") is not None:
        tags = [f"manylinux_2_{n}_{facts.arch}" for n in range(minor, _OLDEST - 1, -1)] + [f"manylinux2014_{facts.arch}"]
        platforms = [word for tag in tags for word in ("--platform", tag)]
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
        chosen = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", facts.series]
        return [sys.executable, "-m", "pip", "install", *quiet, *chosen, *platforms]
    candidate = Path(sys.executable).with_name("uv")
    uv = str(candidate) if candidate.is_file() else shutil.which("uv")
    if uv is None:
        raise MissingBackendError(
            "packages for a board are fetched by pip or uv, and neither is here", "install one, as `python -m ensurepip`"
        )
    platform = f"{facts.arch}-manylinux_2_{max((n for n in _UV_GLIBC_MINORS if n <= minor), default=_OLDEST)}"
    return [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python-version", facts.series, "--python-platform", platform]


def _packages_reason(log: str) -> str:
    """Return the line in which pip or uv names the missing package."""
    wrong = [line for line in log.splitlines() if line.startswith("ERROR:")]
    return _last(wrong[-1] if wrong else log).removeprefix("ERROR: ") or "no message"


#: Starts Python there: the same series as here, else any interpreter, so that it can be reported. Every login shell accepts single
#: quotes, so they contain no single quote, backslash, exclamation mark or line break.
BOOT = (
    "for name in {names}; do python=$(command -v $name) && "
    'exec "$python" -u -c "import sys; sys.version_info < (3, 7) and sys.exit({old}); sys.path[:] = filter(None, sys.path); '
    'exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))); main(sys.argv[1])" "$python"; '
    "done; exit {missing}"
)

#: Exit codes of `BOOT` if Python is missing, and if it is too old for the agent.
NO_PYTHON, OLD_PYTHON = 97, 96

#: Maximum number of bytes that a login may print before the agent answers.
_MAX_GREETING = 1 << 16

#: Maximum length of an agent's line, which contains the answer of a verb.
_MAX_LINE = 256 << 20

#: Seconds for the program to end after its last request, and after an interrupt.
_END_S, _INTERRUPTED_S = 10.0, 0.2


class LostError(Exception):
    """The program ended before its answer; `greeting` is the output in place of an agent's, None if an agent had answered."""

    def __init__(self, code: int, output: str, greeting: str | None) -> None:
        super().__init__(output)
        self.code, self.stderr, self.greeting = code, output, greeting


class RefusedError(Exception):
    """The agent could not carry out a request; `name` is the name of the error, such as ``ENOSPC``."""

    def __init__(self, reason: str, name: str, file: str) -> None:
        super().__init__(reason)
        self.reason, self.name, self.file = reason, name, file


def boot(names: Sequence[str]) -> str:
    """Return the shell command that starts Python, as one argument of ssh."""
    return f"sh -c '{BOOT.format(names=' '.join(names), missing=NO_PYTHON, old=OLD_PYTHON)}'"


class AgentConnection:
    """A connection to an agent, with one request at a time; closing it ends the agent and all its programs."""

    def __init__(self, command: Sequence[str]) -> None:
        # a file, because a connection shared by ssh may keep a pipe open for longer than ssh runs
        self._told: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed with the connection
        # this process handles Ctrl-C: it would end ssh before the other end is informed
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._told, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._ended: LostError | None = None
        try:
            #: Facts about the agent's machine.
            self.facts: object = self._start()
        except BaseException:
            self.close(_INTERRUPTED_S)
            raise

    def __enter__(self) -> Self:
        """Return the connection itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connection, without a long wait after an interrupt."""
        self.close(_END_S if kind is None or issubclass(kind, StretchError) else _INTERRUPTED_S)

    def close(self, grace_s: float = _END_S) -> None:
        """Let the agent end; it also ends by itself if the program is killed."""
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
        self, do: str, on_output: Callable[[str], None] | None = None, answer_question: Callable[[str], bytes] | None = None, **words: Any
    ) -> dict[str, Any]:
        """Send a request, and return its answer."""
        self._write(json.dumps({"do": do, **words}).encode() + b"\n")
        while "asks" in (answer := self._answer(on_output)):
            self._give(str(answer["asks"]), answer_question)
        return answer

    def send(self, do: str, write: Callable[["ChunkWriter"], None], **words: Any) -> dict[str, Any]:
        """Send a request followed by content, and return its answer."""
        self._write(json.dumps({"do": do, **words}).encode() + b"\n")
        content = ChunkWriter(self._write)
        write(content)
        content.end()
        return self._answer()

    def receive(self, name: str, most: int) -> bytes:
        """Return the content of a file on the board."""
        self.ask("get", name=name, most=most)
        digest, content = hashlib.sha256(), bytearray()
        while length := struct.unpack(">I", self._take(4))[0]:
            if length > CHUNK or len(content) + length > most:
                raise self._lost_error()
            chunk = self._take(length)
            digest.update(chunk)
            content += chunk
        if self._take(32) != digest.digest():
            raise self._lost_error()
        self._answer()
        return bytes(content)

    def _give(self, question: str, answer_question: Callable[[str], bytes] | None) -> None:
        content, problem = b"", "files are not served" if answer_question is None else ""
        try:
            content = answer_question(question) if answer_question is not None else b""
        except StretchError as error:
            problem = error.message
        self._write(json.dumps({"problem": problem}).encode() + b"\n")
        if not problem:
            sending = ChunkWriter(self._write)
            sending.write(content)
            sending.end()

    def _start(self) -> object:
        source = resources.files("scheduler.tools.boards").joinpath("agent.py").read_bytes()
        self._write(b"%d\n" % len(source) + source, greeting="")
        greeting = b""
        while not (line := self._out.readline(_MAX_GREETING)).startswith(MARK.encode()):
            greeting += line
            if not line.endswith(b"\n") or len(greeting) > _MAX_GREETING:
                raise self._lost_error(greeting.decode(errors="replace"))
        return self._read(line[len(MARK) :])["facts"]

    def _answer(self, on_output: Callable[[str], None] | None = None) -> dict[str, Any]:
        while True:
            line = self._out.readline(_MAX_LINE)
            if not line.endswith(b"\n"):
                raise self._lost_error()
            answer = self._read(line)
            if "error" in answer:
                raise RefusedError(*(str(answer.get(key, "")) for key in ("error", "errno", "file")))
            if "said" not in answer:
                return answer
            if on_output is not None:
                on_output(str(answer["said"]))

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise self._lost_error() from error
        if not isinstance(answer, dict):
            raise self._lost_error()
        return answer

    def _take(self, size: int) -> bytes:
        data = self._out.read(size)
        if len(data) < size:
            raise self._lost_error()
        return data

    def _write(self, data: bytes, greeting: str | None = None) -> None:
        # an interrupted archive still writes its end
        if self._ended is not None:
            raise self._ended
        try:
            self._in.write(data)
            self._in.flush()
        except OSError as error:
            # the program's last message is the reason
            raise self._lost_error(None if greeting is None else self._out.read(_MAX_GREETING).decode(errors="replace")) from error

    def _lost_error(self, greeting: str | None = None) -> LostError:
        # a writer on the other side then has no reader
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


class ChunkWriter:
    """Content that is sent in chunks, with the interface of a writable file."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._put = write
        self._digest = hashlib.sha256()
        #: Number of bytes sent so far.
        self.sent = 0

    def write(self, data: bytes) -> int:
        """Send data, and return its length."""
        for start in range(0, len(data), CHUNK):
            chunk = data[start : start + CHUNK]
            self._put(struct.pack(">I", len(chunk)) + chunk)
            self._digest.update(chunk)
            self.sent += len(chunk)
        return len(data)

    def end(self) -> None:
        """Send the end mark and the digest of the stream."""
        self._put(struct.pack(">I", 0) + self._digest.digest())


# The user's ``ssh``: how it is called, and the meaning of its failures.
#
# Hosts, keys, users, ports and jumps come from the user's configuration. ssh
# asks nothing on a terminal (`BatchMode`), so a connection that needs an answer
# fails with a sentence.

#: Options that override the configuration: no terminal, no command and no forwarding, and errors are printed.
_ALWAYS = ("BatchMode=yes", "RemoteCommand=none", "ClearAllForwardings=yes", "PermitLocalCommand=no", "LogLevel=ERROR")

#: Options for settings that the configuration leaves out: the wait for a host that does not answer is limited.
_DEFAULT_OPTIONS = {
    "connecttimeout none": ("ConnectTimeout=20",),
    "serveraliveinterval 0": ("ServerAliveInterval=15", "ServerAliveCountMax=4"),
}


class _Reason(NamedTuple):
    pattern: str
    message: str
    hint: str


#: Messages of ssh with their meaning; the first match counts.
_REASONS = (
    _Reason("Could not resolve hostname", "there is no host {host}: its name is not known", "check the name, or add it to ~/.ssh/config"),
    _Reason("Connection refused", "{host} refuses connections", "is sshd running there, and on the port that the ssh configuration says?"),
    _Reason(
        "timed out|No route to host|unreachable|Host is down|kex_exchange_identification|Connection (closed|reset) by",
        "{host} does not answer",
        "is it switched on and on the network? try `ssh {host}`",
    ),
    _Reason(
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the key of {host} is not the one that is known",
        "find out why; if it was reinstalled, remove the old key with `ssh-keygen -R`",
    ),
    _Reason(
        "Host key verification failed|host key is known",
        "the key of {host} is not known here",
        "log in once by hand with `ssh {host}`, and accept the key if it is the right one",
    ),
    _Reason(
        "Permission denied|Too many authentication failures",
        "{host} does not accept our key",
        "bring one there with `ssh-copy-id {host}`; one with a passphrase has to be in ssh-agent",
    ),
)


def connect(host: str, config: Path | None = None) -> AgentConnection:
    """Return a connection to an agent on a board."""
    if shutil.which("ssh") is None:
        raise MissingBackendError("there is no `ssh` here", "install OpenSSH's client, such as Debian's openssh-client")
    if config is not None and not config.is_file():
        raise StretchError(f"there is no ssh configuration {config}", "name a file with --ssh-config, or leave it out")
    try:
        return AgentConnection([*ssh_words(host, config), boot((f"python{SERIES}", "python3"))])
    except LostError as lost:
        raise explain_start(host, lost) from lost


def ssh_words(host: str, config: Path | None) -> list[str]:
    """Return the command that starts ssh, up to the host."""
    start = ["ssh", *(("-F", str(config)) if config is not None else ())]
    shown = subprocess.run(
        [*start, "-G", "--", host], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if shown.returncode:
        raise StretchError(
            f"ssh does not take its configuration: {_last(shown.stderr)}", "correct the file, or name another with --ssh-config"
        )
    settings = set(shown.stdout.splitlines())
    options = [*_ALWAYS, *(option for setting, defaults in _DEFAULT_OPTIONS.items() if setting in settings for option in defaults)]
    return [*start, "-T", *(word for option in options for word in ("-o", option)), "--", host]


def explain_start(host: str, lost: LostError) -> StretchError:
    """Return an error with the reason why no agent answered."""
    if lost.code == NO_PYTHON:
        return MissingBackendError(
            f"there is no Python on {host}", f"install Python {SERIES} there, and see that `ssh {host} python{SERIES} -V` finds it"
        )
    if lost.code == OLD_PYTHON:
        return MissingBackendError(
            f"Python on {host} is older than 3.7, and here is {SERIES}: packages have to be of the same series",
            f"install Python {SERIES} there, as `python{SERIES}` on its PATH",
        )
    reason = next((reason for reason in _REASONS if re.search(reason.pattern, lost.stderr)), None)
    if lost.code == 255 and reason is not None:
        return StretchError(reason.message.format(host=host), reason.hint.format(host=host))
    last_words = _last(lost.stderr) or _last(lost.greeting or "") or "it said nothing"
    if lost.code == 255:
        return StretchError(f"ssh does not connect to {host}: {last_words}", f"see what `ssh {host}` says")
    return StretchError(f"{host} does not start Python: {last_words}", f"see what `ssh {host} python{SERIES} -V` says")


def explain_loss(host: str, activity: str, lost: LostError) -> StretchError:
    """Return an error for an agent that was lost during a step."""
    return StretchError(
        f"the connection to {host} was lost while {activity}{f': {message}' if (message := _last(lost.stderr)) else ''}",
        "complete copies are kept there; repeat the command once the connection is back",
    )


def _last(text: str) -> str:
    """Return the last line that is not empty."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


#: Free space to leave on a board, bytes.
_MARGIN = 16 << 20

#: Ratio of the space for packed and unpacked files, and for many small files, to their size.
_OVERHEAD = 1.1

#: Imports that show whether the copied packages work on the board.
_TRIAL = ("-P", "-s", "-c", "import numpy, onnx, onnxruntime, msgspec, rich, typer")

#: Starts the command line there; an empty `sys.path[0]` would be the working directory.
_START = ("-P", "-s", "-c", "from stretch.cli import app; app()")

#: Error classes of the command line, by exit code.
_ERRORS = {kind.exit_code: kind for kind in (UsageError, UnknownNameError, InfeasibleError, MissingBackendError)}

_MB = 10**6


class ProgressReporter(Protocol):
    """Receiver of progress reports."""

    def note(self, message: str) -> None:
        """Report a sentence."""

    def progress(self, activity: str, total: int | None = None) -> AbstractContextManager[Callable[..., None]]:
        """Begin a task with a number of steps; the returned function takes words, and `at` and `total` for the progress."""


class BoardTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A board and its setup."""

    host: str  # Host in a form that ``ssh`` accepts.
    folder: str = ""  # Folder on the board for all copied files; empty: ``nn-stretch/board`` in the user's cache.
    wheels: Path | None = None  # Local folder with the board's packages; None: the index that pip uses here.
    extras: tuple[str, ...] = ()  # Extras of nn-stretch, in addition to the base installation.
    config: Path | None = None  # File to use instead of the user's ssh configuration.


class Board:
    """A connected board, created by `open_board`."""

    def __init__(self, target: BoardTarget, connection: AgentConnection, facts: Facts, progress: ProgressReporter) -> None:
        self.host = target.host
        self.facts = facts
        self._connection = connection
        self._progress = progress
        self._activity = "it was looked at"
        opened = self._ask("open", folder=target.folder)
        self._root, self._free = str(opened["root"]), int(opened["free"])
        self._imports: list[str] = []
        self._copied: dict[str, int] = {}

    @property
    def answer(self) -> BoardAnswer:
        """Facts about the board and the copied bytes, for JSON."""
        facts = self.facts
        return BoardAnswer(
            host=self.host,
            arch=facts.arch,
            python=facts.python,
            glibc=facts.glibc,
            cores=facts.cores,
            folder=self._root,
            copied_bytes=dict(self._copied),
        )

    def install(self, extras: Sequence[str], wheels: Path | None) -> None:
        """Copy nn-stretch and its packages, unless they are already on the board.

        Args:
            wheels: Folder with wheels; None: the index that pip uses here.
        """
        stated = requirements(extras, self.facts)
        name, archive = package_name(stated, self.facts, wheels), our_archive()
        self._copied |= {"packages": 0, "nn_stretch": 0}
        if not self.keeps(name):
            with ExitStack() as stack:
                with self._progress.progress(f"fetching packages for {self.facts.arch}"):
                    packed = stack.enter_context(package_archive(self.host, self.facts, stated, name, wheels))
                self._copied["packages"] = self._put(packed, f"{len(stated)} packages and what they need", trial=_TRIAL)
        if not self.keeps(archive.name):
            self._copied["nn_stretch"] = self._put(archive, "nn-stretch")
        self._imports = [name, archive.name]

    def copy_bundle(self, bundle: Bundle) -> str:
        """Copy a bundle unless the board already has it, and return its path on the board."""
        files = {name: bundle.file(name) for name in (MANIFEST, *bundle.manifest.files)}
        digests = {name: entry.sha256 for name, entry in bundle.manifest.files.items()}
        signature = bundle.file(SIGNATURE)
        if signature.is_file():
            files[SIGNATURE] = signature
        archive = BoardArchive(
            f"bundles/{digest_of(files[file_name].read_bytes().hex() for file_name in (MANIFEST, SIGNATURE) if file_name in files)}",
            files,
            compress=False,
        )
        self._copied["bundle"] = 0
        if self.keeps(archive.name, digests):
            self._progress.note(f"{self.host} has the bundle already")
        else:
            self._copied["bundle"] = self._put(archive, f"the bundle {bundle.path}", replace=True)
        return f"{self._root}/{archive.name}"

    def copy_file(self, folder: str, content: Path) -> str:
        """Copy a file into a folder from `scratch`, and return its path on the board."""
        name = f"{folder}/{digest_of([str(content)])}"
        self._put(BoardArchive(name, {"file": content}), str(content))
        return f"{self._root}/{name}/file"

    def copy_folder(self, name: str, files: Mapping[str, Path]) -> None:
        """Copy files as the folder `name`; without files, create the folder."""
        if files:
            self._put(BoardArchive(name, files), name.rpartition("/")[2], replace=True)
        else:
            self._ask("make", name=name)

    def scratch(self) -> str:
        """Create a temporary folder that is removed when the connection closes, and return its name."""
        return str(self._ask("scratch")["name"])

    def remove(self, name: str) -> None:
        """Remove a folder on the board."""
        self._ask("remove", name=name)

    def run(
        self, words: Sequence[str], folder: str, on_output: Callable[[str], None], answer_question: Callable[[str], bytes] | None = None
    ) -> dict[str, Any]:
        """Run a verb on the board with ``--json``, and return its answer; it ends with the connection."""
        self._activity = f"`stretch {words[0]}` was running there"
        request = {"words": [*_START, *words, "--json"], "imports": self._imports, "folder": folder}
        with self._progress.progress(f"running on {self.host}"):
            done = self._ask("run", on_output, answer_question, **request)
        code, text = int(done["code"]), str(done["answer"])
        try:
            answer = json.loads(text)
        except ValueError as error:
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with code {code} and without an answer"
            raise StretchError(f"`stretch {words[0]}` on {self.host} {ending}", "has it memory enough? see what it wrote above") from error
        if not isinstance(answer, dict) or (code and "error" not in answer):
            raise StretchError(f"`stretch {words[0]}` on {self.host} gave no answer that can be read")
        if code:
            raise _ERRORS.get(code, StretchError)(f"on {self.host}: {answer['error']}", answer.get("hint"))
        return answer

    def fetch(self, name: str, most: int) -> bytes:
        """Return the content of a file on the board."""
        self._activity = f"{name.rpartition('/')[2]} was fetched"
        content: bytes = self._call(functools.partial(self._connection.receive, name, most))
        return content

    def keeps(self, name: str, files: Mapping[str, str] | None = None) -> bool:
        """Return whether the board has a folder of this name with files with these SHA-256."""
        return bool(self._ask("keeps", name=name, files=files)["kept"])

    def _put(self, archive: BoardArchive, words: str, trial: Sequence[str] = (), replace: bool = False) -> int:
        """Copy an archive, which `words` describe, and return its size in bytes."""
        size = archive.bytes
        self._activity = f"{words} went there"
        if self._free < size * _OVERHEAD + _MARGIN:
            raise StretchError(
                f"{self.host} has {_mb(self._free)} free in {self._root}, which is not enough for {words}: {_mb(size)}",
                "make room there, or choose a folder on another disk with --there",
            )
        self._progress.note(f"copying {words} to {self.host}: {_mb(size)}")
        with self._progress.progress(f"copying to {self.host}, MB", max(1, size // _MB)) as bar:

            def write(stream: Any) -> None:
                archive.write(stream, lambda done: bar(at=done // _MB, total=max(1, size // _MB)))

            request = {"name": archive.name, "trial": list(trial), "replace": replace}
            done = self._call(functools.partial(self._connection.send, "put", write, **request))
        if "failed" in done:
            raise explain_trial(self.host, int(done["failed"]), str(done.get("told", "")))
        self._free -= size
        return size

    def _ask(
        self, do: str, on_output: Callable[[str], None] | None = None, answer_question: Callable[[str], bytes] | None = None, **words: Any
    ) -> dict[str, Any]:
        answer: dict[str, Any] = self._call(functools.partial(self._connection.ask, do, on_output, answer_question, **words))
        return answer

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except LostError as lost:
            raise explain_loss(self.host, self._activity, lost) from lost
        except RefusedError as refused:
            raise _refused(self.host, refused, self._activity) from refused


@contextmanager
def open_board(target: BoardTarget, progress: ProgressReporter) -> Iterator[Board]:
    """Connect to a board and install nn-stretch there; programs on the board end with the block."""
    host = check_host(target.host)
    with progress.progress(f"connecting to {host}"):
        connection = connect(host, target.config)
    with connection:
        facts = read_facts(host, connection.facts)
        progress.note(f"{host}: {facts}")
        check_facts(host, facts)
        board = Board(target, connection, facts, progress)
        board.install(target.extras, target.wheels)
        yield board


def _refused(host: str, refused: RefusedError, activity: str) -> StretchError:
    prefix = f"{refused.file}: " if refused.file else ""
    if refused.name in ("ENOSPC", "EDQUOT", "EFBIG"):
        return StretchError(
            f"there is no room on {host} while {activity}: {refused.reason}",
            "make room there, or choose a folder on another disk with --there",
        )
    if refused.name in ("EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST"):
        return StretchError(f"on {host}, {prefix}{refused.reason}", "choose a folder that can be written to there with --there")
    return StretchError(f"on {host}, {prefix}{refused.reason} while {activity}")


def explain_trial(host: str, code: int, message: str) -> StretchError:
    """Return an error with the reason why packages do not import on the board, usually a missing system library."""
    last = _last(message) or "no message"
    if ".so" in last and "cannot open shared object file" in last:
        library = last.partition(": cannot open")[0].split()[-1].removesuffix(":")
        return MissingBackendError(
            f"{host} lacks the library {library}, which packages need",
            f"install the system's package that has {library} there, then try again",
        )
    ending = f"is ended by signal {-code}" if code < 0 else f"ends with code {code}"
    return MissingBackendError(
        f"Python on {host} {ending} when it imports the packages: {last}", "see whether the system there is complete"
    )


def _mb(size: int) -> str:
    return f"{size / _MB:.3g} MB" if size >= _MB // 10 else f"{size / 1000:.2g} kB"
