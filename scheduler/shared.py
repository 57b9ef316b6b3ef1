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

#: Alignment of each of several arrays in bytes: a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class _SharedPiece:
    """Memory of this process that is also a file."""

    size: int
    file: int
    path: str  # Path for other processes.
    is_named_file: bool  # Whether the file must be removed.


#: All shared pieces by their start address.
_pieces: dict[int, _SharedPiece] = {}


def shared_bytes(size: int) -> NDArray[np.uint8]:
    """Return zeros in memory that `describe` can share with other processes.

    The memory lives as long as any array that views it, or any process that maps it; the descriptor lives as long as the array.
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
    # the memory is released however this process ends
    weakref.finalize(array, _close_piece, start)
    return array


def shared_like(arrays: Sequence[Array]) -> list[Array]:
    """Return new arrays with the shapes and types of `arrays`, in one piece of shared memory."""
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
    """Return a description with which another process of this user opens an array; None if its memory is not shared."""
    address = array.ctypes.data
    # iterates over a copy, because a garbage collection may remove pieces during the loop
    for start, piece in _pieces.copy().items():
        if start <= address and address + array.nbytes <= start + piece.size:
            return {"file": piece.path, "offset": address - start, "shape": array.shape, "dtype": array.dtype.str}
    return None


def open_array(description: dict[str, Any]) -> Array:
    """Return the array that another process described."""
    return np.memmap(
        description["file"], np.dtype(description["dtype"]), "r+", offset=description["offset"], shape=tuple(description["shape"])
    )


def _close_piece(start: int) -> None:
    piece = _pieces.pop(start)
    os.close(piece.file)
    if piece.is_named_file:
        # Windows keeps files that are still mapped
        with suppress(OSError):
            os.unlink(piece.path)
