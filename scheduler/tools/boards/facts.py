"""Facts about a board: its name for ssh, and whether it can run nn-stretch's packages."""

import re
import sys

import msgspec

from predictors.errors import MissingBackendError, StretchError, UsageError

#: Architectures with wheels of all required packages, by the names that kernels use.
ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

#: Series of Python here, with which the board needs the same versions of compiled packages.
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a board reports about itself."""

    system: str  # Name of the kernel, ``Linux``.
    machine: str  # Architecture by the kernel's name.
    bits: int  # Word size of Python there, 32 or 64.
    implementation: str  # Implementation of Python, ``cpython``; with the suffix `t` if threads run without a global lock.
    python: str  # Version of Python.
    glibc: str  # Version of glibc; empty for another C library.
    cores: int  # Number of cores that a program may use.

    @property
    def arch(self) -> str:
        """``x86_64`` or ``aarch64``, else the kernel's name."""
        return ARCHITECTURES.get(self.machine.lower(), self.machine)

    @property
    def series(self) -> str:
        """Series of Python, such as ``3.11`` for 3.11.2."""
        return ".".join(self.python.split(".")[:2])

    def __str__(self) -> str:
        """Return the facts in words."""
        libc = f"glibc {self.glibc}" if self.glibc else "no glibc"
        return f"{self.arch}, Python {self.python}, {libc}, {self.cores} core{'s' if self.cores > 1 else ''}"


def read_facts(host: str, answer: object) -> Facts:
    """Return the facts in an agent's report."""
    try:
        return msgspec.convert(answer, Facts)
    except msgspec.ValidationError as error:
        raise StretchError(f"what {host} says of itself cannot be read: {error}") from error


def check_facts(host: str, facts: Facts) -> None:
    """Refuse a board on which the packages would not run, before anything is copied."""
    if facts.system != "Linux":
        raise MissingBackendError(f"{host} runs {facts.system}; boards run Linux", "choose a board with Linux")
    if facts.implementation != "cpython":
        raise MissingBackendError(
            f"Python on {host} is {facts.implementation}, for which there are no packages", f"install CPython {SERIES} there"
        )
    if facts.series != SERIES:
        raise MissingBackendError(
            f"{host} has Python {facts.python}, and here is {SERIES}: packages have to be of the same series",
            f"install Python {SERIES} there, as `python{SERIES}` on its PATH, or use nn-stretch with Python {facts.series} here",
        )
    if facts.arch not in ("x86_64", "aarch64") or facts.bits != 64:
        machine = facts.arch if facts.bits == 64 else f"{facts.arch} with a 32-bit Python"
        raise MissingBackendError(
            f"{host} is {machine}, for which there are no packages", "boards are x86-64 or aarch64, with a 64-bit system"
        )
    if not facts.glibc:
        raise MissingBackendError(f"{host} has no glibc, which packages are compiled for", "choose a system with glibc, not Alpine")


#: A user and a host, without characters that a shell or a configuration's ``ProxyCommand`` would interpret.
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+-]*@)?\[?[A-Za-z0-9_:][A-Za-z0-9._:%-]*\]?")


def check_host(text: str) -> str:
    """Return a valid name of a host, with or without a user, as `user@host`."""
    if text.startswith("-"):
        raise UsageError(f"--on {text} begins with a dash, as an option of ssh does", "name the board as --on user@host")
    if not _HOST.fullmatch(text):
        raise UsageError(
            f"--on {text or '``'} is no name of a host",
            "name the board as --on user@host; ports and other options belong into the ssh configuration",
        )
    return text
