"""Record of scaling ratios, strategies, replication and distillation: `python -m experiments.cifar_accuracy.scaling FOLDER`.

FOLDER holds what `experiments.cifar_accuracy.run queue` wrote.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.cifar_accuracy.run import HERE
from experiments.gpu import origin
from experiments.records import Row, read_record, write_record

EPOCHS = 40
#: Row of the record of meeting points that belongs here, too: the same recipe on the same machines.
BEFORE = "branched, depth only, 40 epochs"
#: Table → its rows: their names, their design, and their teacher's labels.
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
    """Design and teacher's labels of a run."""
    from experiments.cifar_accuracy.run import short

    return short(run["variant"]), run["kd"]


def row(name: str, current: list[dict[str, Any]]) -> Row:
    """Mean over seeds, with Student's interval."""
    values = np.array([100 * r["accuracy"] for r in current])
    spread = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {
        "variant": name,
        "seeds": len(current),
        "top-1 %": round(float(values.mean()), 2),
        "95 % interval ±": round(spread, 2) if spread is not None else None,
        "MACs ratio": round(current[0]["macs_ratio"], 3),
        "GPU minutes a run": round(float(np.median([r["minutes"] for r in current])), 2),
    }


def main() -> None:
    """Make the record."""
    runs = [json.loads(file.read_text()) for file in sorted(Path(sys.argv[1]).glob("*.json"))]
    runs = [run for run in runs if run["epochs"] == EPOCHS]
    before = next(r for r in read_record(HERE / "results" / "h200.json").tables["accuracy"] if r["variant"] == BEFORE)
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
