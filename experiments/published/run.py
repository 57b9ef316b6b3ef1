"""What papers report, as a record: `python -m experiments.published.run` reads the files with what was copied from them."""

import csv
import sys
from pathlib import Path

from experiments.records import Row, write_record

HERE = Path(__file__).parent


def copied(path: Path) -> list[Row]:
    """The numbers of a file that was copied from a paper's text by hand.

    Args:
        path: A table with the columns ``published``, ``value``, ``unit`` and ``section``.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return [{**row, "value": float(row["value"])} for row in csv.DictReader(file)]


def main() -> int:
    """Write ``results/published.json``."""
    write_record(
        HERE / "results" / "published.json",
        {"stretch": copied(HERE / "paper_003.csv")},
        source="paper",
        command="python -m experiments.published.run",
        runs=None,
        load=None,
        versions={"paper": "003"},
        notes=["copied from the paper's text, paper 003; the bars of its figures are not part of that"],
    )
    sys.stderr.write("written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
