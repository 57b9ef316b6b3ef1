"""What a figure is made of: the records that it needs, and how it is drawn from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.paper.chart import as_svg
from experiments.records import ROOT, Record, Row, read_record
from predictors.errors import StretchError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Need:
    """A table of a record."""

    record: str  # Path of the record, from the root of the repository.
    table: str  # Name of the table.
    command: str  # What makes the record.

    def read(self, root: Path = ROOT) -> "Found":
        """The table.

        Args:
            root: Folder that the record's path is relative to.

        Raises:
            StretchError: If there is no such record, with the command that makes it, or it lacks the table.
        """
        path = root / self.record
        if not path.is_file():
            raise StretchError(f"the record {self.record} is missing: make it with `{self.command}`")
        record = read_record(path)
        if self.table not in record.tables:
            raise StretchError(f"the record {self.record} has no table `{self.table}`: make it anew with `{self.command}`")
        return Found(record, self.table)


@dataclass(frozen=True)
class Found:
    """A table that was read."""

    record: Record  # The record.
    table: str  # Name of the table.

    @property
    def rows(self) -> list[Row]:
        """Its rows."""
        return self.record.tables[self.table]

    def row(self, name: str) -> Row:
        """A row by the value of its first column.

        Raises:
            StretchError: If there is none.
        """
        for row in self.rows:
            if str(next(iter(row.values()))) == name:
                return row
        raise StretchError(f"table `{self.table}` of `{self.record.experiment}` has no row `{name}`")

    def value(self, name: str, column: str = "value") -> float:
        """A number by its row and column.

        Raises:
            StretchError: If there is no such row.
        """
        return float(self.row(name)[column] or 0)


#: What papers say of themselves, a table a paper.
PUBLISHED = "experiments/paper/results/published.json"


def published(table: str) -> Need:
    """What a paper says, as one of the needs of a figure.

    Args:
        table: Its name in `experiments.paper.published.PAPERS`.
    """
    return Need(PUBLISHED, table, "python -m experiments.paper.published")


@dataclass(frozen=True)
class Picture:
    """A figure."""

    title: str  # What it shows.
    words: str  # What is to be seen in it, for those who cannot see it.
    needs: Mapping[str, Need]  # Tables that it is drawn from, by the names that drawing has for them.
    draw: Callable[[Mapping[str, Found]], "Figure"]  # Makes the drawing of them.

    def svg(self, name: str, root: Path = ROOT) -> str:
        """The picture as a file.

        Args:
            name: Of its folder.
            root: Folder that records are relative to.

        Raises:
            StretchError: If a record is missing.
        """
        tables = {key: need.read(root) for key, need in self.needs.items()}
        return as_svg(name, self.title, self.words, self.draw(tables))
