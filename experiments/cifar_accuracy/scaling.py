"""Record of scaling ratios, strategies, replication and distillation: `python -m experiments.cifar_accuracy.scaling FOLDER`.

FOLDER holds the results of `experiments.cifar_accuracy.run queue`.
"""

import sys
from pathlib import Path
from typing import Any

from experiments.cifar_accuracy.run import HERE, accuracy_row, median_minutes, short
from experiments.gpu import origin, read_runs
from experiments.records import Row, read_record, write_record

EPOCHS = 40
#: Row from the record of meeting points that is also shown here: the same recipe on the same machines.
BEFORE = "branched, depth only, 40 epochs"
#: Rows of each table: their names, their designs, and their teacher's labels.
TABLES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "ratios": (
        ("sequential", "sequential", ""),
        ("depth 0.33 in both branches, wider", "both_third", ""),
        ("depth 0.33 and 0.67", "third", ""),
        ("depth 0.44 and 0.56", "depth_only", ""),
        ("depth 0.67 in both, narrower", "two_thirds", ""),
        ("depth 0.78 in both, narrower", "seven_ninths", ""),
        ("depth 0.89 in both, narrower", "eight_ninths", ""),
        ("depth 1.0 in both, width only", "width_only", ""),
        ("width 0.25 in one, the other almost whole", "quarter_width", ""),
    ),
    "strategies": (
        ("sequential", "sequential", ""),
        ("depth only", "depth_only", ""),
        ("width only", "width_only", ""),
        ("deep-narrow + shallow-wide (per processor)", "deep_narrow_shallow_wide", ""),
    ),
    "replication": (("sequential", "sequential", ""), ("replicated, not scaled", "replicated", ""), ("depth only", "depth_only", "")),
    "distillation": (
        ("labels alone", "depth_only", ""),
        ("soft labels", "depth_only", "soft"),
        ("weighted soft labels", "depth_only", "weighted"),
    ),
}


def label(run: dict[str, Any]) -> tuple[str, str]:
    """Return the design and the teacher's labels of a run."""
    return short(run["variant"]), run["kd"]


def row(name: str, runs: list[dict[str, Any]]) -> Row:
    """Return the row of a variant with its GPU minutes."""
    return accuracy_row(name, runs) | {"GPU minutes a run": median_minutes(runs)}


def recorded_before() -> Row:
    """Return the row `BEFORE` from the other record."""
    rows = read_record(HERE / "results" / "h200.json").tables["accuracy"]
    return next(row for row in rows if row["variant"] == BEFORE)


def main() -> None:
    """Write the record."""
    runs, before = [run for run in read_runs(Path(sys.argv[1])) if run["epochs"] == EPOCHS], recorded_before()
    tables: dict[str, list[Row]] = {}
    for table, wanted in TABLES.items():
        tables[table] = []
        for name, design, kd in wanted:
            current = [run for run in runs if label(run) == (design, kd)]
            if current:
                tables[table].append(row(name, current))
            elif (design, kd) == ("depth_only", ""):
                tables[table].append({"variant": name} | {key: before[key] for key in list(row("", runs[:1]))[1:]})
    tables = {name: rows for name, rows in tables.items() if len(rows) > 1}
    singles: list[Row] = [
        {"run": f"{'-'.join(filter(None, label(r)))} seed {r['seed']}", "top-1 %": round(100 * r["accuracy"], 2)} for r in runs
    ]
    write_record(
        HERE / "results" / "h200_scaling.json",
        tables | {"runs": singles},
        source="measured",
        command="python -m experiments.cifar_accuracy.run queue sequential:0+1+2:40 third:0+1+2:40 … && python -m experiments.cifar_accuracy.scaling OUT",
        runs=min(int(r["seeds"] or 0) for rows in tables.values() for r in rows),
        **origin(runs),
        notes=[
            f"resnet56_cifar10 from scratch, {EPOCHS} epochs, CIFAR-10 re-encoded as JPEG: compare rows of these tables alone",
            "seeds of one design train side by side on one GPU, its minutes divided among them; `depth 0.44 and 0.56` ran alone",
            "runs counts the fewest seeds of a row; machines of one, two and four GPUs",
        ],
    )


if __name__ == "__main__":
    main()
