"""Reports and tables for terminals; they fit the width without truncated names or numbers."""

from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stretch.report.html.page import Bar, Chart, Fact, Grid, Page

#: Maximum and minimum width of a timeline's bars, characters.
BAR_WIDTH, _LEAST_BAR = 72, 20


def table(*titles: str, rows: Iterable[Sequence[str]]) -> Table:
    """Return a table without lines and with wrapped cells.

    Args:
        titles: Titles of the columns; a title that begins with ``>`` marks a column of numbers, aligned to the right.
    """
    filled = Table(box=None, pad_edge=False)
    for title in titles:
        filled.add_column(title.removeprefix(">"), justify="right" if title.startswith(">") else "left", overflow="fold")
    for row in rows:
        filled.add_row(*row)
    return filled


#: Maximum width of a brief answer, characters.
BRIEF_WIDTH = 80


def print_page(console: Console, page: Page, answered: Callable[[], None] = lambda: None, *, brief: bool = False) -> None:
    """Print a report: its answer, then facts, tables and timelines unless `brief`, and the next commands.

    Args:
        answered: Called after the answer.
    """
    width = min(BRIEF_WIDTH, console.width)
    parted = False

    def part() -> None:
        """Print an empty line between parts."""
        nonlocal parted
        if parted:
            console.print()
        parted = True

    for line in page.head:
        if isinstance(line, Grid):
            console.print()
            _print_grid(console, line, width)
        else:
            console.print(line, width=width if page.brief else None, soft_wrap=not page.brief)
        parted = True
    if page.head:
        answered()
    if not brief or not page.brief:
        _print_rest(console, page, part)
    for line in page.following:
        if brief or "--details" not in line:
            # commands are not wrapped, so that they can be copied
            console.print(line, soft_wrap=True)


def _print_rest(console: Console, page: Page, part: Callable[[], None]) -> None:
    if page.facts and page.facts_printed:
        part()
        console.print(_facts(page.facts))
    for section in page.sections:
        parts = [part for part in section.parts if not isinstance(part, Chart) or part.groups] if section.printed else []
        if not parts and not (section.printed and section.words):
            continue
        part()
        for sentence in section.words:
            console.print(sentence, soft_wrap=True)
        for shown in parts:
            if isinstance(shown, Grid):
                _print_grid(console, shown)
            elif isinstance(shown, Chart):
                _print_timeline(console, shown)
    if page.notes:
        part()
        for sentence in page.notes:
            console.print(sentence, soft_wrap=True)


def _facts(facts: Sequence[Fact]) -> Table:
    filled = Table(box=None, pad_edge=False, show_header=False)
    filled.add_column(no_wrap=True)
    filled.add_column(overflow="fold")
    for fact in facts:
        filled.add_row(fact.label, f"{fact.value} ({fact.note})" if fact.note else fact.value)
    return filled


def _print_grid(console: Console, grid: Grid, width: int | None = None) -> None:
    """Print a table, its widest text column wrapped between words if necessary; one paragraph per row if its longest words do not fit."""
    cells = list(zip(grid.columns, *grid.rows, strict=True))
    widths = [max(map(cell_len, column_cells)) for column_cells in cells]
    text = [i for i in range(len(widths)) if i not in grid.right]
    folded = max(text, key=lambda i: widths[i], default=None)
    longest = 0 if folded is None else max(cell_len(word) for cell in cells[folded] for word in cell.split() or [""])
    # one character separates two columns
    room = (console.width if width is None else width) - (len(widths) - 1)
    if sum(widths) <= room or (folded is not None and sum(widths) - widths[folded] + longest <= room):
        filled = Table(box=None, pad_edge=False)
        for i, title in enumerate(grid.columns):
            filled.add_column(title, justify="right" if i in grid.right else "left", no_wrap=i != folded, overflow="fold")
        for row in grid.rows:
            filled.add_row(*row)
        console.print(filled, width=width)
        return
    for first, *others in grid.rows:
        console.print(Text(first, overflow="fold"), width=width)
        pairs = (f"{title} {cell}" for title, cell in zip(grid.columns[1:], others, strict=True) if cell)
        console.print(Padding(Text("; ".join(pairs), overflow="fold"), (0, 0, 0, 2)), width=width)


def _print_timeline(console: Console, chart: Chart) -> None:
    """Print a timeline as text bars, up to the terminal's width: a line for each row, and a legend."""
    for group, bars in chart.groups.items():
        label = max(len(bar.row) for bar in bars)
        width = max(_LEAST_BAR, min(BAR_WIDTH, console.width - label - 3))
        lines = text_bars(bars, chart.total_ms, width)
        for line in [group, *lines] if len(chart.groups) > 1 else lines:
            console.print(Text(line))


def text_bars(bars: Sequence[Bar], total_ms: float, width: int = BAR_WIDTH) -> list[str]:
    """Return one line of text per row, with marks for computing (#), moving data (~), use by others (o) and waiting (.), and a legend."""
    rows = {name: ["."] * width for name in dict.fromkeys(bar.row for bar in bars)}
    label = max(map(len, rows))
    marks = [" "] * width
    for bar in sorted(bars, key=lambda bar: bar.start_ms):
        first, last = (round(ms / total_ms * width) for ms in (bar.start_ms, bar.start_ms + bar.ms))
        for column in range(max(0, first), min(width, last)):
            rows[bar.row][column] = {"computing": "#", "others": "o"}.get(bar.kind, "~")
        end = first + len(bar.label)
        # write a label if it stays within the row and does not touch the previous label
        if bar.kind == "computing" and first >= 0 and end <= width and not "".join(marks[max(0, first - 1) : end + 1]).strip():
            marks[first:end] = bar.label
    others_legend = "  o taken by others" if any(bar.kind == "others" for bar in bars) else ""
    return [
        *(f"{name:<{label}} |{''.join(row)}|" for name, row in rows.items()),
        f"{'':<{label}}  {''.join(marks)}".rstrip(),
        f"{'':<{label}}  # computes  ~ moves data{others_legend}  . waits; the whole is {total_ms:.2f} ms",
    ]
