"""What segments that end within stages add, for two processors: `python -m experiments.simulated_speedup.cuts`."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.lossless.run import MODELS, PROFILES, graph_of
from experiments.records import Row, write_record
from experiments.simulated_speedup.cases import VARIED, Case, planned_row
from experiments.simulated_speedup.summary import GOALS, geo_mean

HERE = Path(__file__).parent
#: Where segments may end: between stages alone, or between blocks as well.
CUTS = ("stages", "blocks")
#: Sets of processors; with three, planning at blocks takes minutes for each network.
PLACES = (("mi9", "cpu,gpu"), ("mi9", "cpu,dsp"))


def cases() -> list[Case]:
    """Every case, of the kind of designs that holds all others."""
    return [Case(model, which, *place, *VARIED) for model in MODELS for which in PROFILES for place in PLACES]


def row_of(case: Case, rows: Mapping[str, Row]) -> Row:
    """A case in both ways.

    Args:
        case: The case.
        rows: What was planned, by where segments may end.
    """
    row: Row = {"network, device and profile": f"{MODELS[case.model]}, {case.place}"}
    for cuts in CUTS:
        for column in ("makespan ms", "speed-up", "over sequential", "MACs ratio", "meetings"):
            row[f"{column}, {cuts}"] = rows[cuts][column]
    return row


def means(rows: Sequence[Row]) -> list[Row]:
    """Geometric means over the networks, beside the goals.

    Args:
        rows: Of the cases.
    """
    built = []
    for which in PROFILES:
        for place in PLACES:
            name = f"{' '.join(place)}, {which}"
            current = [row for row in rows if str(row["network, device and profile"]).endswith(name)]
            row: Row = {"device and profile": name, "networks": len(current)}
            for column, goal in zip(("speed-up", "over sequential"), GOALS[place], strict=True):
                row |= {f"{column}, {cuts}": geo_mean([item[f"{column}, {cuts}"] for item in current]) for cuts in CUTS}
                row[f"{column}, goal"] = goal
            built.append(row)
    return built


def main() -> int:
    """Plan every case in both ways, and write the record; gives the exit code."""
    load, rows = os.getloadavg()[0], []
    graphs = {model: graph_of(model) for model in MODELS}
    for case in cases():
        rows.append(row_of(case, {cuts: planned_row(case, graphs[case.model], cuts) for cuts in CUTS}))
        sys.stderr.write(f"{rows[-1]}\n")
    write_record(
        HERE / "results" / "cuts.json",
        {"means": means(rows), "networks": rows},
        source="predicted",
        command="python -m experiments.simulated_speedup.cuts",
        runs=None,
        load=load,
        notes=[
            "Every time is the planner's, from a profile and its links; nothing ran, and nothing was measured on a phone.",
            'Merged mixed designs, 0.97 to 1.03 of the multiply-accumulates, whose segments end between stages (`cuts = "stages"`) or between blocks too (`cuts = "blocks"`).',
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
