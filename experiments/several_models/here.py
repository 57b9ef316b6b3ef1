"""Pairs of networks that share this machine's two cores, measured: `python -m experiments.several_models.here`.

The second core replaces a GPU. Schedules take turns, round by round: each round is one inference of both networks,
from the moment at which both are asked for until both are over.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np

from experiments.command import program, stretch
from experiments.records import Row, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores
from scheduler.measure.steady import play_round
from scheduler.runtime.scheduler import Scheduler
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session

HERE = Path(__file__).parent
DEVICE = "host"
MODELS = ("resnet18", "mobilenet_v2", "googlenet", "squeezenet1_1")
#: Number of rounds of each schedule, and number of warm-up rounds.
ROUNDS, WARM = 60, 5

TURNS = "both branched, taking turns"
BRANCHED = "one after the other, branched"
THREADS = "one after the other, two threads"
MAPPED = "each whole on a core of its own"
#: Baselines of the pair that takes turns.
RIVALS = (BRANCHED, THREADS, MAPPED)

#: Function that runs one inference of each network.
Contender = Callable[[Any, Any], object]


def bundle(work: Path, model: str, words: Sequence[str]) -> Path:
    """Branch a network exactly for both cores, and return its bundle."""
    folder = work / model.replace(":", "_")
    if not folder.exists():
        options = ["--device", DEVICE, "--processors", "cpu,gpu", "--lossless", "--weights", "none", "--out", str(folder)]
        stretch("branch", model, *options, *words)
    return folder


def contenders(folders: tuple[Path, Path], cores: tuple[int, int], opened: ExitStack) -> dict[str, Contender]:
    """Return the schedules for both networks."""
    mapping = {"cpu": f"cpu{cores[0]}", "gpu": f"cpu{cores[1]}"}
    sessions = [opened.enter_context(Session(folder, mapping)) for folder in folders]
    scheduler = opened.enter_context(Scheduler({"one": folders[0], "other": folders[1]}, mapping))
    two = [Sequential(folder / "model.onnx", cores) for folder in folders]
    sequentials = [Sequential(folder / "model.onnx", (core,)) for folder, core in zip(folders, cores, strict=True)]
    pool = opened.enter_context(ThreadPoolExecutor(2))

    def turns(x: Any, y: Any) -> object:
        futures = scheduler.submit(x, "one"), scheduler.submit(y, "other")
        return [future.result() for future in futures]

    def branched(x: Any, y: Any) -> object:
        return sessions[0].run(x), sessions[1].run(y)

    def threads(x: Any, y: Any) -> object:
        return two[0].run(x), two[1].run(y)

    def mapped(x: Any, y: Any) -> object:
        futures = pool.submit(sequentials[0].run, x), pool.submit(sequentials[1].run, y)
        return [future.result() for future in futures]

    return {TURNS: turns, BRANCHED: branched, THREADS: threads, MAPPED: mapped}


def measure(result: dict[str, Contender], inputs: tuple[Any, Any], rounds: int) -> dict[str, list[float]]:
    """Return the time of each round of each schedule in ms; schedules take turns in a rotating order."""
    turns = {name: partial(timeit, partial(run, *inputs), number=1) for name, run in result.items()}
    taken = [play_round(turns, number) for number in range(WARM + rounds)][WARM:]
    return {name: [1e3 * seconds[name] for seconds in taken] for name in result}


def row_of(pair: str, times: dict[str, list[float]]) -> Row:
    """Return the row of a pair."""
    medians = {name: statistics.median(item) for name, item in times.items()}
    row: Row = {"pair": pair}
    for name, item in times.items():
        row[f"{name}: median ms"] = round(medians[name], 2)
        row[f"{name}: p90 ms"] = round(float(np.percentile(item, 90)), 2)
    for name in RIVALS:
        row[f"turns over {name}"] = round(medians[name] / medians[TURNS], 3)
    return row


def main(names: list[str] | None = None) -> None:
    """Measure every pair, and write ``results/measured.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.several_models.here", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="networks, separated by commas")
    parser.add_argument("--input", default="3x224x224", help="size of their inputs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--work", type=Path, default=Path("runs/several_models"), help="folder of the bundles")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "measured.json", help="the record")
    options = parser.parse_args(names)
    cores = available_cores()
    if len(cores) < 2:
        raise StretchError("two branches need two cores")
    both = (cores[0], cores[-1])
    options.work.mkdir(parents=True, exist_ok=True)
    folders = {model: bundle(options.work, model, ["--input", options.input]) for model in options.models.split(",")}
    x = np.random.default_rng(0).standard_normal((1, *map(int, options.input.split("x")))).astype(np.float32)
    rows = []
    for one, other in combinations(folders, 2):
        with ExitStack() as opened:
            times = measure(contenders((folders[one], folders[other]), both, opened), (x, x), options.rounds)
        rows.append(row_of(f"{one}, {other}", times))
        sys.stderr.write(f"{rows[-1]}\n")
    write_record(
        options.out,
        {"measured": rows},
        source="measured",
        command="python -m experiments.several_models.here",
        runs=options.rounds,
        interleaved=True,
        notes=[
            f"Exact designs for the profile `{DEVICE}`: the CPU is core {both[0]}, core {both[1]} stands in for a GPU; inputs {options.input}. A round is one inference of each network, asked for at the same time, until both are over.",
            "Two threads: the original networks as one graph each on ONNX Runtime with both cores. A core of its own: likewise with one core each, both at the same time.",
        ],
    )


if __name__ == "__main__":
    program(main)
