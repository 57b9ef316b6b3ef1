"""Tables of measured times: CSV with a fixed header, every row checked.

``latencies.csv`` has the time of whole networks, ``kernels.csv`` that of single
kernels inside them; what the columns mean is told by `Latency` and `KernelLatency`.
A table whose name ends in ``.gz`` is packed.
"""

import csv
import gzip
import io
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from predictors.errors import StretchError
from predictors.faults import nearest
from predictors.files import open_regular
from predictors.fusion import KernelCost

#: Longest time that is believed: three hours.
MAX_MS = 1e7

#: Bytes of one table, unpacked.
MAX_BYTES = 1 << 28

#: Rows of one table; those that ship have ten thousand.
MAX_ROWS = 2_000_000

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Ms = Annotated[float, msgspec.Meta(gt=0, le=MAX_MS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Least = Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of a network on one processor.

    Args:
        device: Id of the device.
        network: Name of the network.
        processor: Such as ``cpu``.
        core_set: Such as ``1large``.
        precision: Such as ``fp32``.
        runtime: Runtime and version.
        ms: Its time.
        std_ms: Standard deviation of its runs; empty where not known.
    """

    device: _Text
    network: _Text
    processor: _Text
    core_set: _Text
    precision: _Text
    runtime: _Text
    ms: _Ms
    std_ms: Annotated[float, msgspec.Meta(ge=0, le=MAX_MS)] | None = None


class KernelLatency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time of one kernel of a network; from `kind` on the fields of `predictors.fusion.KernelCost`.

    Args:
        device: Id of the device.
        network: Network that it is part of.
        processor: Such as ``gpu``.
        core_set: Such as ``all``.
        precision: Such as ``fp16``.
        runtime: Runtime and version.
        kernel: Name of the kernel, as the runtime tells it.
        implementation: Which of its implementations the runtime chose.
        kind: Kind of the kernel.
        in_channels: Input channels of one group.
        out_channels: Output channels of one group.
        groups: Groups.
        taps: Positions of the window.
        pixels: Output positions.
        reads: Elements read.
        writes: Elements written.
        weights: Weight elements.
        stride: Input positions for each output position.
        variant: Implementation or operator within the kind; may be empty.
        ms: Its time.
    """

    device: _Text
    network: _Text
    processor: _Text
    core_set: _Text
    precision: _Text
    runtime: _Text
    kernel: _Text
    implementation: str
    kind: _Text
    in_channels: _Least
    out_channels: _Least
    groups: _Least
    taps: _Least
    pixels: _Least
    reads: _Count
    writes: _Count
    weights: _Count
    stride: _Least
    variant: str
    ms: _Ms

    @property
    def cost(self) -> KernelCost:
        """What its time depends on."""
        return KernelCost(*(getattr(self, name) for name in KernelCost._fields))


Row = TypeVar("Row", Latency, KernelLatency)


def read_table(path: Path, kind: type[Row]) -> list[Row]:
    """A table, checked.

    Args:
        path: CSV file in UTF-8 with the header that `kind` has.
        kind: `Latency` or `KernelLatency`.

    Raises:
        StretchError: If the file cannot be read, its header differs, a number is
            missing, absurd or not finite, a row is there twice or there is none; names line and field.
    """
    found: list[Row] = []
    seen: dict[tuple[object, ...], int] = {}
    for line, raw in _lines(path, [field.name for field in msgspec.structs.fields(kind)]):
        row = _row(path, line, raw, kind)
        key = tuple(getattr(row, field.name) for field in msgspec.structs.fields(kind) if field.name not in ("ms", "std_ms"))
        if key in seen:
            raise StretchError(
                f"{path}, line {line}: the same measurement stands in line {seen[key]}", "keep one of the two, or their median"
            )
        seen[key] = line
        found.append(row)
    if not found:
        raise StretchError(f"{path} has a header and no measurement")
    return found


def write_table(path: Path, rows: list[Row]) -> None:
    """Write a table that `read_table` reads.

    Args:
        path: File to write.
        rows: At least one.
    """
    fields = [field.name for field in msgspec.structs.fields(type(rows[0]))]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows(["" if (value := getattr(row, name)) is None else value for name in fields] for row in rows)
    text = stream.getvalue().encode()
    # Without the time of writing, the same rows give the same bytes.
    path.write_bytes(gzip.compress(text, 9, mtime=0) if path.suffix == ".gz" else text)


def _lines(path: Path, fields: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their line, once the header is known to be right."""
    try:
        with open_regular(path) as binary:
            content = gzip.GzipFile(fileobj=binary).read(MAX_BYTES + 1) if path.suffix == ".gz" else binary.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, EOFError, ValueError) as error:
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
    if missing := [name for name in fields if name not in header]:
        raise StretchError(f"{path}, line 1: the column `{missing[0]}` is missing", f"the header is {','.join(fields)}")
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
    given = {name: value for name, value in raw.items() if value != "" or name in ("implementation", "variant")}
    if lacking := [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in given]:
        raise StretchError(f"{path}, line {line}: `{lacking[0]}` is empty", "leave the row out where it was not measured")
    try:
        row = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        raise StretchError(
            f"{path}, line {line}: `{where.strip('`$.')}` is wrong: {what[:1].lower()}{what[1:]}", "times are in ms"
        ) from error
    for name in ("ms", "std_ms"):
        if not isfinite(getattr(row, name, None) or 0.0):
            raise StretchError(f"{path}, line {line}: `{name}` is not a finite number", "leave out what was not measured")
    return row
