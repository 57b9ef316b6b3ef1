"""How many predictions of whole networks a second, and what profiles with fits cost: `python -m experiments.predictor_speed.run`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from experiments.records import About, Row, write_record
from predictors.devices import DeviceProfile, load_device
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor

HERE = Path(__file__).parent

#: Channels a group of the designs' bottlenecks: ResNet-50 has 64.
WIDTHS = (48, 52, 56, 60, 64, 68, 72, 80, 88, 96)

#: Rounds, and predictions in each.
ROUNDS, EACH = 20, 30

#: Profiles that are loaded: of a phone with many fits, a tensor processor, a board.
LOADED = ("mi9", "s24", "raspberrypi4")

#: What is planned, and how often, by turns with the profiles that nothing was fitted to.
PLANNED = (("resnet50", "pixel6"), ("resnet50", "mi9"), ("efficientnet_b5", "mi9"))
PLANS = 5


def designs() -> list[OpGraph]:
    """ResNet-50 in several widths."""
    from torchvision.models import resnet50

    from stretch.capture import capture

    return [capture(resnet50(width_per_group=width).eval(), (1, 3, 224, 224), f"resnet50-{width}").graph for width in WIDTHS]


def rate(work: Callable[[int], object], rounds: int = ROUNDS, item: int = EACH) -> list[float]:
    """Calls a second of processor time, one number a round."""
    result = []
    for number in range(rounds):
        start = process_time()
        for i in range(item):
            work(number * item + i)
        result.append(item / (process_time() - start))
    return result


def speeds(device: DeviceProfile, graphs: Sequence[OpGraph]) -> list[Row]:
    """Predictions a second, by what is known before."""
    predictor = LatencyPredictor(device)
    kernels = [predictor.kernels(graph, "cpu") for graph in graphs]
    start = process_time()
    predictor.predict(graphs[0], "cpu")
    first = process_time() - start

    def anew(number: int) -> None:
        graph = graphs[number % len(graphs)]
        predictor.predict(OpGraph(graph.name, graph.ops, graph.outputs), "cpu")

    options: dict[str, Callable[[int], object]] = {
        "graph of a design, fused and predicted": anew,
        "design whose kernels are known, as the planner has them": lambda number: predictor.kernels_time(
            kernels[number % len(kernels)], "cpu"
        ),
    }
    rows: list[Row] = [{"prediction": "first of a process", "a_second": round(1 / first, 1), "fastest_round": None}]
    for name, way in options.items():
        result = rate(way)
        rows.append({"prediction": name, "a_second": round(float(np.median(result)), 1), "fastest_round": round(max(result), 1)})
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


def planning(model: str, device: str) -> Row:
    """Processor time of a plan with the shipped profile and with the one of version 0.1.0, s."""
    from stretch.capture import capture
    from stretch.models.load import load_model
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan
    from tests.predictors.specified import specified

    loaded = load_model(model, weights="none")
    graph = capture(loaded.module, loaded.input_shape, model).graph
    profiles = {"shipped": load_device(device), "without fits": specified(device)}
    times: dict[str, list[float]] = {name: [] for name in profiles}
    for _ in range(PLANS):
        for name, profile in profiles.items():
            start = process_time()
            plan(graph, profile, PlanConfig()).answer()
            times[name].append(process_time() - start)
    return {
        "planned": f"{model} for {device}",
        **{f"{name}, s": round(float(np.median(time)), 2) for name, time in times.items()},
        "ratio": round(float(np.median(times["shipped"]) / np.median(times["without fits"])), 2),
    }


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/speed.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.predictor_speed.run", description=__doc__)
    parser.add_argument("--profile", default="mi9", help="one with fits of its cpu")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speed.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    device = load_device(options.profile)
    write_record(
        options.out,
        {
            "speed": speeds(device, designs()),
            "loading": [loading(name) for name in LOADED],
            "planning": [planning(model, name) for model, name in PLANNED],
        },
        source="measured",
        command=f"python -m experiments.predictor_speed.run --profile {Path(options.profile).name}",
        runs=ROUNDS,
        interleaved=False,
        about={"planning": About(interleaved=True)},
        load=load,
        notes=[
            f"ResNet-50 in {len(WIDTHS)} widths, {EACH} predictions a round, a second of processor time on one core of {options.profile}.",
            f"planning: the median of {PLANS} plans each, in turns, processor time; the first plan of a process reads the relatives of the device.",
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
