"""Text and tables from records by templates; `experiments.render` writes them into blocks of pages.

A template is text with directives::

    {{ use nets = experiments/main_job/results/predicted.json#matrix }}
    ResNet-50 takes {{ nets/resnet50 pixel6/makespan ms }} ms.
    {{ table nets
    columns: model and device = network | {low:.2f} to {high:.2f} = interval
    rows: resnet50 pixel6 = ResNet-50, Pixel 6 }}
    {{ origin nets }}

``use`` names a table for the directives after it. A value is named by table, row
(its first column) and column, and may end in a format such as ``:.2f`` or ``:.0%``. Without ``rows`` or ``columns`` a table is shown
whole; a column's text may hold several columns in braces, each
with a number of decimals.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path

from experiments.records import Facts, Record, Row, Value, read_record
from predictors.errors import StretchError

DIRECTIVE = re.compile(r"\{\{\s*(.*?)\s*\}\}(\n?)", re.DOTALL)
FIELD = re.compile(r"\{([^{}:]+)(?::\.(\d)f)?\}")


class Tables:
    """Tables of records by name: ``FILE#TABLE``, or a short name from ``use``.

    Args:
        root: Folder that record names are relative to.
        where: Name of the page or template, for errors.
    """

    def __init__(self, root: Path, where: str) -> None:
        self._root, self._where = root, where
        self._named: dict[str, str] = {}

    def use(self, name: str, target: str) -> None:
        """Give a table a short name for the following directives."""
        self._named[name] = target

    def find(self, name: str) -> tuple[Record, str]:
        """Return a table's record and the table's name in it.

        Raises:
            StretchError: If there is no such record or table.
        """
        file, sign, table = self._named.get(name, name).partition("#")
        if not sign:
            raise StretchError(f"{self._where} shows `{name}`, which is no `FILE#TABLE` and which no `use` names")
        path = (self._root / file).resolve()
        if not path.is_relative_to(self._root.resolve()):
            raise StretchError(f"{self._where} names the record {file}, which lies outside the repository")
        record = read_record(path)
        if table not in record.tables:
            raise StretchError(
                f"{self._where} shows the table `{table}`, the record of `{record.experiment}` has {', '.join(record.tables)}"
            )
        return record, table

    def row(self, name: str, row: str) -> Row:
        """Return a row by the value of its first column.

        Raises:
            StretchError: If there is no such row.
        """
        record, table = self.find(name)
        first = next((item for item in record.tables[table] if str(next(iter(item.values()))) == row), None)
        if first is None:
            raise StretchError(f"{self._where} shows the row `{row}` of `{table}`, which the record of `{record.experiment}` does not have")
        return first

    def cell(self, row: Row, column: str, decimals: str | None = None) -> str:
        """Return one value as shown on a page, with these decimals or in the form of `show`.

        Raises:
            StretchError: If there is no such column.
        """
        if column not in row:
            raise StretchError(f"{self._where} shows the column `{column}`, the row `{next(iter(row.values()))}` has {', '.join(row)}")
        result = row[column]
        return f"{result:.{decimals}f}" if decimals and isinstance(result, float) else show(result)


def fill(template: str, where: str, root: Path) -> str:
    """Return a template with all directives replaced, ending in one line feed.

    Raises:
        StretchError: If the template names a missing record, table, row or column.
    """
    tables = Tables(root, where)

    def directive(match: re.Match[str]) -> str:
        word, _, rest = match[1].partition(" ")
        if word == "use":
            name, _, target = rest.partition("=")
            tables.use(name.strip(), target.strip())
            return ""
        makers: dict[str, Callable[[], str]] = {
            "table": lambda: chosen_table(tables, rest),
            "origin": lambda: provenance(*tables.find(rest)),
        }
        return makers.get(word, lambda: value(tables, match[1], where))() + match[2]

    return DIRECTIVE.sub(directive, template).strip() + "\n"


def value(tables: Tables, words: str, where: str) -> str:
    """Return the value ``TABLE/ROW/COLUMN``, where TABLE is a name from ``use``."""
    words, colon, form = words.partition(":.") if re.search(r":\.\d[f%]$", words) else (words, "", "")
    parts = words.split("/", 2)
    if len(parts) != 3:
        raise StretchError(f"{where} holds {{{{ {words} }}}}, which is no TABLE/ROW/COLUMN")
    row = tables.row(parts[0], parts[1])
    text = tables.cell(row, parts[2])
    return f"{row[parts[2]]:.{form}}" if colon else text


def whole_table(root: Path, name: str, where: str) -> str:
    """Return a table with all rows and columns, followed by the conditions of its numbers."""
    tables = Tables(root, where)
    return f"{chosen_table(tables, name)}\n\n{provenance(*tables.find(name))}\n"


def chosen_table(tables: Tables, words: str) -> str:
    """Return a table with the rows and columns in a directive, in its order and with its titles."""
    name, *lines = words.split("\n")
    options = {key.strip(): text for key, _, text in (line.partition(":") for line in lines)}
    record, table = tables.find(name.strip())
    current = record.tables[table]
    columns = choices(options["columns"]) if "columns" in options else {c: c.replace("_", " ") for c in current[0]}
    if "rows" in options:
        titles = choices(options["rows"])
        first = next(iter(current[0]))
        rows = [tables.row(name.strip(), row) | {first: title} for row, title in titles.items()]
    else:
        rows = current
    return markdown_table(tables, columns, rows)


def choices(text: str) -> dict[str, str]:
    """Parse ``a = title | b`` into a dictionary; a name without a title is its own title."""
    pairs = (part.rpartition(" = ") if " = " in part else (part, "", part) for part in text.split("|"))
    return {name.strip(): title.strip() for name, _, title in pairs}


def markdown_table(tables: Tables, columns: dict[str, str], rows: list[Row]) -> str:
    """Return the rows as a Markdown table; columns of numbers are right-aligned."""
    numeric = [column in rows[0] and all(isinstance(row[column], int | float) or row[column] is None for row in rows) for column in columns]

    def cell(row: Row, column: str) -> str:
        return FIELD.sub(lambda m: tables.cell(row, m[1], m[2]), column) if "{" in column else tables.cell(row, column)

    return "\n".join(
        [
            "| " + " | ".join(columns.values()) + " |",
            "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
            *("| " + " | ".join(cell(row, column) for column in columns) + " |" for row in rows),
        ]
    )


def provenance(record: Record, table: str) -> str:
    """Return the conditions of a table's numbers: source, date, commit, machine, versions, load, runs, and differences within it."""
    facts = record.facts(table)
    versions = ", ".join(f"{name} {record.versions[name]}" for name in ("nn-stretch", "onnxruntime", "torch") if name in record.versions)
    parts = [
        f"*{str(facts.source).capitalize()}*, {record.date[:10]}{commit(record)}",
        machine(record),
        versions,
        f"load before the run {record.load:g}" if record.load is not None else "",
        how_often(facts),
    ]
    about = record.about.get(table)
    differing = {**about.rows, **about.columns} if about else {}
    exceptions = [f"`{name}`: {', '.join(filter(None, (item.source, how_often(item))))}." for name, item in differing.items()]
    sentences = ["; ".join(filter(None, parts)) + ".", *exceptions, f"Reproduce: `{record.command}`."]
    remarks = [*record.notes, *(f"Corrected: {item}" for item in record.corrected)]
    return " ".join([*sentences, *(remark if remark.endswith(".") else f"{remark}." for remark in remarks)])


def commit(record: Record) -> str:
    """Return the commit of the code, or the commit in which the file was last written, as text."""
    if record.commit is not None:
        return f", commit {record.commit.hash[:7]}{' with changes' if record.commit.dirty else ''}"
    return f", recorded in {record.recorded_in[:7]}" if record.recorded_in else ""


def machine(record: Record) -> str:
    """Return the machine of a record as text, as far as it is known."""
    result = record.machine
    if result is None or record.source in ("predicted", "paper"):
        return ""
    cores = "cores not recorded" if result.cores is None else f"{result.cores} cores"
    memory = "memory not recorded" if result.memory_gib is None else f"{result.memory_gib:g} GiB"
    return f"{result.processor}, {cores}, {memory}, {result.system or 'system not recorded'}"


def how_often(facts: Facts) -> str:
    """Return the number of runs, and whether networks took turns, as text."""
    runs = "number of runs not recorded" if facts.runs == "not recorded" else f"{facts.runs} run{'s' if facts.runs != 1 else ''}"
    turns = {True: "interleaved", False: "not interleaved", None: ""}[facts.interleaved]
    return ", ".join(filter(None, (runs if facts.runs is not None else "", turns)))


def show(result: Value) -> str:
    """Return a value as shown in a table, numbers with three digits."""
    match result:
        case None:
            return "–"
        case bool():
            return "yes" if result else "no"
        case float():
            if result == 0:
                return "0"
            if abs(result) < 0.01:
                return f"{result:.2g}"
            return f"{result:.{max(0, 2 - math.floor(math.log10(abs(result))))}f}"
        case int():
            return f"{result:,}".replace(",", " ")
        case _:
            return str(result).replace("|", "\\|")
