"""Folders that several processes read and replace at once, and their locks.

A bundle is replaced by exchanging two folders under one name. A reader that opens files by that name could mix two bundles;
so a reader keeps the folder open and opens files through it. A lock shared by readers marks the folder as in use; code that
removes folders takes the lock exclusively first.
"""

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from predictors import system
from predictors.errors import StretchError

#: Attempts to open a folder that is being removed, and the pause between them in seconds.
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
        """Path of the folder that stays valid when another folder takes its name; the name itself on systems without /proc."""
        root = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        return root if root.is_dir() else self._path

    def replace_root(self, text: str) -> str:
        """Return `text` with the folder's name in place of `root`."""
        return text.replace(str(self.root), str(self._path))

    def contains(self, file: Path) -> bool:
        """Return whether a file below `root` is in the folder after resolving all links."""
        while True:
            folder = os.path.realpath(self.root)
            real = os.path.realpath(file)
            if os.path.realpath(self.root) == folder:
                return Path(real).is_relative_to(folder)


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold the shared lock of a folder, so that it is not removed until the block ends.

    Yields:
        The folder's inode number, which identifies it under any name.
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
    """Return a descriptor of the folder at `path`, with the shared lock held."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
        # without locks, no process removes a folder that might be in use
        if _lock(descriptor, "LOCK_SH") is not False and _is_same_folder(path, descriptor):
            return descriptor
        os.close(descriptor)
        time.sleep(_PAUSE_S)
    raise StretchError(f"{path} is being removed", "try again after its removal")


def _lock(descriptor: int, kind: str) -> bool | None:
    """Return whether a lock on a folder was taken; None on a file system without locks."""
    try:
        system.fcntl.flock(descriptor, getattr(system.fcntl, kind) | system.fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_same_folder(path: Path, descriptor: int) -> bool:
    """Return whether the path still refers to the descriptor's folder."""
    opened = os.fstat(descriptor)
    try:
        current = os.stat(path)
    except OSError:
        return False
    return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)
