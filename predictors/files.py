"""Untrusted files: opened only if they are regular, read up to a limit, with limits on the nesting and the numbers of TOML."""

import errno
import math
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from predictors import system
from predictors.errors import StretchError, UsageError

MAX_TOML_BYTES = 1 << 20

#: Maximum nesting of tables and lists; the files of this project have five levels.
MAX_TOML_DEPTH = 32

#: Maximum number of dots in one line: Python's parser takes quadratic time and memory in the parts of a key.
MAX_TOML_DOTS = 64

#: Maximum absolute value of a whole number, in the range of 64 bits.
MAX_WHOLE = (1 << 63) - 1

_DESCRIPTOR = re.compile(r"/proc/\d+/fd/\d+")


def cache_folder(name: str) -> Path:
    """Return ``$XDG_CACHE_HOME/nn-stretch/NAME``, by default in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "nn-stretch" / name
    except RuntimeError:
        # containers run users without an account, usually with HOME=/, where they cannot write
        return Path("/.cache/nn-stretch") / name


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, without ever blocking.

    Opening a pipe waits for a writer, and reading a device may never end; both
    are refused before a byte is read.
    """
    _check_kind(os.stat(path).st_mode, path)
    descriptor = os.open(path, system.flags("O_RDONLY", "O_NONBLOCK", "O_CLOEXEC"))
    try:
        # Another file may have replaced the checked one since.
        _check_kind(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, noun: str, limit: int, hint: str | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        noun: Noun for the file in messages, such as ``design``.
    """
    try:
        with open_regular(path) as stream:
            # Python allocates as much memory as a read may return.
            content = stream.read(min(limit, os.fstat(stream.fileno()).st_size) + 1)
            content += stream.read(limit - len(content) + 1) if stream.peek(1) else b""
    except (OSError, ValueError) as error:
        raise StretchError(f"cannot read the {noun} {path}: {getattr(error, 'strerror', None) or error}", hint) from error
    if len(content) > limit:
        raise StretchError(f"{path} is larger than {limit} bytes, a {noun} is not", hint)
    return content


def check_folder(file: Path, option: str) -> None:
    """Refuse an output whose folder does not exist or is read-only, before any work.

    Args:
        option: Option that names the output, such as ``--trace``.
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} for {option} {file}", "make it first, or choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {folder} of {option} {file} is read-only", "choose another place")


def write_whole(path: Path, content: bytes, noun: str, hint: str | None = None) -> None:
    """Write a file in one step: it appears complete or not at all.

    Args:
        noun: Noun for the file in messages, such as ``trace``.
    """
    if path.exists() and not path.is_file():
        # the system's administrator could otherwise replace a device such as /dev/null
        raise StretchError(f"cannot write the {noun} {path}: it is a folder, pipe or device, not a file", hint)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise StretchError(f"cannot write the {noun} {path}: {error.strerror}", hint) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(out: Path, noun: str) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `out`, missing or empty, if the block succeeds; otherwise nothing is left.

    Args:
        noun: Noun for the folder in messages, such as ``package``.
    """
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            folder = staging / out.name
            folder.mkdir()
            yield folder
            if out.exists():
                out.rmdir()
            folder.rename(out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise StretchError(
            f"cannot write the {noun} {out}: {error.strerror or error}", "choose a writable folder with enough space"
        ) from error


def read_toml(path: Path, noun: str, hint: str | None = None) -> dict[str, Any]:
    """Return a TOML file as a dictionary whose numbers are finite and fit into 64 bits.

    Args:
        noun: Noun for the file in messages, such as ``design``.
    """
    content = read_bytes(path, noun, MAX_TOML_BYTES, hint)
    try:
        raw = parse_toml(content.decode())
    except UnicodeDecodeError as error:
        raise StretchError(f"{path} is not a {noun}: it is no text in UTF-8", hint) from error
    except ValueError as error:
        raise StretchError(f"{path} is not a {noun}: {error}", hint) from error
    return raw


def parse_toml(text: str) -> dict[str, Any]:
    """Return TOML text as a dictionary, with the checks of `read_toml`."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_TOML_DOTS:
            raise ValueError(f"line {number} has more than {MAX_TOML_DOTS} dots")
    try:
        raw = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_TOML_DEPTH} levels") from error
    for problem in toml_problems(raw):
        raise ValueError(problem)
    return raw


def toml_problems(raw: dict[str, Any]) -> Iterator[str]:
    """Yield the values of a parsed TOML file that are out of bounds, one sentence each."""
    left: list[tuple[str, Any, int]] = [("", raw, 0)]
    while left:
        path, value, depth = left.pop()
        if depth > MAX_TOML_DEPTH:
            yield f"`{path[:40]}…` is nested deeper than {MAX_TOML_DEPTH} levels"
        elif isinstance(value, dict):
            left += [(f"{path}.{key}" if path else key, inner, depth + 1) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(f"{path}[{i}]", inner, depth + 1) for i, inner in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"`{path}` is {value}, which is no finite number"
        elif isinstance(value, int) and abs(value) > MAX_WHOLE:
            yield f"`{path}` is a number of more than 63 bits"


def readable(text: str) -> str:
    """Return the text with real file names in place of paths through a process's descriptors."""

    def name(match: re.Match[str]) -> str:
        try:
            return os.readlink(match[0])
        except OSError:
            return match[0]

    return _DESCRIPTOR.sub(name, text)


def _check_kind(mode: int, path: Path) -> None:
    """Raise OSError unless `mode` is the mode of a regular file."""
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
