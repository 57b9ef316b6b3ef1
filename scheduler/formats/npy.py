"""Files in .npy format: the header is trusted only if the file has the size that it states."""

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from predictors.errors import StretchError, need
from predictors.files import read_bytes

Array = NDArray[Any]

#: Maximum size of a file, bytes.
MAX_BYTES = 1 << 30

_HINT = "write it with numpy.save(path, array)"


def read_npy(path: Path, noun: str) -> Array:
    """Return the array in a .npy file.

    Args:
        noun: Noun for the file in messages, such as ``input``.
    """
    content = read_bytes(path, noun, MAX_BYTES)
    need(not content.startswith(b"PK\x03\x04"), f"{path} holds several arrays, one is needed", _HINT)
    stream = BytesIO(content)
    # Parsing a header can raise every error of Python's own parser.
    try:
        shape, dtype = _header(stream)
        is_complete = math.prod(shape) * dtype.itemsize == len(content) - stream.tell()
        stream.seek(0)
        array: Array | None = np.load(stream, allow_pickle=False) if is_complete else None
    except Exception as error:
        raise StretchError(f"{path} is not a .npy file of plain numbers", _HINT) from error
    if array is None:
        raise StretchError(f"{path} is not a .npy file of plain numbers: its header says another size", _HINT)
    return array


def _header(stream: BytesIO) -> tuple[tuple[int, ...], "np.dtype[np.generic]"]:
    """Return the shape and element type in a file's header; the stream is left at the first number."""
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = npy_format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"its version is {version}")
    if dtype.kind not in "fiub" or any(n < 0 for n in shape):
        raise ValueError(f"it holds {dtype}")
    return shape, dtype
