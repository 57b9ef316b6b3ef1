"""Fill the tables and numbers of README and docs from records: `python -m experiments.render [--check]`.

Two markers, invisible on the page::

    <!-- table experiments/executor/results/host.json#efficiency -->
    …written by this program…
    <!-- /table -->

    takes <!-- value experiments/main_job/results/host.json#phases/plan/seconds -->4.2<!-- /value --> s

A value is named by table, row (its first column) and column.
"""

import argparse
import math
import re
import sys
from pathlib import Path

from experiments.records import Record, Value, read_record
from predictors.errors import StretchError

ROOT = Path(__file__).resolve().parents[1]

TABLE = re.compile(r"(<!-- table (\S+?)#(\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
VALUE = re.compile(r"(<!-- value (\S+?)#([^/\s]+)/([^/>]+)/([^/>]+?) -->).*?(<!-- /value -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may show records."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")])


def render(text: str, where: str, root: Path = ROOT) -> str:
    """The page with all its markers filled.

    Args:
        text: The page.
        where: Its name, for errors.
        root: Folder that record names are relative to.

    Raises:
        StretchError: If a marker names a record, table, row or column that is not there.
    """

    def table(match: re.Match[str]) -> str:
        opening, file, name, closing = match.groups()
        return opening + markdown_table(_record(root, file, where), name, where) + closing

    def value(match: re.Match[str]) -> str:
        opening, file, name, row, column, closing = match.groups()
        return opening + show(_value(_record(root, file, where), name, row, column, where)) + closing

    return VALUE.sub(value, TABLE.sub(table, text))


def markdown_table(record: Record, name: str, where: str) -> str:
    """One table of a record, and below it what its numbers depend on."""
    rows = _table(record, name, where)
    columns = list(rows[0])
    numeric = [all(isinstance(row[c], int | float) or row[c] is None for row in rows) for c in columns]
    lines = [
        "| " + " | ".join(column.replace("_", " ") for column in columns) + " |",
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
        *("| " + " | ".join(show(row[c]) for c in columns) + " |" for row in rows),
        "",
        provenance(record),
        "",
    ]
    return "\n".join(lines)


def provenance(record: Record) -> str:
    """One sentence: source, machine, versions, load, runs."""
    machine = record.machine
    versions = ", ".join(f"{name} {record.versions[name]}" for name in ("nn-stretch", "onnxruntime", "torch") if name in record.versions)
    text = (
        f"*{record.source.capitalize()}* on {record.date}, {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.system}; "
        f"{versions}; load before the run {record.load:g}; {record.runs} run{'s' if record.runs > 1 else ''}. Reproduce: `{record.command}`."
    )
    return " ".join([text, *(note if note.endswith(".") else f"{note}." for note in record.notes)])


def show(value: Value) -> str:
    """A value as it stands in a table: numbers to three digits."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            if value == 0:
                return "0"
            if abs(value) < 0.01:
                return f"{value:.2g}"
            return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
        case int():
            return f"{value:,}".replace(",", " ")
        case _:
            return str(value).replace("|", "\\|")


def _record(root: Path, file: str, where: str) -> Record:
    path = (root / file).resolve()
    if not path.is_relative_to(root.resolve()):
        raise StretchError(f"{where} names the record {file}, which lies outside the repository")
    return read_record(path)


def _table(record: Record, name: str, where: str) -> list[dict[str, Value]]:
    if name not in record.tables:
        raise StretchError(f"{where} shows the table `{name}`, the record of `{record.experiment}` has {', '.join(record.tables)}")
    return record.tables[name]


def _value(record: Record, name: str, row: str, column: str, where: str) -> Value:
    rows = _table(record, name, where)
    found = next((r for r in rows if str(next(iter(r.values()))) == row), None)
    if found is None or column not in found:
        raise StretchError(f"{where} shows `{name}/{row}/{column}`, which the record of `{record.experiment}` does not have")
    return found[column]


def main(words: list[str] | None = None) -> int:
    """Render every page; with ``--check`` change nothing and return 1 if a page is out of date."""
    parser = argparse.ArgumentParser(prog="python -m experiments.render", description="Fill README and docs from records.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    options = parser.parse_args(words)
    stale = []
    try:
        for page in pages():
            text = page.read_text()
            filled = render(text, str(page.relative_to(ROOT)))
            if filled != text:
                stale.append(page.relative_to(ROOT))
                if not options.check:
                    page.write_text(filled)
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    for name in stale:
        sys.stderr.write(f"{name} {'is out of date: run python -m experiments.render' if options.check else 'written'}\n")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
