"""Predicted latency of designs whose accuracy was measured (paper 003, figure 12): `python -m experiments.paper.fig12_tradeoff.run`."""

import os
import sys
from pathlib import Path

from experiments.cifar_accuracy.run import ALIGN, MODEL
from experiments.cifar_accuracy.run import HERE as MEASURED
from experiments.cifar_accuracy.scaling import TABLES
from experiments.records import About, Facts, Row, read_record, write_record
from predictors.devices import load_device
from stretch.capture import capture
from stretch.models.tiny import CifarFamily
from stretch.planning.design.branch_design import load_draft
from stretch.planning.design.scale import resolve_design
from stretch.planning.plan import evaluate

HERE = Path(__file__).parent
DEVICE = "mi9-release"
#: Tables of the measured record that hold designs at about the original's cost, and one at twice of it.
SHOWN = ("ratios", "strategies", "replication")


def main() -> int:
    """Predict every measured design and write ``results/designs.json``."""
    load = os.getloadavg()[0]
    record = read_record(MEASURED / "results" / "h200_scaling.json")
    graph = capture(CifarFamily().build(MODEL), (1, 3, 32, 32), MODEL).graph
    device = load_device(DEVICE)
    rows: dict[str, Row] = {}
    for table in SHOWN:
        measured = {str(row["variant"]): row for row in record.tables[table]}
        for variant, design, _ in TABLES[table]:
            if design in rows or variant not in measured:
                continue
            # the original stands in the place of a design that changes nothing, so that its best processor is told
            name = "depth_only" if design == "sequential" else design
            evaluation = evaluate(
                graph, device, resolve_design(load_draft(MEASURED / "designs" / f"{name}.toml"), graph, DEVICE, ALIGN, "cpu")
            )
            ms = evaluation.best_single.ms if design == "sequential" else evaluation.run.makespan_ms
            exchange = 0.0 if design == "sequential" else evaluation.run.communication_ms
            rows[design] = {
                "design": variant,
                "branched": design != "sequential",
                "top-1 %": measured[variant]["top-1 %"],
                "95 % interval ±": measured[variant]["95 % interval ±"],
                "predicted ms": round(ms, 3),
                "of it exchange ms": round(exchange, 3),
                "MACs ratio": measured[variant]["MACs ratio"],
            }
            sys.stderr.write(f"{rows[design]}\n")
    accuracy = Facts(source="measured", runs=record.runs)
    write_record(
        HERE / "results" / "designs.json",
        {"designs": list(rows.values())},
        source="predicted",
        command="python -m experiments.paper.fig12_tradeoff.run",
        runs=None,
        load=load,
        about={"designs": About(columns={"top-1 %": accuracy, "95 % interval ±": accuracy})},
        notes=[
            f"{MODEL}: accuracy as experiments/cifar_accuracy/results/h200_scaling.json has it, 40 epochs on CIFAR-10 re-encoded as JPEG; ms predicted for {DEVICE} with the CPU in int8 and the GPU in fp16, the original on the best of them.",
            "images of 32×32 pixels: an exchange takes as long as most of the network does",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
