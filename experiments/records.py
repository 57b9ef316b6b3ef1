"""Records of measurements: numbers together with their conditions.

A record is a JSON file ``experiments/<id>/results/<name>.json``. It holds
named tables; every row of a table has the same columns, and the first column
names the row. If the origin of a table, a column or a row differs from that of the
record, ``about`` describes it. README files show tables and single
values from records through `experiments.render`, so that every number is written
only once.
"""

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from predictors.errors import StretchError
from scheduler.cores import available_cores
from stretch.profile.environment import OTHERS, processor_name, version

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 2
#: Mean number of busy processes in the minute before this process, and thus before its run; a later value would include the run.
LOAD = os.getloadavg()[0]

Source = Literal["measured", "simulated", "predicted", "paper"]
#: Repetitions of each number. None if nothing is repeated or, for a part of a record, if the next level above states it.
Runs = int | Literal["not recorded"] | None
Value = bool | int | float | str | None
Row = dict[str, Value]


class Machine(msgspec.Struct, forbid_unknown_fields=True):
    """Machine of a record; None for facts that were not recorded."""

    processor: str  # Name of the processor.
    cores: int | None  # Number of cores the process could use.
    memory_gib: float | None  # Memory of the machine in GiB.
    system: str | None  # Operating system and architecture.


class Commit(msgspec.Struct, forbid_unknown_fields=True):
    """The state of the code that wrote a record."""

    hash: str  # Hash of HEAD.
    dirty: bool  # Whether tracked files other than records differed from the commit.


class Facts(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Origin of numbers; None for facts that the next level above states."""

    source: Source | None = None  # Whether numbers are measured, simulated, predicted or from the paper.
    runs: Runs = None  # Number of repetitions behind each number.
    interleaved: bool | None = None  # Whether the compared networks took turns.


class About(Facts, forbid_unknown_fields=True, omit_defaults=True):
    """Origin of one table's numbers, as far as it differs from the record's."""

    columns: dict[str, Facts] = {}  # Columns that differ from the table.
    rows: dict[str, Facts] = {}  # Rows that differ from the table, by the value in their first column.


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """One run of one experiment."""

    schema: int  # Version of this schema.
    experiment: str  # Folder under ``experiments``.
    source: Source  # Origin of the numbers.
    date: str  # Date of the run, ISO 8601: day, or day and time in UTC.
    commit: Commit | None  # Commit of the code that wrote the record; None if not recorded.
    recorded_in: str | None  # Hash of the commit in which the file was last written, if the writer did not record its own.
    command: str  # Command that reproduces it.
    runs: Runs  # Number of repetitions behind each number; None if nothing is repeated.
    interleaved: bool | None  # Whether networks took turns; None if nothing is compared, or if it was not recorded.
    load: float | None  # Mean number of busy processes in the minute before the run; None if it has no effect.
    machine: Machine | None  # Machine of the run; None if the numbers depend on no machine.
    versions: dict[str, str]  # Versions of the relevant packages.
    tables: dict[str, list[Row]]  # Rows by table name.
    about: dict[str, About] = {}  # Differences of a table, by its name.
    notes: list[str] = []  # Remarks to read before the numbers.
    corrected: list[str] = []  # Changes to the file after the run, and their reasons.

    def facts(self, table: str, row: str = "", column: str = "") -> Facts:
        """Return the origin of a table, or of one of its rows, columns or cells.

        Args:
            table: Name of the table.
            row: Value of the first column; empty for all rows.
            column: Name of the column; empty for all columns.
        """
        about = self.about.get(table, About())
        levels = [Facts(self.source, self.runs, self.interleaved), about, about.rows.get(row, Facts()), about.columns.get(column, Facts())]
        result = Facts()
        for level in levels:
            for name in Facts.__struct_fields__:
                if getattr(level, name) is not None:
                    setattr(result, name, getattr(level, name))
        return result


def this_machine() -> Machine:
    """Return this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(processor_name(), len(available_cores()), round(memory, 1), f"{platform.system()} {platform.machine()}")


def this_commit(root: Path = ROOT) -> Commit | None:
    """Return HEAD of the checkout and whether tracked files differ from it; None outside git.

    Changed records do not count as a difference, because the code writes them.
    """
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)experiments/*/results/*"]
        return Commit(head, bool(subprocess.run(changes, capture_output=True, text=True, check=True).stdout.strip()))
    except (OSError, subprocess.CalledProcessError):
        return None


def now() -> str:
    """Return the day and time in UTC, to the second."""
    return datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")


def write_record(
    path: Path,
    tables: Mapping[str, Sequence[Mapping[str, Value]]],
    *,
    source: Source,
    command: str,
    runs: Runs = None,
    load: float | None = LOAD,
    interleaved: bool | None = None,
    about: Mapping[str, About] | None = None,
    notes: Sequence[str] = (),
    machine: Machine | None = None,
    versions: Mapping[str, str] | None = None,
    date: str | None = None,
) -> Record:
    """Write a record, completely or not at all; this function records the commit.

    Args:
        path: ``experiments/<id>/results/<name>.json``.
        tables: Rows by table name; the first column names the row.
        source: Origin of the numbers.
        command: Command that reproduces it, such as ``python -m experiments.executor.run``.
        runs: Number of repetitions behind each number; None if nothing is repeated.
        load: Mean number of busy processes before the run; None if it has no effect.
        interleaved: Whether networks took turns; None if nothing is compared.
        about: Differences of single tables, columns or rows.
        notes: Remarks to read before the numbers.
        machine: Machine of the measurements, if not this one; a paper has none.
        versions: Packages of that machine, if not this one.
        date: Date of the run, if not now.

    Raises:
        StretchError: If a table has no rows, its rows differ in columns, or
            `about` names a missing table, column or row.
    """
    current = {"python": platform.python_version()} | {name: result for name in ("nn-stretch", *OTHERS) if (result := version(name))}
    record = Record(
        schema=SCHEMA,
        experiment=path.parent.parent.name,
        source=source,
        date=date or now(),
        commit=this_commit(),
        recorded_in=None,
        command=command,
        runs=runs,
        interleaved=interleaved,
        load=None if load is None else round(load, 2),
        machine=None if source == "paper" else machine or this_machine(),
        versions=dict(versions) if versions is not None else current,
        tables={name: [dict(row) for row in rows] for name, rows in tables.items()},
        about=dict(about or {}),
        notes=list(notes),
    )
    save_record(path, record)
    sys.stderr.write(f"{path} written; fill the pages with python -m experiments.render\n")
    return record


def save_record(path: Path, record: Record) -> None:
    """Check a record and write it, completely or not at all.

    Raises:
        StretchError: If the record contradicts itself.
    """
    _check(record, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_record(path: Path) -> Record:
    """Read and check a record.

    Raises:
        StretchError: If the file cannot be read or is not a record.
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
    try:
        datetime.datetime.fromisoformat(record.date)
    except ValueError as error:
        raise StretchError(f"{path} has the date `{record.date}`, which is none in ISO 8601") from error
    if not record.tables:
        raise StretchError(f"{path} has no table")
    for name, rows in record.tables.items():
        _check_table(name, rows, path)
    _check_about(record, path)


def _check_table(name: str, rows: list[Row], path: Path) -> None:
    if not rows or not all(rows):
        raise StretchError(f"table `{name}` of {path} has no rows or an empty one")
    for row in rows:
        if list(row) != list(rows[0]):
            raise StretchError(f"rows of table `{name}` of {path} have different columns: {list(rows[0])} and {list(row)}")


def _check_about(record: Record, path: Path) -> None:
    """Refuse facts about missing tables, rows or columns, and measurements without a number of runs."""
    for name, about in record.about.items():
        if name not in record.tables:
            raise StretchError(f"{path} says something about the table `{name}`, which it does not have")
        rows = record.tables[name]
        names = {str(next(iter(row.values()))) for row in rows}
        strangers = [*(about.columns.keys() - rows[0].keys()), *(about.rows.keys() - names)]
        if strangers:
            raise StretchError(f"{path} says something about `{strangers[0]}`, which table `{name}` does not have")
    for name in record.tables:
        about = record.about.get(name, About())
        for facts in (record.facts(name), about, *about.rows.values(), *about.columns.values()):
            if isinstance(facts.runs, int) and facts.runs < 1:
                raise StretchError(f"{path} has {facts.runs} runs")
        result = record.facts(name)
        if result.source == "measured" and result.runs is None:
            raise StretchError(f"table `{name}` of {path} is measured, and does not say in how many runs")
