"""What papers report, as a record: `python -m experiments.paper.published` reads the files with what was copied from them."""

import csv
import sys
from pathlib import Path

from experiments.records import Row, write_record

HERE = Path(__file__).parent
#: Files of copied numbers by the name of their table.
PAPERS = {"tflite_gpu": "paper_000.csv", "raspberry_pi": "paper_001.csv", "stretch": "paper_003.csv", "mali": "paper_004.csv"}


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
        {name: copied(HERE / file) for name, file in PAPERS.items()},
        source="paper",
        command="python -m experiments.paper.published",
        runs=None,
        load=None,
        versions={"papers": ", ".join(file.removeprefix("paper_").removesuffix(".csv") for file in PAPERS.values())},
        notes=[
            "copied from the papers' text; bars and lines of their figures, and tables that are pictures, are not part of that",
            "section `release`: means over the designs whose times the authors of paper 003 published with their code",
        ],
    )
    sys.stderr.write("written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
