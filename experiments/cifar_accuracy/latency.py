"""Predicted latency and accuracy, by number of meeting points: `python -m experiments.cifar_accuracy.latency`.

The accuracies are those of the measured record; the latencies are the planner's for the profile mi9-release (paper 003, table 3).
"""

from experiments.cifar_accuracy.run import HERE, MAIN, MEETS, design_of, original_graph
from experiments.records import About, Facts, Row, read_record, write_record
from predictors.devices import load_device
from stretch.planning.plan import evaluate

DEVICE = "mi9-release"
EPOCHS = 40


def main() -> None:
    """Write the record."""
    measured = {str(row["variant"]): row for row in read_record(HERE / "results" / "h200.json").tables["accuracy"]}
    graph, profile = original_graph(), load_device(DEVICE)
    rows: list[Row] = []
    three = "branched, depth only"
    order = ["9 meeting points", "6 meeting points", three, *list(MEETS)[2:]]
    for variant in order:
        planned = evaluate(graph, profile, design_of((MAIN | MEETS)[variant] or "", graph, DEVICE))
        row = measured[f"{variant}, {EPOCHS} epochs"]
        rows.append(
            {
                "design": "3 meeting points" if variant == three else variant,
                "top-1 %": row["top-1 %"],
                "95 % interval ±": row["95 % interval ±"],
                "predicted ms": round(planned.run.makespan_ms, 3),
                "of it exchange ms": round(planned.run.communication_ms, 3),
                "original, best processor ms": round(planned.best_single.ms, 3),
                "MACs ratio": round(planned.macs_ratio, 3),
            }
        )
    accuracy = Facts(source="measured", runs=min(int(str(row["seeds"])) for row in measured.values()))
    precisions = ", ".join(
        f"{name} in {precision}" for name, precision in planned.config.precision.items() if name in planned.design.processors
    )
    write_record(
        HERE / "results" / "latency.json",
        {"meeting_points": rows},
        source="predicted",
        command="python -m experiments.cifar_accuracy.latency",
        load=None,
        about={"meeting_points": About(columns={"top-1 %": accuracy, "95 % interval ±": accuracy})},
        notes=[
            f"accuracy measured after {EPOCHS} epochs (h200.json); ms predicted for the profile {DEVICE}",
            f"predicted for {precisions}; 32×32 images, so an exchange costs more than it does for a larger network",
        ],
    )


if __name__ == "__main__":
    main()
