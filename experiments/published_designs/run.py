"""Predict published designs beside what was measured of them: `python -m experiments.published_designs.run [FILE.csv…] [--out RECORD.json]`.

With files, their designs are predicted and told; nothing is written unless ``--out`` names a record. Without, the
project's own record is made from `designs.csv`. `README.md` says what a file holds.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.published_designs.designs_file import PublishedDesign, read_designs
from experiments.published_designs.hexagon import hexagon_rows
from experiments.published_designs.predict import BASES, Prediction, alone_rows, design_row, errors, predict
from experiments.published_designs.stage import stage_rows
from experiments.records import About, Facts, Row, write_record
from predictors.errors import StretchError

HERE = Path(__file__).parent
OWN = HERE / "designs.csv"
#: The design whose place among others is told.
STAGE = "EfficientNet-B5, stage 5"
NOTES = (
    "measured: as the file of designs has it; predicted: from the profile of version 0.1.0 and from the one fitted to public measurements of a phone with the same chip, whose CPU is three of its cores and whose DSP is calibrated by that phone's.",
    "with measured processors: each processor is as fast as was measured of the network as it is; exchanges, joins and the division are predicted. No measured time of a design goes into any prediction.",
    "The profile of version 0.1.0 was adjusted until ResNet-50 on each processor, and EfficientNet-Lite4 on the DSP, came near what is published: its errors there say nothing.",
)


def tables_of(designs: Sequence[PublishedDesign]) -> dict[str, list[Row]]:
    """Every table of a record that has a row; designs that do not fit their network stand in one of their own.

    Args:
        designs: As read.

    Raises:
        StretchError: If none fits.
    """
    rows: dict[str, list[Row]] = {"errors": [], "designs": [], "alone": [], "refused": []}
    first: list[Prediction] = []
    why = None
    for design in designs:
        try:
            first.append(predict(design, BASES[0]))
        except StretchError as error:
            why = why or error
            rows["refused"].append({"design": design.name, "why": error.message})
    if why is not None and not first:
        raise why
    for basis in BASES:
        predictions = first if basis is BASES[0] else [predict(item.design, basis) for item in first]
        alone, design_rows = (
            alone_rows(predictions),
            [design_row(prediction) for prediction in predictions if prediction.result is not None],
        )
        rows["alone"] += alone
        rows["designs"] += design_rows
        said = (
            errors(alone, basis.name, "networks as they are, on one processor", "error %"),
            errors(design_rows, basis.name, "designs", "error %"),
            errors(design_rows, basis.name, "designs, with measured processors", "its error %"),
        )
        rows["errors"] += [item for item in said if item is not None]
    return {name: row for name, row in rows.items() if row}


def about(tables: Mapping[str, Sequence[Row]]) -> dict[str, About]:
    """Which columns are what others measured.

    Args:
        tables: Of the record.
    """
    known = {"designs": ("measured ms", "measured speed-up")} | dict.fromkeys(("alone", "hexagon", "levels"), ("measured ms",))
    return {name: About(columns=dict.fromkeys(columns, Facts(source="paper"))) for name, columns in known.items() if name in tables}


def main(words: Sequence[str] | None = None) -> int:
    """Predict designs, and tell or record them; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.published_designs.run", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.csv", help="designs and what was measured of them")
    parser.add_argument("--out", type=Path, help="record to write, under a folder `results`")
    options = parser.parse_args(words)
    try:
        designs = [design for path in options.files or [OWN] for design in read_designs(path)]
        tables = tables_of(designs)
        if not options.files:
            tables["stage"] = stage_rows(next(design for design in designs if design.name == STAGE))
            tables["hexagon"], tables["levels"] = hexagon_rows()
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"\nhint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    out = options.out or (None if options.files else HERE / "results" / "predicted.json")
    if out is not None:
        files = "".join(f" {path.name}" for path in options.files)
        write_record(
            out,
            tables,
            source="predicted",
            command=f"python -m experiments.published_designs.run{files}",
            runs=None,
            load=None,
            about=about(tables),
            notes=NOTES,
        )
    sys.stdout.write(json.dumps(tables, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
