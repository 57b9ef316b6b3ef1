"""Tables of measured times: CSV with a fixed header, every row checked.

``latencies.csv`` has the times of whole networks, ``kernels.csv`` those of single
kernels inside them; the columns are documented by `Latency` and `KernelLatency`.
A table whose name ends in ``.gz`` is packed.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from predictors.errors import StretchError
from predictors.faults import nearest
from predictors.files import open_regular
from predictors.fusion import KernelCost

#: Maximum time of a row, ms: three hours.
MAX_MS = 1e7

#: Maximum size of an unpacked table, bytes.
MAX_BYTES = 1 << 28

#: Maximum number of rows; the shipped tables have ten thousand.
MAX_ROWS = 2_000_000

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Ms = Annotated[float, msgspec.Meta(gt=0, le=MAX_MS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Least = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of a network on one processor."""

    device: _Text  # Id of the device.
    network: _Text  # Name of the network.
    processor: _Text  # Processor such as ``cpu``.
    core_set: _Text  # Core set such as ``1large``.
    precision: _Text  # Precision such as ``fp32``.
    runtime: _Text  # Runtime and version.
    ms: _Ms  # Time of the network.
    std_ms: Annotated[float, msgspec.Meta(ge=0, le=MAX_MS)] | None = None  # Standard deviation of the runs; empty if unknown.


class KernelLatency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of one kernel of a network; from `kind` on, the fields are those of `predictors.fusion.KernelCost`."""

    device: _Text  # Id of the device.
    network: _Text  # Network that contains the kernel.
    processor: _Text  # Processor such as ``gpu``.
    core_set: _Text  # Core set such as ``all``.
    precision: _Text  # Precision such as ``fp16``.
    runtime: _Text  # Runtime and version.
    kernel: _Text  # Name of the kernel in the runtime.
    implementation: str  # Implementation that the runtime chose.
    kind: _Text  # Kind of the kernel.
    in_channels: _Least  # Input channels of one group.
    out_channels: _Least  # Output channels of one group.
    groups: _Least  # Number of groups.
    taps: _Least  # Positions of the window.
    pixels: _Least  # Output positions.
    reads: _Count  # Elements read.
    writes: _Count  # Elements written.
    weights: _Count  # Weight elements.
    stride: _Least  # Input positions per output position.
    variant: str  # Implementation or operator within the kind; may be empty.
    ms: _Ms  # Time of the kernel.

    @property
    def cost(self) -> KernelCost:
        """Facts that the kernel's time depends on."""
        return KernelCost(*(getattr(self, name) for name in KernelCost._fields))


Row = TypeVar("Row", bound=msgspec.Struct)


def read_table(path: Path, kind: type[Row]) -> list[Row]:
    """Read and check a table."""
    rows: list[Row] = []
    seen: dict[tuple[object, ...], int] = {}
    for line, row in numbered_rows(path, kind):
        key = tuple(getattr(row, field.name) for field in msgspec.structs.fields(kind) if field.name not in ("ms", "std_ms"))
        if key in seen:
            raise StretchError(f"{path}, line {line}: the same measurement is in line {seen[key]}", "keep one of the two, or their median")
        seen[key] = line
        rows.append(row)
    if not rows:
        raise StretchError(f"{path} has a header and no measurement")
    return rows


def numbered_rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table with their line numbers, each row checked alone.

    Raises:
        StretchError: If the file cannot be read, its header is wrong, or a value is invalid; names the line.
    """
    for line, raw in _lines(path, msgspec.structs.fields(kind)):
        yield line, _row(path, line, raw, kind)


def write_table(path: Path, rows: list[Row]) -> None:
    """Write a table for `read_table`."""
    fields = [field.name for field in msgspec.structs.fields(type(rows[0]))]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows(["" if (value := getattr(row, name)) is None else value for name in fields] for row in rows)
    text = stream.getvalue().encode()
    # Without the time of writing, the same rows give the same bytes.
    path.write_bytes(gzip.compress(text, 9, mtime=0) if path.suffix == ".gz" else text)


def _lines(path: Path, columns: Sequence[msgspec.structs.FieldInfo]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows with their line numbers, after checking the header."""
    fields = [column.name for column in columns]
    try:
        with open_regular(path) as binary:
            content = gzip.GzipFile(fileobj=binary).read(MAX_BYTES + 1) if path.suffix == ".gz" else binary.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise StretchError(f"cannot read the measurements {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_BYTES:
        raise StretchError(f"{path} has more than {MAX_BYTES} bytes")
    reader = csv.reader(text.splitlines())
    header = next(reader, [])
    for name in header:
        if name not in fields:
            raise StretchError(
                f"{path}, line 1: `{name}` is no column of such a table", nearest(name, fields) or f"it has {','.join(fields)}"
            )
    if missing := [column.name for column in columns if column.required and column.name not in header]:
        raise StretchError(f"{path}, line 1: the column `{missing[0]}` is missing", f"the columns are {','.join(fields)}")
    if len(set(header)) != len(header):
        raise StretchError(f"{path}, line 1: a column is there twice", f"the header is {','.join(fields)}")
    for count, values in enumerate(reader, start=1):
        if not values:
            continue
        if len(values) != len(header):
            raise StretchError(f"{path}, line {reader.line_num}: it has {len(values)} fields, the header {len(header)}")
        if count > MAX_ROWS:
            raise StretchError(f"{path} has more than {MAX_ROWS} rows")
        yield reader.line_num, dict(zip(header, values, strict=True))


def _row(path: Path, line: int, raw: dict[str, str], kind: type[Row]) -> Row:
    fields = {name: value for name, value in raw.items() if value != "" or name in ("implementation", "variant")}
    if lacking := [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in fields]:
        raise StretchError(f"{path}, line {line}: `{lacking[0]}` is empty", "leave the row out where it was not measured")
    try:
        row = msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        problem, _, location = str(error).partition(" - at ")
        raise StretchError(
            f"{path}, line {line}: `{(column := location.strip('`$.'))}` is wrong: {problem[:1].lower()}{problem[1:]}",
            "times are in ms" if column in ("ms", "std_ms") else None,
        ) from error
    for name in ("ms", "std_ms"):
        if not isfinite(getattr(row, name, None) or 0.0):
            raise StretchError(f"{path}, line {line}: `{name}` is not a finite number", "leave out what was not measured")
    return row
