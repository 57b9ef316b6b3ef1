"""Compiled kernels in the user's cache: a driver takes several times as long to look at a source as to load a binary."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

#: Files that are kept, those used last.
MAX_FILES = 500

_DIGEST = hashlib.sha256().digest_size


def binary_folder() -> Path:
    """``$XDG_CACHE_HOME/nn-stretch/opencl``, below ``~/.cache`` by default."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nn-stretch" / "opencl"


def binary_file(*parts: str) -> Path:
    """Where the binary lies of a kernel for which all these words are the same."""
    return binary_folder() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.bin"


def read_binary(path: Path) -> bytes | None:
    """A binary as it was written, or None: drivers need not notice that one is damaged."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    digest, binary = kept[:_DIGEST], kept[_DIGEST:]
    if hashlib.sha256(binary).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)
    return binary


def write_binary(path: Path, binary: bytes) -> None:
    """Keep a binary, whole or not at all, and drop those that were not used for longest; where nothing can be written, nothing is kept."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(binary).digest() + binary)
        os.replace(name, path)
        kept = sorted(path.parent.glob("*.bin"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for old in kept[MAX_FILES:]:
            old.unlink()
