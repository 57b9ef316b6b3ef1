"""Weights of an ONNX file: what they are, checked against the bytes that are there, without making arrays of them."""

import math
from pathlib import Path
from typing import Any

from predictors.errors import StretchError
from scheduler.formats.onnx.shapes.moving import SHORT
from scheduler.formats.onnx.shapes.node import BOOL, FLOAT, FLOAT16, INT8, INT32, INT64, UINT8, KnownTensor, need

#: Element types of weights: bytes of one, and the field that holds them where they are no raw bytes.
TYPES = {
    FLOAT: (4, "float_data"),
    UINT8: (1, "int32_data"),
    INT8: (1, "int32_data"),
    INT32: (4, "int32_data"),
    INT64: (8, "int64_data"),
    BOOL: (1, "int32_data"),
    FLOAT16: (2, "int32_data"),
}

#: Where the bytes of a tensor are, if not in its file.
EXTERNAL = 1


def stored_tensor(tensor: Any, model: Path) -> KnownTensor:
    """What is known of a weight whose bytes are as many as it says: its numbers too, where it is short and inside the file.

    Args:
        tensor: The `onnx.TensorProto`.
    """
    need(tensor.data_type in TYPES, f"weight `{tensor.name}` has element type {tensor.data_type}, which nn-stretch does not write")
    need(all(n >= 0 for n in tensor.dims), f"weight `{tensor.name}` has the shape {list(tensor.dims)}")
    width, field = TYPES[tensor.data_type]
    wanted = math.prod(tensor.dims) * width
    if tensor.data_location == EXTERNAL:
        has = _external_bytes(tensor, model)
    elif tensor.HasField("raw_data"):
        has = len(tensor.raw_data)
    else:
        has = len(getattr(tensor, field)) * width
    need(has == wanted, f"weight `{tensor.name}` has {has} bytes, its shape {list(tensor.dims)} needs {wanted}")
    return KnownTensor(tuple(tensor.dims), tensor.data_type, _short(tensor))


def _external_bytes(tensor: Any, model: Path) -> int:
    """Bytes of a weight in a file of its own, which must reach that far."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = said.get("offset", "0"), said.get("length", "0")
    digits = all(text.isascii() and text.isdigit() and len(text) < 19 for text in (offset, length))
    need(digits, f"weight `{tensor.name}` does not say where it lies in its file")
    file = model.parent / said.get("location", "")
    try:
        size = file.stat().st_size
    except (OSError, ValueError) as error:
        raise StretchError(f"the file of weight `{tensor.name}` cannot be read") from error
    need(int(offset) + int(length) <= size, f"weight `{tensor.name}` lies beyond the end of its file")
    return int(length) if "length" in said else size - int(offset)


def _short(tensor: Any) -> tuple[float, ...] | None:
    """The numbers of a weight that may be a size, a bound or a scale; None of a long one, or one outside the file."""
    import onnx.numpy_helper

    if tensor.data_location == EXTERNAL or math.prod(tensor.dims) > SHORT:
        return None
    return tuple(onnx.numpy_helper.to_array(tensor).ravel().tolist())
