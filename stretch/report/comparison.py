"""Terminal output of `stretch compare`."""

from typing import TYPE_CHECKING

from stretch.comparison.rows import CompareAnswer, ComparedRow
from stretch.planning.sentences import chance
from stretch.report.fit import Fitting, column, plain_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Headings of `cells`, and whether the column is numeric.
HEADINGS = (
    ("what", False),
    ("ms", True),
    ("90 %", True),
    ("from", False),
    ("speed-up", True),
    ("over sequential", True),
    ("MACs", True),
    ("M params", True),
    ("meeting points", True),
    ("agreement", True),
    ("probability", True),
    ("recommended", False),
)

#: Columns omitted on a narrow and on a very narrow terminal.
_LESS = frozenset({"90 %", "M params", "meeting points", "probability"})
_LEAST = _LESS | {"from", "over sequential", "recommended"}


def cells(row: ComparedRow) -> tuple[str, ...]:
    """Cells of a row; unknown values are dashes."""

    def known(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    between = "–" if row.low_ms is None or row.high_ms is None else f"{row.low_ms:.2f} to {row.high_ms:.2f}"
    agreement = "exact" if row.exact else known(row.agreement, ".1%")
    return (
        row.name,
        known(row.ms, ".2f"),
        between,
        "–" if row.ms is None else row.source,
        known(row.speedup, ".2f"),
        known(row.speedup_over_sequential, ".2f"),
        known(row.macs_ratio, ".3f"),
        "–" if row.params is None else f"{row.params / 1e6:.2f}",
        "–" if row.n_meet is None else str(row.n_meet),
        agreement,
        "–" if row.probability is None else chance(row.probability),
        row.recommended or "–",
    )


def print_comparison(console: "Console", answer: CompareAnswer) -> None:
    """Print one row per result, in fewer columns on a narrow terminal."""
    console.print(Fitting([lambda: _table(answer), lambda: _table(answer, _LESS), lambda: _table(answer, _LEAST)]))


def _table(answer: CompareAnswer, without: frozenset[str] = frozenset()) -> "Table":
    table = plain_table()
    shown = [i for i, (title, _) in enumerate(HEADINGS) if title not in without]
    for i in shown:
        title, right = HEADINGS[i]
        column(table, title, right=right, fold=i == 0)
    for row in answer.rows:
        text = cells(row)
        table.add_row(*(text[i] for i in shown))
    return table
