"""A folder as it is now, whatever takes its name later.

A bundle is replaced by exchanging two folders under one name. Who opened the
name before and opens a file by it after would mix two bundles; so a reader
holds the folder itself and names files through it. A lock that readers share
says that the folder is in use: whoever removes folders takes it alone first.
"""

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from predictors import system
from predictors.errors import StretchError

#: How often a folder that is just being removed is looked for again, and after how long.
_TRIES, _PAUSE_S = 200, 0.005


class Held:
    """A folder that keeps its files for as long as this object lives."""

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

    def named(self, text: str) -> str:
        """The text with the folder's name in place of `root`."""
        return text.replace(str(self.root), str(self._path))

    def contains(self, file: Path) -> bool:
        """Whether a file below `root` is in the folder once every link is followed."""
        while True:
            before = os.path.realpath(self.root)
            real = os.path.realpath(file)
            if os.path.realpath(self.root) == before:
                return Path(real).is_relative_to(before)


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[int]:
    """Mark a folder as in use, so that nobody removes it, until the block ends.

    Yields:
        The folder's inode number, by which it is known under any name.
    """
    if not system.OPENS_FOLDERS:
        yield os.stat(path).st_ino
        return
    descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            system.fcntl.flock(descriptor, system.fcntl.LOCK_SH | system.fcntl.LOCK_NB)
        yield os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unused(path: Path) -> Iterator[bool]:
    """Take a folder for oneself, to remove it.

    Yields:
        Whether it is ours until the block ends: no, if anybody reads or writes
        it, or if the file system cannot tell.
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
        try:
            system.fcntl.flock(descriptor, system.fcntl.LOCK_EX | system.fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield _is_still(path, descriptor)
    finally:
        os.close(descriptor)


def _open_shared(path: Path) -> int:
    """A descriptor of the folder that has this name, with the shared lock on it."""
    for _ in range(_TRIES):
        descriptor = os.open(path, system.flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
        try:
            if _lock_shared(descriptor) and _is_still(path, descriptor):
                kept, descriptor = descriptor, -1
                return kept
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        time.sleep(_PAUSE_S)
    raise StretchError(f"{path} is being removed", "look again when whoever removes it has ended")


def _lock_shared(descriptor: int) -> bool:
    """Take the shared lock; False if the folder is being removed."""
    try:
        system.fcntl.flock(descriptor, system.fcntl.LOCK_SH | system.fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: nothing there is removed while it could be in use either.
        return True
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the name is still that of the folder behind the descriptor."""
    mine = os.fstat(descriptor)
    try:
        now = os.stat(path)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)
