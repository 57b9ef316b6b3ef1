"""Weights of an archive of torch.export: bytes and what they mean. Nothing is unpickled."""

import math
from collections.abc import Mapping

import msgspec
import torch

from predictors.errors import StretchError
from stretch.models.pt2.archive import MAX_BYTES, Archive
from stretch.models.pt2.program import Payload, Payloads, Tagged, TensorMeta

#: Element types by their number in the format.
TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}

#: Types of half precision, which is computed in single.
HALF = (torch.float16, torch.bfloat16)


def read_weights(archive: Archive, model: str) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constants of a model by name."""
    weights: dict[str, torch.Tensor] = {}
    records: dict[str, bytes] = {}
    left = MAX_BYTES
    for folder, kind in (("data/weights", "weights"), ("data/constants", "constants")):
        for name, payload in _payloads(archive, f"{folder}/{model}_{kind}_config.json").items():
            record = f"{folder}/{payload.path_name}"
            if payload.use_pickle or payload.tensor_meta is None:
                raise StretchError(f"`{name[:80]}` is pickled, and pickles can execute anything", "save a network of plain tensors")
            if record not in records:
                records[record] = archive.read(record)
            tensor = _tensor(name, payload.tensor_meta, records[record])
            left -= tensor.numel() * tensor.element_size()
            if left < 0:
                raise StretchError(f"it has more than {MAX_BYTES / 1e9:.1f} GB of weights", "save a smaller network")
            weights[name] = tensor.float().contiguous() if tensor.dtype in HALF else tensor.contiguous()
    return weights


def _payloads(archive: Archive, name: str) -> Mapping[str, Payload]:
    try:
        return msgspec.json.decode(archive.read(name), type=Payloads).config
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"its list of weights is damaged: {str(error)[:120]}") from error


def _tensor(name: str, meta: TensorMeta, record: bytes) -> torch.Tensor:
    """A weight as it lies in a record, which several may share."""
    dtype = TYPES.get(meta.dtype)
    if dtype is None:
        raise StretchError(f"`{name[:80]}` has element type {meta.dtype}, which no network computes with")
    sizes, strides = [fixed(size) for size in meta.sizes], [fixed(stride) for stride in meta.strides]
    offset, elements = fixed(meta.storage_offset), math.prod(sizes)
    if len(sizes) != len(strides) or len(sizes) > 8 or min([offset, *sizes, *strides]) < 0:
        raise StretchError(f"`{name[:80]}` has sizes {sizes[:8]}, strides {strides[:8]} and offset {offset}")
    if not elements:
        return torch.empty(sizes, dtype=dtype)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if (last + 1) * dtype.itemsize > len(record) or elements * dtype.itemsize > MAX_BYTES:
        raise StretchError(f"`{name[:80]}` reads beyond its {len(record)} bytes")
    # torch warns of memory that must not be written
    flat = torch.frombuffer(bytearray(record[: len(record) // dtype.itemsize * dtype.itemsize]), dtype=dtype)
    return flat.as_strided(sizes, strides, offset)


def fixed(size: Tagged) -> int:
    """A size that is a number."""
    number = size.get("as_int")
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > 1 << 40:
        raise StretchError(f"it has the size {str(size)[:80]}, which is no number")
    return number
