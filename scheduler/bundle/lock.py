"""Folders that processes read and replace at the same time, and their locks.

A bundle is replaced by exchanging two folders under one name. A reader that opened the name before and opens a file by it after
would mix two bundles; so a reader holds the folder itself and names files through it. A lock that readers share says
that the folder is in use; code that removes folders takes it exclusively first.
"""

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from predictors import system
from predictors.errors import StretchError

#: Attempts to open a folder that is being removed, and the pause between them.
_ATTEMPTS, _PAUSE_S = 200, 0.005


class OpenFolder:
    """An open folder, which keeps its files for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _open_shared(path) if system.OPENS_FOLDERS else None
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

    @property
    def root(self) -> Path:
        """A path of the folder that stays its own when its name becomes another's; the name itself where the system has no /proc."""
        root = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        return root if root.is_dir() else self._path

    def replace_root(self, text: str) -> str:
        """Return the text with the folder's name in place of `root`."""
        return text.replace(str(self.root), str(self._path))

    def contains(self, file: Path) -> bool:
        """Return whether a file below `root` is in the folder once every link is followed."""
        while True:
            folder = os.path.realpath(self.root)
            real = os.path.realpath(file)
            if os.path.realpath(self.root) == folder:
                return Path(real).is_relative_to(folder)


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold the shared lock of a folder, so that it is not removed until the block ends.

    Yields:
        The folder's inode number, by which it is known under any name.
    """
    if not system.OPENS_FOLDERS:
        yield os.stat(path).st_ino
        return
    descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
    try:
        _lock(descriptor, "LOCK_SH")
        yield os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[bool]:
    """Try to hold the exclusive lock of a folder, to remove it.

    Yields:
        Whether the lock is held until the block ends: False if a process reads or writes
        the folder, or if the file system has no locks.
    """
    if not system.OPENS_FOLDERS:
        yield False
        return
    try:
        descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"))
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor, "LOCK_EX") is True and _is_same_folder(path, descriptor)
    finally:
        os.close(descriptor)


def _open_shared(path: Path) -> int:
    """Return a descriptor of the folder that has this name, with the shared lock on it."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
        # without locks no folder is removed that might be in use
        if _lock(descriptor, "LOCK_SH") is not False and _is_same_folder(path, descriptor):
            return descriptor
        os.close(descriptor)
        time.sleep(_PAUSE_S)
    raise StretchError(f"{path} is being removed", "try again after its removal")


def _lock(descriptor: int, kind: str) -> bool | None:
    """Return whether a lock on a folder could be taken; None on a file system without locks."""
    try:
        system.fcntl.flock(descriptor, getattr(system.fcntl, kind) | system.fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_same_folder(path: Path, descriptor: int) -> bool:
    """Return whether the path still names the folder of the descriptor."""
    opened = os.fstat(descriptor)
    try:
        current = os.stat(path)
    except OSError:
        return False
    return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)
