"""Kernel sources with their macros, built once per context and kept."""

import hashlib
import os
import tempfile
import threading
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from predictors.errors import StretchError
from predictors.files import cache_folder
from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl.device import OpenDevice
from scheduler.delegates.opencl.launch import Defines

#: Files that are kept, those used last.
MAX_FILES = 500

_DIGEST = hashlib.sha256().digest_size


def binary_folder() -> Path:
    """``$XDG_CACHE_HOME/nn-stretch/opencl``, below ``~/.cache`` by default."""
    return cache_folder("opencl")


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


FOLDER = Path(__file__).with_name("kernels")

#: Folders with kernels, in the order in which they are searched.
FOLDERS = [FOLDER]


class BuildError(UnableError):
    """The driver does not compile a kernel; the message names the file with its log."""


@cache
def source(kernel: str) -> str:
    """The source of one kernel, with what all kernels share in front."""
    paths = [path for folder in FOLDERS if (path := folder / f"{kernel}.cl").is_file()]
    if not paths:
        raise StretchError(f"the kernel `{kernel}` has no file {kernel}.cl in {', '.join(map(str, FOLDERS))}")
    return (FOLDER / "common.h").read_text() + paths[0].read_text()


@cache
def source_hash(kernel: str) -> str:
    """Changes with the kernel, so that schedules tuned for another version of it are not used."""
    return hashlib.sha256(source(kernel).encode()).hexdigest()[:16]


class Programs:
    """Builds kernels of one device, each combination of macros once."""

    def __init__(self, device: OpenDevice, half: bool) -> None:
        self._device = device
        self._half = half
        self._built: dict[tuple[str, Defines], Any] = {}
        self._lock = threading.Lock()

    def kernel(self, name: str, defines: Defines) -> Any:
        """A `pyopencl.Kernel` of its own, so that its arguments stay set."""
        import pyopencl

        with self._lock:
            program = self._built.get((name, defines))
            if program is None:
                program = self._built[name, defines] = self._build(name, defines)
        return pyopencl.Kernel(program, name)

    def _build(self, name: str, defines: Defines) -> Any:
        import pyopencl

        device, traits = self._device, self._device.traits
        macros = [("L", str(traits.lanes)), ("HALF", str(int(self._half))), ("CPU", str(int(traits.cpu))), *defines]
        options = ["-cl-mad-enable", "-cl-finite-math-only", *(f"-D{key}={value}" for key, value in macros)]
        kept = binary_file(device.name, device.driver, " ".join(options), source(name))
        try:
            with warnings.catch_warnings():
                # A driver's remarks on a kernel that it did compile.
                warnings.simplefilter("ignore", pyopencl.CompilerWarning)
                if (binary := read_binary(kept)) is not None:
                    # A driver may refuse what it compiled itself, for instance for a device that looked the same.
                    with suppress(pyopencl.Error):
                        return pyopencl.Program(device.context, device.context.devices, [binary]).build()
                program = pyopencl.Program(device.context, source(name)).build(options)
            write_binary(kept, program.get_info(pyopencl.program_info.BINARIES)[0])
        except (pyopencl.Error, RuntimeError) as error:
            log = _write_log(name, options, str(error))
            raise BuildError(
                f"the OpenCL driver of `{self._device.name}` does not compile the kernel `{name}`; its log is in {log}",
                "report the log, and run these subgraphs elsewhere with --map gpu=cpu",
            ) from error
        return program


@cache
def programs_of(device: OpenDevice, half: bool) -> Programs:
    """The one collection of kernels of a device and storage type, which all subgraphs share."""
    return Programs(device, half)


def _write_log(name: str, options: list[str], text: str) -> Path:
    handle, path = tempfile.mkstemp(prefix=f"nn-stretch-{name}-", suffix=".log")
    with os.fdopen(handle, "w") as stream:
        stream.write(f"options: {' '.join(options)}\n\n{text}\n")
    return Path(path)
