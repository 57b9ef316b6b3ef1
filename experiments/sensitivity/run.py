"""Whether the losses of single segments predict the losses of whole designs: predicted and measured agreement, real weights, natural photographs.

`python -m experiments.sensitivity.run measure --weights FOLDER --images FOLDER --out FILE`, on a machine with a GPU, writes numbers;
`python -m experiments.sensitivity.run record FILE` makes them a record. `measure --more FILE` goes on with what an earlier run wrote.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from experiments.command import program
from experiments.gpu import facts, origin
from experiments.real_networks.run import NETWORKS
from experiments.records import About, Facts, Row, write_record

if TYPE_CHECKING:
    from torch import Tensor

    from predictors.graph import OpGraph
    from stretch.planning.cost.accuracy import Measured, Sensitivity
    from stretch.planning.search.space import DesignSpace

HERE = Path(__file__).parent

#: Photographs to calibrate with, to measure sensitivity on, and to check predictions on.
FITTED, HELD_BACK, CHECKED = 128, 150, 220
#: Random designs whose agreement is predicted and then measured, and their multiply-accumulates over the original's.
RANDOM, MACS = 30, (0.9, 1.1)
#: The first of them, by network, that the form of the loss and the later stages' share were chosen on.
CHOSEN_ON = {"mobilenet_v2": 17, "efficientnet_lite0": 14}
DEVICE, PROCESSORS = "mi9", ("cpu", "gpu")
#: Rules about time alone are let loose, so that any run of stages may branch.
LOOSE = {"alpha": 10.0, "beta": 10.0, "balance": 0.1}
#: Devices, processors and multiply-accumulates over the original's of fronts, and designs of one, at most.
SAME, FEWER = (0.97, 1.03), (0.75, 1.03)
FRONTS = (
    ("mi9", ("cpu", "gpu"), SAME),
    ("mi9", ("cpu", "gpu"), FEWER),
    ("mi9", ("cpu", "dsp"), SAME),
    ("pixel6", ("cpu", "gpu"), SAME),
)
TOP = 8


def measure(network: str, weights: Path, images: Path, count: int, until_s: float, earlier: dict[str, Any]) -> dict[str, Any]:
    """Sensitivity of one network, random designs and designs of fronts; earlier measurements are used as they are."""
    import torch

    from predictors.devices import load_device
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.evaluation.sensitivity.source import SensitivityMeasurements, measure_design, random_designs
    from stretch.evaluation.sensitivity.source import measure as measure_sensitivity
    from stretch.planning.config import PlanConfig
    from stretch.stages.build import divide_images
    from stretch.stages.network import read_network

    start = time.perf_counter()

    def tell(words: str) -> None:
        sys.stderr.write(f"{network} {words} {time.perf_counter() - start:.1f} s\n")

    real = NETWORKS[network]
    net = read_network(real.name, weights=str(weights / real.weights))
    preprocessing = requested_preprocessing(net.loaded.preprocessing, real.preprocessing, net.graph.input.shape)
    result = divide_images(images, net.captured, FITTED, preprocessing, HELD_BACK + CHECKED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fitted = [batch.to(device) for batch in result.fitted]
    held, checked = _parted(torch.cat(result.held_back).to(device))
    space = _space(net.graph, load_device(DEVICE), PlanConfig(processors=PROCESSORS, **LOOSE))
    tell("loaded")
    if "alone" in earlier:
        alone, designs = _read(earlier["alone"]), _read(earlier["designs"])
        sensitivity = SensitivityMeasurements(tuple(alone), tuple(designs), earlier["seconds"]["sensitivity"], complete=False)
    else:
        sensitivity = measure_sensitivity(net.captured, space, fitted, held, count, progress=tell)
    source = predictor(network, net.graph, sensitivity.alone, sensitivity.designs)
    fronts = []
    for row, design in fronts_of(net.graph, source, earlier.get("front", [])):
        if row["measured"] is None and not row["exact"] and time.perf_counter() - start < until_s:
            one = measure_design(net.captured, design, fitted, checked, space)
            row |= {"measured": one.agreement, "error": sqrt(one.error), "computed_on": device.type}
            tell(f"front {row['design']}: {one.agreement:.3f}")
        fronts.append(row)
    random = _read(earlier.get("random", []))
    for design in random_designs(space, net.graph.name, DEVICE, RANDOM, MACS, seed=2)[len(random) :]:
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


def _parted(photographs: "Tensor") -> "tuple[list[Tensor], list[Tensor]]":
    """Photographs for measuring sensitivity and others for checking, both spread over all, in batches."""
    import torch

    mine = torch.zeros(len(photographs), dtype=torch.bool)
    mine[torch.arange(HELD_BACK) * len(photographs) // HELD_BACK] = True
    first, second = (list(photographs[mask.to(photographs.device)].split(50)) for mask in (mine, ~mine))
    return first, second


def _read(rows: Sequence[dict[str, Any]]) -> "list[Measured]":
    from stretch.planning.cost.accuracy import Measured

    return msgspec.convert(list(rows), list[Measured])


def _space(graph: "OpGraph", device: Any, config: Any) -> "DesignSpace":
    """Designs of a network's stages, merged or not, on a device."""
    from stretch.planning.plan import PlanningProblem

    return PlanningProblem.of(graph, device, config).stage_space(merged=True)


def predictor(network: str, graph: "OpGraph", alone: "Sequence[Measured]", designs: "Sequence[Measured]") -> "Sensitivity":
    """Constants fitted to measurements of this experiment."""
    from stretch import __version__
    from stretch.evaluation.sensitivity.fit import fit
    from stretch.planning.cost.accuracy import MeasuredOn
    from stretch.planning.network.segments import split_segments

    on = MeasuredOn(
        weights=NETWORKS[network].weights, images=FITTED, held_back=HELD_BACK, pictures="natural photographs", device=DEVICE,
        processors=PROCESSORS, version=__version__, date="", seconds=0.0, complete=False,
    )  # fmt: skip
    return fit(graph.name, "project", split_segments(graph), alone, designs, on)


def fronts_of(graph: "OpGraph", source: "Sensitivity", earlier: Sequence[Row]) -> list[tuple[Row, Any]]:
    """Every front of one network, each row with its design and with what was measured of it earlier."""
    known = {(row["design"], row["segments"]): row for row in earlier}
    result = [pair for front in FRONTS for pair in front_rows(graph, source, *front)]
    for row, _ in result:
        before = row if row["exact"] else known.get((row["design"], row["segments"]), row)
        row |= {name: before[name] for name in ("measured", "error", "computed_on")}
    return result


def front_rows(
    graph: "OpGraph", source: "Sensitivity", device: str, processors: tuple[str, ...], macs: tuple[float, float]
) -> list[tuple[Row, Any]]:
    """The front of one network on some processors, exact and stretched segments together, each row with its design."""
    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.design.division import exact_kinds
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


def run_all(options: argparse.Namespace) -> None:
    """Every network in a process of its own, side by side: small networks leave most of a GPU idle."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for network in NETWORKS:
            out = Path(folder) / f"{network}.json"
            words = ["one", "--network", network, "--out", str(out), "--blocks", str(options.blocks), "--until", str(options.until)]
            words += ["--weights", str(options.weights), "--images", str(options.images)]
            words += ["--more", str(options.more)] if options.more else []
            running.append((network, out, subprocess.Popen([sys.executable, "-m", "experiments.sensitivity.run", *words])))
        runs = []
        for network, out, process in running:
            if process.wait():
                sys.stderr.write(f"{network} failed\n")
            elif out.exists():
                runs.append(json.loads(out.read_text()))
    options.out.write_text(json.dumps(facts() | {"networks": runs}))


def record(file: Path, out: Path) -> None:
    """Make a record of the measurements: predictions are made again by the predictor of today."""
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
        out,
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
    sys.stderr.write(f"{out} written; fill the pages with python -m experiments.render\n")


#: Columns of the front that nobody measured.
FRONT_PREDICTED = ("predicted_ms", "speedup", "over_sequential", "predicted", "low", "high")


def judged(run: dict[str, Any], source: "Sensitivity") -> tuple[Row, list[Row]]:
    """How well random designs of one network are ranked, and each of them."""
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


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or make a record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sensitivity.run", description=__doc__)
    parser.add_argument("what", choices=["measure", "one", "record"])
    parser.add_argument("file", type=Path, nargs="?", help="for record: what measure wrote")
    parser.add_argument("--weights", type=Path, help="folder of weights")
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--network", choices=list(NETWORKS), help="for one: which")
    parser.add_argument("--blocks", type=int, default=60, help="blocks of a network that are measured, and a quarter as many segments")
    parser.add_argument("--until", type=float, default=460.0, help="seconds after which no further design is measured")
    parser.add_argument("--more", type=Path, help="what an earlier measure wrote")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "agreement.json")
    options = parser.parse_args(words)
    if options.what == "record":
        record(options.file, options.out)
    elif options.what == "one":
        more = json.loads(options.more.read_text())["networks"] if options.more else []
        earlier = next((item for item in more if item["network"] == options.network), {})
        measurement = measure(options.network, options.weights, options.images, options.blocks, options.until, earlier)
        options.out.write_text(json.dumps(measurement))
    else:
        run_all(options)


if __name__ == "__main__":
    program(main)
