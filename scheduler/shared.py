"""Arrays in memory that two processes share, and that no file system knows by a name."""

import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.delegates.base import Array

#: Each array begins at a multiple of this many bytes: a cache line.
_ALIGNMENT = 64


class SharedArrays:
    """Arrays like others, in one piece of anonymous memory that lives as long as this object or a process that has mapped it.

    Args:
        like: Arrays whose shapes and types they have.

    Raises:
        OSError: If there is no memory for them.
    """

    def __init__(self, like: Sequence[Array]) -> None:
        starts, end = [], 0
        for array in like:
            starts.append(end)
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        # nothing is left behind, however this process ends
        file = os.memfd_create("nn-stretch")
        self._finalizer = weakref.finalize(self, os.close, file)
        os.ftruncate(file, max(end, 1))
        memory = mmap.mmap(file, max(end, 1))
        self.arrays = [
            np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape) for array, start in zip(like, starts, strict=True)
        ]
        #: What another process of this user opens them by.
        self.described: list[dict[str, Any]] = [
            {"file": f"/proc/{os.getpid()}/fd/{file}", "offset": start, "shape": array.shape, "dtype": array.dtype.str}
            for array, start in zip(like, starts, strict=True)
        ]


def opened(described: dict[str, Any]) -> Array:
    """The array that another process described."""
    return np.memmap(described["file"], np.dtype(described["dtype"]), "r+", offset=described["offset"], shape=tuple(described["shape"]))
