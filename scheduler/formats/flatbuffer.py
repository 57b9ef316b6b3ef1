"""Flatbuffers as dictionaries: read with a check of every offset, and written, by a table of their fields.

Runtimes follow a file's offsets unchecked. In a file that was read here, no offset
leads out of the file, and every field is in the schema.

Source: "FlatBuffers internals", https://flatbuffers.dev/internals/.
"""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from predictors.errors import StretchError

#: Fields of each table by name, each with slot and type. A type is a scalar, ``string``,
#: ``[scalar]``, a table, ``[table]``, or ``field?union``: the table selected by the
#: number in ``field``.
Tables = Mapping[str, Mapping[str, tuple[int, str]]]
Unions = Mapping[str, Mapping[int, str]]

SCALARS = {"bool": "?", "i8": "b", "u8": "B", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f"}

#: Maximum number of parts of a file, so that reading ends even if a file refers to one part again and again.
MAX_PARTS = 500_000

#: Alignment of data, which suits vector instructions.
DATA_ALIGNMENT = 16


class Flatbuffer:
    """Reads and writes flatbuffers of one schema.

    Args:
        tables: Tables of the schema.
        root: Table at the start of a file.
        identifier: Four bytes that identify a file.
    """

    def __init__(self, tables: Tables, unions: Unions, root: str, identifier: bytes) -> None:
        self.tables = tables
        self.unions = unions
        self._root = root
        self._identifier = identifier

    def decode(self, data: bytes | memoryview, *, allow_unknown: bool = False) -> dict[str, Any]:
        """Return the root table; absent fields are left out.

        Vectors of numbers are returned as arrays that share the memory of `data`.
        """
        if bytes(data[4:8]) != self._identifier:
            raise StretchError("it does not begin like one")
        reader = _Reader(self, memoryview(data), allow_unknown)
        return reader.table(self._root, reader.offset(0))

    def encode(self, value: Mapping[str, Any]) -> bytearray:
        """Return a file with `value` as its root table; fields that are left out have their defaults."""
        writer = _Writer(self)
        writer.data += struct.pack("<I", 0) + self._identifier
        writer.refer(0, writer.table(self._root, value))
        return writer.data


class _Reader:
    def __init__(self, schema: Flatbuffer, data: memoryview, allow_unknown: bool) -> None:
        self._schema = schema
        self._data = data
        self._allow_unknown = allow_unknown
        self._remaining = MAX_PARTS

    def _number(self, code: str, offset: int) -> Any:
        if offset < 0 or offset + struct.calcsize(code) > len(self._data):
            raise StretchError(f"an offset leads out of it, to {offset}")
        return struct.unpack_from(f"<{code}", self._data, offset)[0]

    def offset(self, offset: int) -> int:
        return offset + int(self._number("I", offset))

    def _spend(self, parts: int) -> None:
        self._remaining -= parts
        if self._remaining < 0:
            raise StretchError(f"it has more than {MAX_PARTS} parts")

    def table(self, name: str, start: int) -> dict[str, Any]:
        self._spend(1)
        fields = self._schema.tables[name]
        index = start - int(self._number("i", start))
        size, length = self._number("H", index), self._number("H", index + 2)
        if size < 4 or size % 2 or length < 4 or start + length > len(self._data):
            raise StretchError(f"a {name} in it has no proper index")
        slots = [self._number("H", index + offset) for offset in range(4, size, 2)]
        declared = {slot for slot, _ in fields.values()}
        if not self._allow_unknown and any(offset and slot not in declared for slot, offset in enumerate(slots)):
            raise StretchError(f"a {name} in it has a field that nn-stretch does not write")
        table: dict[str, Any] = {}
        # the number that selects a union's table is read before the union
        for field, (slot, kind) in sorted(fields.items(), key=lambda entry: entry[1][0]):
            if slot >= len(slots) or not slots[slot]:
                continue
            if slots[slot] + struct.calcsize(SCALARS.get(kind, "I")) > length:
                raise StretchError(f"`{field}` of a {name} in it lies outside of its table")
            if self._is_read(kind, table):
                table[field] = self._field(name, kind, start + slots[slot], table)
        return table

    def _is_read(self, kind: str, fields: Mapping[str, Any]) -> bool:
        """Return whether a field is read: not if it is a table of an unknown kind in a union, where unknown fields are allowed."""
        chooser, _, union = kind.partition("?")
        return not (union and self._allow_unknown) or fields.get(chooser, 0) in self._schema.unions[union]

    def _field(self, name: str, kind: str, offset: int, fields: Mapping[str, Any]) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind], offset)
        start = self.offset(offset)
        if kind == "string":
            return self._string(start)
        if kind.startswith("["):
            return self._vector(kind[1:-1], start)
        if "?" in kind:
            chooser, _, union = kind.partition("?")
            number = fields.get(chooser, 0)
            if number not in self._schema.unions[union]:
                raise StretchError(f"a {name} in it has {union} number {number}, which nn-stretch does not write")
            kind = self._schema.unions[union][number]
        return self.table(kind, start)

    def _count(self, offset: int, width: int) -> int:
        count = int(self._number("I", offset))
        if offset + 4 + count * width > len(self._data):
            raise StretchError(f"a list of {count} elements leads out of it")
        return count

    def _string(self, offset: int) -> str:
        count = self._count(offset, 1)
        self._spend(1)
        try:
            return bytes(self._data[offset + 4 : offset + 4 + count]).decode()
        except UnicodeDecodeError as error:
            raise StretchError("a name in it is no text") from error

    def _vector(self, kind: str, offset: int) -> Any:
        if kind in SCALARS:
            width = struct.calcsize(SCALARS[kind])
            count = self._count(offset, width)
            self._spend(1)
            return np.frombuffer(self._data, np.dtype(f"<{SCALARS[kind]}"), count, offset + 4)
        count = self._count(offset, 4)
        return [self.table(kind, self.offset(offset + 4 + 4 * i)) for i in range(count)]


class _Writer:
    """Writes parents before their children, because offsets point forward."""

    def __init__(self, schema: Flatbuffer) -> None:
        self.data = bytearray()
        self._schema = schema

    def refer(self, offset: int, target: int) -> None:
        struct.pack_into("<I", self.data, offset, target - offset)

    def _align(self, alignment: int, after: int = 0) -> None:
        """Add padding so that data starting `after` bytes later is aligned."""
        self.data += bytes(-(len(self.data) + after) % alignment)

    def table(self, name: str, value: Mapping[str, Any]) -> int:
        fields = self._schema.tables[name]
        present = [(slot, kind, value[field]) for field, (slot, kind) in fields.items() if field in value]
        # With the widest fields first, no padding is needed between fields.
        present.sort(key=lambda entry: -struct.calcsize(SCALARS.get(entry[1], "I")))
        index = [0] * (1 + max((slot for slot, _, _ in present), default=-1))
        length = 4
        for slot, kind, _ in present:
            width = struct.calcsize(SCALARS.get(kind, "I"))
            length += -length % width
            index[slot] = length
            length += width
        self._align(2)
        start = len(self.data)
        self.data += struct.pack(f"<{2 + len(index)}H", 4 + 2 * len(index), length, *index)
        self._align(8)
        offset = len(self.data)
        self.data += bytes(length)
        struct.pack_into("<i", self.data, offset, offset - start)
        for slot, kind, content in present:
            if kind in SCALARS:
                struct.pack_into(f"<{SCALARS[kind]}", self.data, offset + index[slot], content)
            else:
                self.refer(offset + index[slot], self._part(kind, content, value))
        return offset

    def _part(self, kind: str, content: Any, siblings: Mapping[str, Any]) -> int:
        if kind == "string":
            text = content.encode()
            return self._list(len(text), text + b"\0", 4)
        if kind.startswith("[") and kind[1:-1] in SCALARS:
            row = np.ascontiguousarray(content, np.dtype(f"<{SCALARS[kind[1:-1]]}"))
            return self._list(len(row), row.data, DATA_ALIGNMENT if kind == "[u8]" else row.itemsize)
        if kind.startswith("["):
            offset = self._list(len(content), bytes(4 * len(content)), 4)
            for i, part in enumerate(content):
                self.refer(offset + 4 + 4 * i, self.table(kind[1:-1], part))
            return offset
        if "?" in kind:
            chooser, _, union = kind.partition("?")
            kind = self._schema.unions[union][siblings[chooser]]
        return self.table(kind, content)

    def _list(self, count: int, content: bytes | memoryview, alignment: int) -> int:
        self._align(max(4, alignment), 4)
        offset = len(self.data)
        self.data += struct.pack("<I", count)
        self.data += content
        return offset
