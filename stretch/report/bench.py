"""Terminal output of `stretch bench`."""

from typing import TYPE_CHECKING

from scheduler.measure.bench.answer import BenchAnswer, BenchContender
from stretch.report.fit import Fitting, column, plain_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from scheduler.measure.bench.answer import CheckedBench

#: Headings of `cells`, and whether the column is numeric.
HEADINGS = (
    ("measured here", False),
    ("median ms", True),
    ("95 %", True),
    ("another run", True),
    ("p90 ms", True),
    ("of the first", True),
    ("95 % of that", True),
    ("MACs of the first's", True),
    ("difference", True),
)

#: Columns omitted on a narrow and on a very narrow terminal.
_LESS = frozenset({"another run", "p90 ms"})
_LEAST = _LESS | {"95 % of that", "difference", "MACs of the first's"}


def cells(row: BenchContender) -> tuple[str, ...]:
    """Cells of a contender; unknown values are dashes."""
    summary = row.summary
    return (
        row.name,
        f"{summary.median_ms:.3f}",
        _between(summary.low_ms, summary.high_ms, ".3f"),
        _between(summary.repeat_low_ms, summary.repeat_high_ms, ".3f"),
        f"{summary.p90_ms:.3f}",
        f"{summary.ratio:.3f}×",
        _between(summary.ratio_low, summary.ratio_high, ".3f"),
        "–" if row.macs_ratio is None else f"{row.macs_ratio:.3f}",
        "–" if row.max_error is None else f"{row.max_error:.1e}",
    )


def surroundings(answer: BenchAnswer) -> list[tuple[str, str]]:
    """State of the machine, as label and value."""
    seen = answer.conditions
    governors = ", ".join(sorted(set(seen.governors.values()))) or "not told"
    pairs = [
        ("processor", seen.processor),
        ("system", seen.system),
        ("cores", f"{', '.join(map(str, seen.cores))} of {len(seen.process_cores)} that this process may use"),
        ("governor", governors),
        ("frequency, MHz", _pairs(seen.mhz_before, seen.mhz_after, ".0f")),
        ("temperature, °C", _pairs(seen.celsius_before, seen.celsius_after, ".1f")),
        ("load", f"{_known(seen.load_before)} before, {_known(seen.load_after)} after"),
        ("cores' time that the host gave to others", "not told" if seen.stolen is None else f"{seen.stolen:.1%}"),
        ("cores' time in which they computed", "not told" if seen.busy is None else f"{seen.busy:.0%}"),
    ]
    return pairs


def print_bench(console: "Console", answer: BenchAnswer) -> None:
    """Print a row for each contender, what the machine was like and the verdict, in fewer columns where the terminal is narrow."""
    console.print(Fitting([lambda: _table(answer), lambda: _table(answer, _LESS), lambda: _table(answer, _LEAST)]))
    console.print()
    warm = ", ".join(map(str, answer.warmup))
    console.print(
        f"{answer.rounds} rounds in each of {answer.starts} starts, after {warm} to warm up, in {answer.seconds:.1f} s; seed {answer.seed}"
    )
    for label, value in surroundings(answer):
        console.print(f"{label}: {value}")
    console.print(answer.verdict)


def print_check(console: "Console", checked: "CheckedBench") -> None:
    """Print the problems of a measurement, or that there are none."""
    for problem in checked.problems:
        console.print(f"problem: {problem}")
    if checked.ok:
        console.print(
            f"{checked.file} says what its {checked.rounds} times of {checked.contenders} contenders say, and its files are those here"
        )
    else:
        console.print(f"{checked.file} cannot be relied on")


def _table(answer: BenchAnswer, without: frozenset[str] = frozenset()) -> "Table":
    table = plain_table()
    shown = [i for i, (title, _) in enumerate(HEADINGS) if title not in without]
    for i in shown:
        title, right = HEADINGS[i]
        column(table, title, right=right, fold=i == 0)
    for row in answer.contenders:
        text = cells(row)
        table.add_row(*(text[i] for i in shown))
    return table


def _between(low: float | None, high: float | None, form: str) -> str:
    return "–" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def _known(value: float | None) -> str:
    return "not told" if value is None else f"{value:.2f}"


def _pairs(before: "dict[str, float]", after: "dict[str, float]", form: str) -> str:
    both = [f"{name} {value:{form}} → {after[name]:{form}}" for name, value in before.items() if name in after]
    return ", ".join(both) or "not told"
