"""Tables that fit the width of the terminal without truncating names or numbers."""

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

#: Creates a table; measuring a table may change it, so each use needs a new one.
Variant = Callable[[], Table]


class Fitting:
    """The first of several variants of a table that is no wider than the terminal.

    Args:
        variants: From the widest to the narrowest. The last one is taken where none fits,
            so its columns should come from `column` with `fold`.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The variant that fits."""
        for variant in self._variants:
            table = variant()
            if Measurement.get(console, options.update(max_width=10_000), table).maximum <= options.max_width:
                break
        yield table


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False)


def column(table: Table, title: str, *, right: bool = False, fold: bool = False) -> None:
    """Add a column whose cells are never shortened.

    Args:
        fold: Whether cells that are too wide go on in the next line; those of other columns are not broken.
    """
    table.add_column(title, justify="right" if right else "left", no_wrap=not fold, overflow="fold")


def table(*titles: str, rows: Iterable[Sequence[str]]) -> Table:
    """A table without lines whose cells wrap.

    Args:
        titles: Of the columns; those of columns of numbers, which are aligned at their right, begin with ``>``.
        rows: The cells of each row.
    """
    filled = plain_table()
    for title in titles:
        filled.add_column(title.removeprefix(">"), justify="right" if title.startswith(">") else "left", overflow="fold")
    for row in rows:
        filled.add_row(*row)
    return filled
