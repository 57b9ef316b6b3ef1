"""What is predicted for the Mi 11 of paper 003, figure 9: `python -m experiments.paper.fig09_speedup.run`."""

import os
import sys
from pathlib import Path

from experiments.lossless.run import MODELS, graph_of
from experiments.records import Row, write_record
from experiments.simulated_speedup.cases import DESIGNS, Case, planned_row

HERE = Path(__file__).parent
#: The Mi 11 of the paper, whose DSP its runtime does not drive.
DEVICE, PROCESSORS = "mi11", "cpu,gpu"
#: Kinds of designs as columns.
SERIES = {design: f"{design[0]}, {'merged' if design[1].endswith('merged') else 'apart'}" for design in DESIGNS if design[0] == "stretched"}


def main() -> int:
    """Plan the networks and write ``results/mi11.json``."""
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for model, words in MODELS.items():
        graph = graph_of(model)
        row: Row = {"network": words}
        for design, column in SERIES.items():
            planned = planned_row(Case(model, "fitted", DEVICE, PROCESSORS, *design), graph)
            row[column] = planned["speed-up"]
            for end in ("low", "high"):
                row[f"{column}, {end}"] = planned[f"speed-up {end}"]
        rows.append(row)
        sys.stderr.write(f"{row}\n")
    write_record(
        HERE / "results" / "mi11.json",
        {"networks": rows},
        source="predicted",
        command="python -m experiments.paper.fig09_speedup.run",
        runs=None,
        load=load,
        notes=[
            f"Speed-ups of stretched designs over the best single processor, {DEVICE} with {PROCESSORS}; low and high are the ends of the 90 % interval.",
            "No processor of this phone was measured: times are those of fitted relatives, scaled by what is specified.",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
