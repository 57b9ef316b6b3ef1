"""Records of measurements: numbers together with what they depend on.

A record is a JSON file ``experiments/<id>/results/<name>.json``. It holds
named tables; every row of a table has the same columns, and the first column
names the row. README files show tables and single values from records through
`experiments.render`, so that a number is written down once.
"""

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from predictors.errors import StretchError
from stretch.environment import OTHERS, cores, processor_name, version

SCHEMA = 1

Value = bool | int | float | str | None
Row = dict[str, Value]


class Machine(msgspec.Struct, forbid_unknown_fields=True):
    """Where a record was made.

    Args:
        processor: Name of the processor.
        cores: Number of cores the process could use.
        memory_gib: Memory of the machine.
        system: Operating system and architecture.
    """

    processor: str
    cores: int
    memory_gib: float
    system: str


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """One run of one experiment.

    Args:
        schema: Version of this schema.
        experiment: Folder under ``experiments``.
        source: How the numbers came about.
        date: Day of the run.
        command: What reproduces it.
        runs: Number of repetitions behind each number.
        load: Mean number of busy processes over the minute before the run.
        machine: Where it ran.
        versions: Versions of the packages that matter.
        tables: Rows by table name.
        notes: What a reader must know before the numbers.
    """

    schema: int
    experiment: str
    source: Literal["measured", "simulated", "predicted", "paper"]
    date: str
    command: str
    runs: int
    load: float
    machine: Machine
    versions: dict[str, str]
    tables: dict[str, list[Row]]
    notes: list[str] = []


def this_machine() -> Machine:
    """The machine this runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(processor_name(), len(cores()), round(memory, 1), f"{platform.system()} {platform.machine()}")


def write_record(
    path: Path,
    tables: Mapping[str, Sequence[Mapping[str, Value]]],
    *,
    source: Literal["measured", "simulated", "predicted", "paper"],
    command: str,
    runs: int,
    load: float,
    notes: Sequence[str] = (),
    machine: Machine | None = None,
    versions: Mapping[str, str] | None = None,
) -> Record:
    """Write a record, whole or not at all.

    Args:
        path: ``experiments/<id>/results/<name>.json``.
        tables: Rows by table name; the first column names the row.
        source: How the numbers came about.
        command: What reproduces it, such as ``python -m experiments.executor.run``.
        runs: Number of repetitions behind each number.
        load: ``os.getloadavg()[0]``, taken before the run: afterwards it is the run itself.
        notes: What a reader must know before the numbers.
        machine: Where the numbers were measured, if not here.
        versions: Packages there, if not here.

    Raises:
        StretchError: If a table has no rows or its rows differ in columns.
    """
    here = {"python": platform.python_version()} | {name: found for name in ("nn-stretch", *OTHERS) if (found := version(name))}
    record = Record(
        SCHEMA,
        path.parent.parent.name,
        source,
        datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        command,
        runs,
        round(load, 2),
        machine or this_machine(),
        dict(versions) if versions is not None else here,
        {name: [dict(row) for row in rows] for name, rows in tables.items()},
        list(notes),
    )
    _check(record, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return record


def read_record(path: Path) -> Record:
    """Read and check a record.

    Raises:
        StretchError: If the file cannot be read or is no record.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except OSError as error:
        raise StretchError(f"cannot read the record {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is no record: {error}") from error
    _check(record, path)
    return record


def _check(record: Record, path: Path) -> None:
    if record.schema != SCHEMA:
        raise StretchError(f"{path} has record schema {record.schema}, this program knows {SCHEMA}")
    if path.parent.parent.name != record.experiment:
        raise StretchError(f"{path} belongs to the experiment `{record.experiment}`, it lies in `{path.parent.parent.name}`")
    if record.runs < 1:
        raise StretchError(f"{path} has {record.runs} runs")
    if not record.tables:
        raise StretchError(f"{path} has no table")
    for name, rows in record.tables.items():
        if not rows or not all(rows):
            raise StretchError(f"table `{name}` of {path} has no rows or an empty one")
        for row in rows:
            if list(row) != list(rows[0]):
                raise StretchError(f"rows of table `{name}` of {path} have different columns: {list(rows[0])} and {list(row)}")
