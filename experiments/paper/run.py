"""Numbers for comparison with the figures of paper 003: `python -m experiments.paper.run` plans its networks again and writes the records."""

import csv
from pathlib import Path

from experiments.cifar_accuracy.run import HERE as MEASURED
from experiments.cifar_accuracy.run import MODEL, design_of, original_graph
from experiments.cifar_accuracy.scaling import TABLES
from experiments.networks import MODELS, graph_of
from experiments.records import About, Facts, Row, Value, read_record, write_record
from experiments.simulated_speedup.run import MACS
from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline
from stretch.planning.plan import evaluate, plan

HERE = Path(__file__).parent
RECORDS, COMMAND = HERE / "results", "python -m experiments.paper.run"
#: Phones, networks and precisions of figure 11.
PHONES, PROCESSORS, NETWORKS = ("mi9-release", "mi11"), ("cpu", "gpu"), ("resnet34", "resnet50")
PRECISION = {"cpu": "int8", "gpu": "fp16"}
SPLIT = (
    "split ms", "split, exchanges ms", "split operators", "branches ms", "branches, exchanges ms", "meetings",
    "branches over the GPU", "branches over split", "MACs ratio",
)  # fmt: skip
#: Device of figure 12, and measured tables of designs that cost about as much as the original, or twice as much.
DEVICE, SHOWN = "mi9-release", ("ratios", "strategies", "replication")


def published(path: Path = HERE / "paper_003.csv") -> list[Row]:
    """Return the numbers that were copied by hand from the paper's text, with the columns published, value, unit and section."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{**row, "value": float(row["value"])} for row in csv.DictReader(file)]


def split_row(model: str, device: str) -> Row:
    """Return the row of a network on a phone (figure 11): each processor alone, operators split as in CoDL, and branches."""
    graph, profile = graph_of(model), load_device(device)
    costs = Costs(LatencyPredictor(profile), PRECISION)
    alone = {name: costs.predictor.predict(graph, name, precision).ms for name, precision in PRECISION.items()}
    row: Row = {"network and phone": f"{MODELS[model]}, {profile.name}"} | {f"{name} ms": round(ms, 2) for name, ms in alone.items()}
    try:
        result = plan(graph, profile, PlanConfig(processors=PROCESSORS, macs=MACS, kinds=("stretch",), merge="always"))
    except InfeasibleError:
        return row | dict.fromkeys(SPLIT)
    split = timeline(graph, result.operator_split.design, costs)
    values: tuple[Value, ...] = (
        round(split.makespan_ms, 2),
        round(split.communication_ms, 2),
        sum(len(part.branches) > 1 for part in result.operator_split.design.segments),
        round(result.run.makespan_ms, 2),
        round(result.run.communication_ms, 2),
        result.design.n_meet,
        round(alone["gpu"] / result.run.makespan_ms, 3),
        round(split.makespan_ms / result.run.makespan_ms, 3),
        round(result.macs_ratio, 3),
    )
    return row | dict(zip(SPLIT, values, strict=True))


def tradeoff_rows() -> list[Row]:
    """Return the predicted latency of the designs whose accuracy was measured (figure 12)."""
    record = read_record(MEASURED / "results" / "h200_scaling.json")
    graph, device = original_graph(), load_device(DEVICE)
    rows: dict[str, Row] = {}
    for table in SHOWN:
        measured = {str(row["variant"]): row for row in record.tables[table]}
        for variant, design, _ in TABLES[table]:
            if design in rows or variant not in measured:
                continue
            # every design states the original's best processor
            branched = design != "sequential"
            evaluation = evaluate(graph, device, design_of(design if branched else "depth_only", graph, DEVICE))
            rows[design] = {
                "design": variant,
                "branched": branched,
                "top-1 %": measured[variant]["top-1 %"],
                "95 % interval ±": measured[variant]["95 % interval ±"],
                "predicted ms": round(evaluation.run.makespan_ms if branched else evaluation.best_single.ms, 3),
                "of it exchange ms": round(evaluation.run.communication_ms if branched else 0.0, 3),
                "MACs ratio": measured[variant]["MACs ratio"],
            }
    return list(rows.values())


def main() -> None:
    """Write ``published.json``, ``split.json`` and ``designs.json``."""
    write_record(
        RECORDS / "published.json",
        {"stretch": published()},
        source="paper",
        command=COMMAND,
        load=None,
        versions={"papers": "003"},
        notes=[
            "copied from the paper's text; bars and lines of its figures, and tables that are pictures, are not part of that",
            "section `release`: means over the designs whose times the authors published with their code",
        ],
    )
    write_record(
        RECORDS / "split.json",
        {"networks": [split_row(model, device) for device in PHONES for model in NETWORKS]},
        source="predicted",
        command=COMMAND,
        notes=[
            "split: the original, each of its kernel-sized parts on one processor or in bands of rows over both, whichever is faster; CoDL itself does not run here. A residual block that two processors cannot divide within is one part.",
            "branches: stretched segments, several stages as one where that is faster, 0.97 to 1.03 of the multiply-accumulates. CPU in int8, GPU in fp16.",
        ],
    )
    accuracy = Facts(source="measured", runs=read_record(MEASURED / "results" / "h200_scaling.json").runs)
    write_record(
        RECORDS / "designs.json",
        {"designs": tradeoff_rows()},
        source="predicted",
        command=COMMAND,
        about={"designs": About(columns={"top-1 %": accuracy, "95 % interval ±": accuracy})},
        notes=[
            f"{MODEL}: accuracy as experiments/cifar_accuracy/results/h200_scaling.json has it, 40 epochs on CIFAR-10 re-encoded as JPEG; ms predicted for {DEVICE} with the CPU in int8 and the GPU in fp16, the original on the best of them.",
            "images of 32×32 pixels: an exchange takes as long as most of the network does",
        ],
    )


if __name__ == "__main__":
    main()
