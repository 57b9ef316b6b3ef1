"""Atomic exchange of two folders' names, so that a reader always finds one of them."""

import ctypes
import errno
import os
from pathlib import Path

#: "Exchange the two names" and "fail if the new name is taken", from <linux/fs.h>.
_NOREPLACE, _EXCHANGE = 1, 2

#: "Relative to the current folder", from <fcntl.h>.
_AT_FDCWD = -100

#: Errors of kernels and file systems that do not support the flags.
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def exchange(one: Path, other: Path) -> bool:
    """Atomically exchange the names of two folders of one file system.

    Returns:
        Whether it succeeded; False if the system does not support it.
    """
    return _renameat2(one, other, _EXCHANGE)


def place(folder: Path, name: Path) -> bool:
    """Rename a folder to a free name.

    Returns:
        Whether it succeeded; False if the name is taken.
    """
    try:
        if not _renameat2(folder, name, _NOREPLACE):
            # Fails by itself if the name exists, unless as an empty folder.
            folder.rename(name)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _renameat2(old: Path, new: Path, flags: int) -> bool:
    """Call renameat2; False if the flags are not supported."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(old), None, str(new))
