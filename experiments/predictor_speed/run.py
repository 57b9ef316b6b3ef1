"""How many predictions of whole networks a second: `python -m experiments.predictor_speed.run PROFILE`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from experiments.records import Row, write_record
from predictors.devices import DeviceProfile, load_device
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor

HERE = Path(__file__).parent

#: Channels a group of the designs' bottlenecks: ResNet-50 has 64.
WIDTHS = (48, 52, 56, 60, 64, 68, 72, 80, 88, 96)

#: Rounds, and predictions in each.
ROUNDS, EACH = 20, 30


def designs() -> list[OpGraph]:
    """ResNet-50 in several widths."""
    from torchvision.models import resnet50

    from stretch.capture import capture

    return [capture(resnet50(width_per_group=width).eval(), (1, 3, 224, 224), f"resnet50-{width}").graph for width in WIDTHS]


def rate(work: Callable[[int], object], rounds: int = ROUNDS, each: int = EACH) -> list[float]:
    """Calls a second of processor time, one number a round."""
    found = []
    for number in range(rounds):
        start = process_time()
        for i in range(each):
            work(number * each + i)
        found.append(each / (process_time() - start))
    return found


def speeds(device: DeviceProfile, graphs: Sequence[OpGraph]) -> list[Row]:
    """Predictions a second, by what is known before."""
    predictor = LatencyPredictor(device)
    kernels = [predictor.kernels(graph, "cpu") for graph in graphs]
    start = process_time()
    predictor.predict(graphs[0], "cpu")
    first = process_time() - start

    def anew(number: int) -> None:
        graph = graphs[number % len(graphs)]
        predictor.predict(OpGraph(graph.name, graph.ops, graph.output), "cpu")

    ways: dict[str, Callable[[int], object]] = {
        "graph of a design, fused and predicted": anew,
        "design whose kernels are known, as the planner has them": lambda number: predictor.kernels_time(
            kernels[number % len(kernels)], "cpu"
        ),
    }
    rows: list[Row] = [{"prediction": "first of a process", "a_second": round(1 / first, 1), "fastest_round": None}]
    for name, way in ways.items():
        found = rate(way)
        rows.append({"prediction": name, "a_second": round(float(np.median(found)), 1), "fastest_round": round(max(found), 1)})
    return rows


def loading(profile: str) -> Row:
    """Time to read a profile with its fits, ms."""
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        load_device(profile)
        times.append((perf_counter() - start) * 1e3)
    size = len(load_device(profile).fits)
    return {"profile": Path(profile).stem, "fits": size, "median_ms": round(float(np.median(times)), 2), "least_ms": round(min(times), 2)}


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.predictor_speed.run", description=__doc__)
    parser.add_argument("profile", help="one with fits of its cpu, such as `stretch profile` writes")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    device = load_device(options.profile)
    write_record(
        options.out,
        {"speed": speeds(device, designs()), "loading": [loading(options.profile)]},
        source="measured",
        command=f"python -m experiments.predictor_speed.run {Path(options.profile).name}",
        runs=ROUNDS,
        interleaved=False,
        load=load,
        notes=[f"ResNet-50 in {len(WIDTHS)} widths, {EACH} predictions a round, a second of processor time on one core."],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
