"""Arrays in memory that other processes can map."""

import mmap
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors import system

Array = NDArray[Any]

#: Each array of several begins at a multiple of this many bytes: a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class _SharedPiece:
    """Memory of this process that is a file at the same time."""

    size: int
    file: int
    path: str  # Path by which others open it.
    is_named_file: bool  # Whether it has to be removed.


#: All shared pieces by their first address.
_pieces: dict[int, _SharedPiece] = {}


def shared_bytes(size: int) -> NDArray[np.uint8]:
    """Return the allocate zeros that `describe` can share with other processes.

    The memory lives as long as an array that is a view of it, or a process that has mapped it; the descriptor, as long as the array.
    """
    file, path, is_named = system.shared_file()
    try:
        os.ftruncate(file, max(size, 1))
        array = np.frombuffer(mmap.mmap(file, max(size, 1)), np.uint8, size)
    except BaseException:
        os.close(file)
        raise
    start = array.ctypes.data
    _pieces[start] = _SharedPiece(size, file, path, is_named)
    # nothing is left behind, however this process ends
    weakref.finalize(array, _close_piece, start)
    return array


def shared_like(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays of the shapes and types of others, in one piece of shared memory."""
    if not arrays:
        return []
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = shared_bytes(end)
    return [
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape) for array, start in zip(arrays, starts, strict=True)
    ]


def describe(array: Array) -> dict[str, Any] | None:
    """Return the handle by which another process of this user opens an array; None if its memory is not shared."""
    address = array.ctypes.data
    # a copy made in one step: garbage that is collected on the way takes pieces out
    for start, piece in _pieces.copy().items():
        if start <= address and address + array.nbytes <= start + piece.size:
            return {"file": piece.path, "offset": address - start, "shape": array.shape, "dtype": array.dtype.str}
    return None


def open_array(description: dict[str, Any]) -> Array:
    """Open the array that another process described."""
    return np.memmap(
        description["file"], np.dtype(description["dtype"]), "r+", offset=description["offset"], shape=tuple(description["shape"])
    )


def _close_piece(start: int) -> None:
    piece = _pieces.pop(start)
    os.close(piece.file)
    if piece.is_named_file:
        # Windows keeps a file that is still mapped
        with suppress(OSError):
            os.unlink(piece.path)
