"""Exact designs as this machine runs them, compared with one processor and one graph on two threads: `python -m experiments.lossless.run measured PROFILE`."""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.records import About, Facts, Row, write_record
from predictors.devices import DeviceProfile, load_device
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.measure.benchmark import BRANCHED, Benchmark, Effort, benchmark
from scheduler.measure.steady import ratio_interval
from scheduler.runtime.session import Session
from stretch.api import branch
from stretch.planning.result import PlanResult

HERE = Path(__file__).parent

#: Networks at their default sizes: residual, inverted, with parallel paths, grouped, and with two paths per module.
NETWORKS = ("resnet18", "mobilenet_v2", "googlenet", "regnet_x_400mf", "squeezenet1_1")

BRANCHES, TWO_THREADS = "exact branches", "one graph, ONNX Runtime, 2 threads"
#: Baselines on one processor each, with the processors of the branches.
SINGLES = ("ONNX Runtime, 1 core", "OpenCL, 1 core")
#: Names of our rows, by the benchmark's names.
CONTESTANTS = dict(
    zip((BRANCHED, "original, 1 thread", "original, gpu on opencl", "original, 2 threads"), (BRANCHES, *SINGLES, TWO_THREADS), strict=True)
)
#: Times of each round in ms, by network.
Times = Mapping[str, Sequence[float]]
#: Number of rounds that do not count.
WARMUP = 3


def make_bundle(name: str, profile: DeviceProfile, folder: Path) -> tuple[PlanResult, float]:
    """Plan a network exactly and write its bundle; return the plan and its planning time in seconds."""
    built = branch(name, profile, out=folder, weights="none", lossless=True)
    return built.plan, built.seconds["plan"]


def measure(folder: Path, cores: Sequence[int], rounds: int) -> tuple[Benchmark, Times]:
    """Run a bundle, and the original on each processor and on both cores, in turns; return the benchmark and all times.

    folder: Folder of the bundle.
        cores: Core of ONNX Runtime's processor, and core of OpenCL's.
        rounds: Number of rounds that count.
        rounds: Rounds that count.
    """
    bundle = load_bundle(folder, check_hashes=True)
    with Session(bundle, {"cpu": f"cpu{cores[0]}", "gpu": f"opencl{cores[1]}"}) as session:
        result = benchmark(session, random_input(bundle), Effort(rounds, WARMUP))
    return result, {name: result.rounds[turn] for turn, name in CONTESTANTS.items()}


def row_of(name: str, plan: PlanResult, seconds: float, result: Benchmark, times: Times) -> Row:
    """Return a network's row: measured and predicted, against the best single processor and against one graph on two threads."""
    median = {item: statistics.median(values) for item, values in times.items()}
    best = min(SINGLES, key=median.__getitem__)
    single, two = (ratio_interval(times[value], times[BRANCHES]) for value in (best, TWO_THREADS))
    return {
        "network": name,
        "divided segments": plan.design.n_meet,
        "halo %": round(100 * plan.run.halo_macs / plan.graph.macs, 1),
        "measured ms": round(median[BRANCHES], 2),
        "p90 ms": round(float(np.percentile(times[BRANCHES], 90)), 2),
        "predicted ms": round(plan.run.makespan_ms, 2),
        "ratio to measured": round(plan.run.makespan_ms / median[BRANCHES], 3),
        "efficiency": None if result.efficiency is None else round(result.efficiency, 3),
        "best single": best,
        "best single ms": round(median[best], 2),
        "speed-up": round(single.value, 3),
        "speed-up from": round(single.low or 0.0, 3),
        "speed-up to": None if single.high is None else round(single.high, 3),
        "predicted speed-up": round(plan.speedup, 3),
        "two threads ms": round(median[TWO_THREADS], 2),
        "speed of branches over two threads": round(two.value, 3),
        "faster": winner(two.side),
        "max error": None if result.error is None else float(f"{result.error:.1e}"),
        "planning s": round(seconds, 2),
    }


def winner(side: int) -> str:
    """Return the faster side on two cores, by the side of one on which the interval of the ratio is."""
    return {1: BRANCHES, -1: TWO_THREADS}.get(side, "even")


def contestants_of(name: str, times: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return one row per network of the comparison, with its median and 90th percentile."""
    return [
        {
            "network and contestant": f"{name}, {item}",
            "median ms": round(statistics.median(values), 2),
            "p90 ms": round(float(np.percentile(values, 90)), 2),
        }
        for item, values in times.items()
    ]


def measured(words: Sequence[str]) -> None:
    """Measure and write ``results/measured.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.lossless.run measured", description=__doc__)
    parser.add_argument(
        "profile", type=Path, help="of this machine, with processors `cpu` on one core and `gpu`, as `stretch profile` makes it"
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--work", type=Path, default=Path("runs/lossless_measured"), help="where the bundles go")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "measured.json")
    options = parser.parse_args(words)
    cores = available_cores()[:2]
    options.work.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    single: list[Row] = []
    if len(cores) < 2:
        parser.error("exact branches are measured on two cores, this process may use one")
    profile = load_device(options.profile)
    for name in options.networks.split(","):
        folder = options.work / name.replace(":", "_")
        plan, seconds = make_bundle(name, profile, folder)
        result, times = measure(folder, cores, options.rounds)
        rows.append(row_of(name, plan, seconds, result, times))
        single += contestants_of(name, times)
        sys.stderr.write(f"{rows[-1]}\n")
    write_record(
        options.out,
        {"networks": rows, "contestants": single},
        source="measured",
        command=f"python -m experiments.lossless.run measured {options.profile.name}",
        runs=options.rounds,
        interleaved=True,
        about={
            "networks": About(
                columns={
                    **{name: Facts(source="predicted") for name in ("predicted ms", "predicted speed-up", "halo %")},
                    "planning s": Facts(runs=1, interleaved=False),
                }
            )
        },
        notes=[
            "Bundles of `stretch branch --lossless` for the profile of this machine: ONNX Runtime on one core beside our OpenCL kernels through PoCL on the other, fp32, random weights.",
            "The best single processor is the original on one core, on whichever of the two is faster; one graph on two threads has the same two cores as the branches.",
            "`max error`: from the same network as one graph, relative to its largest output.",
            "`speed of branches over two threads` is above 1 where the branches are faster; the interval of 95 % decides who is called faster.",
        ],
    )
