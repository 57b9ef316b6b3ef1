"""Branches beside operators that are split, as CoDL does (paper 003, figure 11): `python -m experiments.paper.fig11_operator_split.run`."""

import os
import sys
from pathlib import Path

from experiments.networks import MODELS, graph_of
from experiments.paper.plans import stretched
from experiments.records import Row, Value, write_record
from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.makespan import timeline

HERE = Path(__file__).parent
DEVICES, PROCESSORS = ("mi9-release", "mi11"), "cpu,gpu"
#: The networks of the paper's figure.
NETWORKS = ("resnet34", "resnet50")
PRECISION = {"cpu": "int8", "gpu": "fp16"}


def row_of(model: str, device: str) -> Row:
    """A network on a phone: each processor, operators split, branches.

    Args:
        model: Its name.
        device: The phone's id.
    """
    graph, profile = graph_of(model), load_device(device)
    costs = Costs(LatencyPredictor(profile), PRECISION)
    alone = {name: costs.predictor.predict(graph, name, precision).ms for name, precision in PRECISION.items()}
    result = stretched(graph, device, PROCESSORS)
    row: Row = {"network and phone": f"{MODELS[model]}, {profile.name}"} | {f"{name} ms": round(ms, 2) for name, ms in alone.items()}
    if result is None:
        return row | dict.fromkeys(COLUMNS)
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
    return row | dict(zip(COLUMNS, values, strict=True))


COLUMNS = (
    "split ms", "split, exchanges ms", "split operators", "branches ms", "branches, exchanges ms", "meetings",
    "branches over the GPU", "branches over split", "MACs ratio",
)  # fmt: skip


def main() -> int:
    """Plan the networks and write ``results/split.json``."""
    load = os.getloadavg()[0]
    rows = [row_of(model, device) for device in DEVICES for model in NETWORKS]
    write_record(
        HERE / "results" / "split.json",
        {"networks": rows},
        source="predicted",
        command="python -m experiments.paper.fig11_operator_split.run",
        runs=None,
        load=load,
        notes=[
            "split: the original, each of its kernel-sized parts on one processor or in bands of rows over both, whichever is faster; CoDL itself does not run here. A residual block that two processors cannot divide within is one part.",
            "branches: stretched segments, several stages as one where that is faster, 0.97 to 1.03 of the multiply-accumulates. CPU in int8, GPU in fp16.",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
