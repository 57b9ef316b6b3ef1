"""Numbers in files of the kernel, one a file, and what is wrong with one that cannot be used."""

from pathlib import Path
from typing import Protocol

from predictors.errors import StretchError


class CounterError(StretchError):
    """Energy cannot be measured, for the reason that the message says."""


class Meter(Protocol):
    """What counts energy from the moment on that it is made."""

    @property
    def name(self) -> str:
        """What it measures, in words."""
        ...

    @property
    def least_s(self) -> float:
        """What is shorter than this it does not tell well, s."""
        ...

    def read_mj(self) -> float:
        """Energy until now, mJ."""
        ...


def read_number(path: Path) -> int:
    """The whole number in a file."""
    try:
        text = path.read_text().strip()
    except PermissionError as error:
        raise CounterError(f"{path} may not be read by this user", f"as root: chmod a+r {path}") from error
    except OSError as error:
        raise CounterError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CounterError(f"{path} holds no number") from error
    try:
        return int(text)
    except ValueError as error:
        raise CounterError(f"{path} holds `{text[:20]}`, which is no whole number") from error


def read_word(path: Path) -> str:
    """The word in a file; empty where there is none."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def folders(root: Path, pattern: str) -> list[Path]:
    """Folders of a class of devices that match a pattern, in order; none where there is no such class."""
    try:
        return sorted(path for path in root.glob(pattern) if path.is_dir())
    except OSError:
        return []
