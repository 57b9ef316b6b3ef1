"""Whether the losses of single segments predict the losses of whole designs: predicted and measured agreement, real weights, natural photographs.

`python -m experiments.sensitivity.run measure --weights FOLDER --images FOLDER --out FILE`, on a machine with a GPU, writes numbers;
`python -m experiments.sensitivity.run record FILE` makes them a record.
"""

import json
import sys
import time
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from experiments.command import program
from experiments.gpu import facts, origin, side_by_side
from experiments.real_networks.run import NETWORKS, command_parser, opened
from experiments.records import About, Facts, Row, write_record

if TYPE_CHECKING:
    from torch import Tensor

    from predictors.graph import OpGraph
    from stretch.planning.cost.accuracy import Measured, Sensitivity
    from stretch.planning.search.space import DesignSpace

HERE = Path(__file__).parent

#: Numbers of photographs for calibration, for measuring sensitivity, and for checking predictions.
FITTED, HELD_BACK, CHECKED = 128, 150, 220
#: Number of random designs that are predicted and then measured, and the range of their multiply-accumulates over the original's.
RANDOM, MACS = 30, (0.9, 1.1)
#: Number of the first of these designs, by network, with which the form of the loss and the later stages' share were chosen.
CHOSEN_ON = {"mobilenet_v2": 17, "efficientnet_lite0": 14}
DEVICE, PROCESSORS = "mi9", ("cpu", "gpu")
#: Loosened rules about time, so that any run of stages may branch.
LOOSE = {"alpha": 10.0, "beta": 10.0, "balance": 0.1}
#: Devices, processors and ranges of multiply-accumulates over the original's of fronts, and maximum number of designs on a front.
SAME, FEWER = (0.97, 1.03), (0.75, 1.03)
FRONTS = (
    ("mi9", ("cpu", "gpu"), SAME),
    ("mi9", ("cpu", "gpu"), FEWER),
    ("mi9", ("cpu", "dsp"), SAME),
    ("pixel6", ("cpu", "gpu"), SAME),
)
TOP = 8


def measure(network: str, weights: Path, images: Path, count: int, until_s: float) -> dict[str, Any]:
    """Measure the sensitivity of one network, random designs and designs on fronts."""
    import torch

    from predictors.devices import load_device
    from stretch.evaluation.sensitivity.source import measure as measure_sensitivity
    from stretch.evaluation.sensitivity.source import measure_design, random_designs
    from stretch.planning.config import PlanConfig

    start = time.perf_counter()

    def tell(words: str) -> None:
        sys.stderr.write(f"{network} {words} {time.perf_counter() - start:.1f} s\n")

    net, _, result = opened(NETWORKS[network], weights, images, FITTED, HELD_BACK + CHECKED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fitted = [batch.to(device) for batch in result.fitted]
    for_sensitivity, checked = _divide(torch.cat(result.held_back).to(device))
    space = _space(net.graph, load_device(DEVICE), PlanConfig(processors=PROCESSORS, **LOOSE))
    tell("loaded")
    sensitivity = measure_sensitivity(net.captured, space, fitted, for_sensitivity, count, progress=tell)
    source = predictor(network, net.graph, sensitivity.alone, sensitivity.designs)
    fronts = []
    for row, design in fronts_of(net.graph, source):
        if not row["exact"] and time.perf_counter() - start < until_s:
            measured_design = measure_design(net.captured, design, fitted, checked, space)
            row |= {"measured": measured_design.agreement, "error": sqrt(measured_design.error), "computed_on": device.type}
            tell(f"front {row['design']}: {measured_design.agreement:.3f}")
        fronts.append(row)
    random: list[Measured] = []
    for design in random_designs(space, net.graph.name, DEVICE, RANDOM, MACS, seed=2):
        if time.perf_counter() - start > until_s:
            break
        random.append(measure_design(net.captured, design, fitted, checked, space))
        tell(f"random {len(random)}: {random[-1].agreement:.3f}")
    return {
        "network": network,
        "seconds": {"sensitivity": sensitivity.seconds, "all": time.perf_counter() - start},
        "alone": msgspec.to_builtins(sensitivity.alone),
        "designs": msgspec.to_builtins(sensitivity.designs),
        "random": msgspec.to_builtins(random),
        "front": fronts,
    }


def _divide(photographs: "Tensor") -> "tuple[list[Tensor], list[Tensor]]":
    """Divide the photographs into those for measuring sensitivity and those for checking, both spread over all, in batches."""
    import torch

    chosen = torch.zeros(len(photographs), dtype=torch.bool)
    chosen[torch.arange(HELD_BACK) * len(photographs) // HELD_BACK] = True
    first, second = (list(photographs[mask.to(photographs.device)].split(50)) for mask in (chosen, ~chosen))
    return first, second


def _read(rows: Sequence[dict[str, Any]]) -> "list[Measured]":
    from stretch.planning.cost.accuracy import Measured

    return msgspec.convert(list(rows), list[Measured])


def _space(graph: "OpGraph", device: Any, config: Any) -> "DesignSpace":
    """Return the space of designs of a network's stages, merged or not, on a device."""
    from stretch.planning.plan import PlanningProblem

    return PlanningProblem.of(graph, device, config).stage_space(merged=True)


def predictor(network: str, graph: "OpGraph", alone: "Sequence[Measured]", designs: "Sequence[Measured]") -> "Sensitivity":
    """Fit the predictor to measurements of this experiment."""
    from stretch import __version__
    from stretch.evaluation.sensitivity.fit import fit
    from stretch.planning.cost.accuracy import MeasuredOn
    from stretch.planning.network.segments import split_segments

    on = MeasuredOn(
        weights=NETWORKS[network].weights, images=FITTED, held_back=HELD_BACK, pictures="natural photographs", device=DEVICE,
        processors=PROCESSORS, version=__version__, date="", seconds=0.0, complete=False,
    )  # fmt: skip
    return fit(graph.name, "project", split_segments(graph), alone, designs, on)


def fronts_of(graph: "OpGraph", source: "Sensitivity", earlier: Sequence[Row] = ()) -> list[tuple[Row, Any]]:
    """Return every front of one network, each row with its design and with earlier measurements of it."""
    earlier_rows = {(row["design"], row["segments"]): row for row in earlier}
    result = [pair for front in FRONTS for pair in front_rows(graph, source, *front)]
    for row, _ in result:
        before = row if row["exact"] else earlier_rows.get((row["design"], row["segments"]), row)
        row |= {name: before[name] for name in ("measured", "error", "computed_on")}
    return result


def front_rows(
    graph: "OpGraph", source: "Sensitivity", device: str, processors: tuple[str, ...], macs: tuple[float, float]
) -> list[tuple[Row, Any]]:
    """Return the front of one network on some processors, with exact and stretched segments, each row with its design."""
    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.design.branch_design import exact_kinds
    from stretch.planning.pareto import front

    config = PlanConfig(processors=processors, kinds=("stretch", *exact_kinds()), macs=macs, **LOOSE)
    answer = front(graph, load_device(device), config, ("latency", "agreement"), TOP, source)
    result = []
    for design in answer.designs:
        assert design.accuracy is not None
        row: Row = {
            "design": f"{device} {','.join(processors)}{'' if macs == SAME else ', fewer MACs'} {design.name}",
            "segments": "; ".join(design.branches) or "one processor",
            "exact": design.exact,
            "predicted_ms": design.predicted_ms,
            "speedup": design.speedup,
            "over_sequential": design.speedup_over_sequential,
            "macs_ratio": design.macs_ratio,
            "predicted": design.accuracy.agreement,
            "low": design.accuracy.low,
            "high": design.accuracy.high,
            "measured": None,
            "error": None,
            "computed_on": None,
        }
        result.append((row, design.design))
    return result


def record(file: Path) -> None:
    """Write a record of the measurements; predictions are made again by the current predictor."""
    from stretch.stages.network import read_network

    run = json.loads(file.read_text())
    ranks, designs, fronts = [], [], []
    for item in run["networks"]:
        graph = read_network(NETWORKS[item["network"]].name, weights="none").graph
        source = predictor(item["network"], graph, _read(item["alone"]), _read(item["designs"]))
        rank, rows = judged(item, source)
        ranks.append(rank)
        designs += rows
        for row, _ in fronts_of(graph, source, item["front"]):
            fronts.append(_rounded(row | {"design": f"{item['network']} {row['design']}"}))
    write_record(
        HERE / "results" / "agreement.json",
        {"ranks": ranks, "random": designs, "front": fronts},
        source="measured",
        command="python -m experiments.sensitivity.run measure",
        runs=1,
        about={
            "random": About(columns={name: Facts(source="predicted") for name in ("predicted", "low", "high")}),
            "front": About(columns={name: Facts(source="predicted") for name in FRONT_PREDICTED}),
        },
        notes=[
            f"Segments and designs calibrated on {FITTED} photographs; sensitivity measured on {HELD_BACK} others, designs on {CHECKED} more.",
            f"Ways of {DEVICE}, {' and '.join(PROCESSORS)}, with the rules about time let loose; float32; one seed.",
            "Of fronts those designs have a measured agreement that there was time for; `computed_on` says where they were built and compared.",
        ],
        **origin([run]),
    )


#: Columns of the front that are predicted, not measured.
FRONT_PREDICTED = ("predicted_ms", "speedup", "over_sequential", "predicted", "low", "high")


def judged(run: dict[str, Any], source: "Sensitivity") -> tuple[Row, list[Row]]:
    """Return the quality of the ranking of one network's random designs, and one row per design."""
    from stretch.evaluation.sensitivity.fit import loss_of_design, spearman

    random = _read(run["random"])
    predictions = [source.prediction(loss_of_design(source, item.segments)) for item in random]
    measured = np.array([item.agreement for item in random])
    predicted = np.array([prediction.agreement or 0.0 for prediction in predictions])
    inside = [(t.low or 0.0) <= item.agreement <= (t.high or 1.0) for t, item in zip(predictions, random, strict=True)]
    later = CHOSEN_ON[run["network"]]
    of_agreement, of_error = spearman(measured, predicted), spearman(np.array([item.error for item in random]), -predicted)
    rank: Row = {
        "network": run["network"],
        "single_segments": len(run["alone"]),
        "whole_designs": len(run["designs"]),
        "random_designs": len(random),
        "rank_correlation": of_agreement,
        "later_designs": len(random) - len(random[:later]),
        "rank_correlation_later": spearman(measured[later:], predicted[later:]),
        "rank_correlation_error": of_error,
        "mean_difference": float(np.abs(measured - predicted).mean()),
        "within_interval": float(np.mean(inside)),
        "seconds": run["seconds"]["sensitivity"],
    }
    rows: list[Row] = [
        {
            "design": f"{run['network']} {number}",
            "segments": ", ".join("+".join(part.stages) for part in item.segments),
            "predicted": t.agreement,
            "low": t.low,
            "high": t.high,
            "measured": item.agreement,
            "error": sqrt(item.error),
        }
        for number, (t, item) in enumerate(zip(predictions, random, strict=True), 1)
    ]
    return _rounded(rank), [_rounded(row) for row in rows]


def _rounded(row: Row) -> Row:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def main() -> None:
    """Measure, or write a record."""
    parser = command_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=60, help="blocks of a network that are measured, and a quarter as many segments")
    parser.add_argument("--until", type=float, default=460.0, help="seconds after which no further design is measured")
    options = parser.parse_args()
    if options.what == "record":
        record(options.files[0])
        return
    about = facts()
    jobs = [(network, options.weights, options.images, options.blocks, options.until) for network in NETWORKS]
    options.out.write_text(json.dumps(about | {"networks": list(side_by_side(measure, jobs, len(jobs)))}))


if __name__ == "__main__":
    program(main)
