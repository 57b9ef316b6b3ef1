"""One signature of a TFLite file alone, by a few numbers in the file: what a runtime needs that would prepare all of them."""

import struct
from dataclasses import dataclass

from scheduler.bundle.tflite_file import TfliteFile
from scheduler.formats.tflite_schema import TABLES


@dataclass(frozen=True)
class Patch:
    """Four bytes of a file that become another number."""

    at: int  # Where they begin.
    value: int  # The number, little-endian.


def patches(content: bytes, file: TfliteFile, signature: str) -> list[Patch]:
    """What to change in the memory of a file so that it has one signature and its subgraph only.

    A list of a flatbuffer is its length and then an offset for each element,
    relative to where it stands: a list that begins four bytes before an
    element has that element alone, once the four bytes say that it has one.
    Weights stay where they are, so that many such copies share them.

    Args:
        content: The file; `file` is what it was parsed to.
    """
    file.ends(signature)
    definitions = file.model["signature_defs"]
    number = next(i for i, definition in enumerate(definitions) if definition["signature_key"] == signature)
    kept = int(definitions[number].get("subgraph_index", 0))
    model = _u32(content, 0)
    patched = [*_only(content, _slot(content, model, "Model", "subgraphs"), kept)]
    field = _slot(content, model, "Model", "signature_defs")
    patched += _only(content, field, number)
    vector = field + _u32(content, field)
    entry = vector + 4 + 4 * number
    index = _slot(content, entry + _u32(content, entry), "SignatureDef", "subgraph_index")
    if index:  # left out where it is 0 already
        patched.append(Patch(index, 0))
    return patched


def _only(content: bytes, field: int, element: int) -> tuple[Patch, Patch]:
    """Let the list that a field points to begin at one of its elements, and end there."""
    length = field + _u32(content, field) + 4 * element
    return Patch(field, length - field), Patch(length, 1)


def _slot(content: bytes, table: int, kind: str, field: str) -> int:
    """Where a field of a table stands; 0 if it was left out."""
    index = table - struct.unpack_from("<i", content, table)[0]
    place = 4 + 2 * TABLES[kind][field][0]
    if place >= struct.unpack_from("<H", content, index)[0]:
        return 0
    offset = int(struct.unpack_from("<H", content, index + place)[0])
    return table + offset if offset else 0


def _u32(content: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", content, at)[0])
