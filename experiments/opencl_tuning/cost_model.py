"""Learns what tiles cost from measurements, and judges the ranking on networks left out: `python -m experiments.opencl_tuning.cost_model TILES`.

TILES is what `gather.py` wrote. Least squares with no coefficient below zero,
of relative errors, in which slow tiles count little: only the first rank matters.
"""

import argparse
import csv
import json
import statistics
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import nnls
from scipy.stats import spearmanr

from experiments.opencl_networks.networks import NETWORKS
from experiments.opencl_tuning.gather import HELD_OUT
from experiments.records import Value, write_record
from scheduler.delegates.opencl import schedule
from scheduler.delegates.opencl.device import Traits, open_device
from scheduler.delegates.opencl.schedule import KernelProblem, TileCosts, analytic_cycles

HERE = Path(__file__).parent
COSTS_FILE = Path(schedule.__file__).with_name("costs.json")

#: Converts ms of this machine to cycles, which other parts of the delegate use; a ranking does not depend on it.
CYCLES_A_MS = 3.7e6
#: Exponent s of a tile's weight t^(−s), where t is its time relative to the best tile's: slow tiles count less.
SLOW_COUNTS_LESS = 3
KERNELS = ("conv", "product")


@dataclass(frozen=True)
class Measured:
    """All tiles of one problem."""

    network: str  # First network with the problem.
    problem: KernelProblem  # The convolution and its shapes.
    times: dict[tuple[int, int, int], float]  # Time in ms by (VW, VC, CHANNELS_FIRST).


def read_tiles(path: Path) -> list[Measured]:
    """Read the measurements of `gather.py`, only for problems with a choice of tiles."""
    tiles: dict[tuple[str, str], Measured] = {}
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["kernel"] not in KERNELS:
                continue
            sizes = (int(row[key]) for key in ("pixels", "blocks", "depth", "batch"))
            key = row["kernel"], row["shape"]
            one = tiles.setdefault(key, Measured(row["network"], KernelProblem(*key, *sizes), {}))
            vw, vc, first = (int(row[key]) for key in ("VW", "VC", "CHANNELS_FIRST"))
            one.times[vw, vc, first] = float(row["ms"])
            one.problem.depths[vc] = int(row["tile_depth"])
    return [one for one in tiles.values() if len(one.times) > 1]


def fit(measured: list[Measured], group: int) -> TileCosts:
    """Return the costs that explain the times best.

    Args:
        measured: Measurements of some networks.
        group: Tiles of pixels in a work-group.
    """
    tiles = sorted({(vw, vc) for item in measured for vw, vc, _ in item.times})
    # Costs are linear in each parameter: the features of a time are its cycles with one parameter at 1 and the others at 0.
    units = [TileCosts({tile: float(tile == unit) for tile in tiles}, float(unit is None)) for unit in (*tiles, None)]
    features, weights = [], []
    for item in measured:
        best = min(item.times.values())
        for (vw, vc, _), ms in item.times.items():
            features.append([unit.cycles(item.problem, vw, vc, group) / (ms * CYCLES_A_MS) for unit in units])
            weights.append((best / ms) ** (SLOW_COUNTS_LESS / 2))
    result, _ = nnls(np.array(features) * np.array(weights)[:, None], np.array(weights))
    return TileCosts(dict(zip(tiles, (round(float(x), 3) for x in result), strict=False)), round(float(result[-1]), 3))


def judge(name: str, measured: list[Measured], cycles: Callable[[KernelProblem, int, int], float]) -> dict[str, Value]:
    """Return the quality of an estimate's ranking of tiles, each with both orders of the grid, channels first before pixels first."""
    correlations, first, of_four, of_eight, sums = [], [], [], [], [0.0, 0.0]
    for item in measured:
        ranked = sorted(item.times, key=lambda tile: (cycles(item.problem, tile[0], tile[1]), -tile[0], -tile[1], -tile[2]))
        times = [item.times[tile] for tile in ranked]
        best = min(times)
        if len({cycles(item.problem, vw, vc) for vw, vc, _ in ranked}) > 1:
            correlations.append(float(spearmanr([cycles(item.problem, vw, vc) for vw, vc, _ in ranked], times).statistic))
        first.append(times[0] / best)
        of_four.append(min(times[:4]) / best)
        of_eight.append(min(times[:8]) / best)
        sums = [sums[0] + times[0], sums[1] + best]
    return {
        "ranking": name,
        "problems": len(measured),
        "rank_correlation": round(statistics.median(correlations), 3),
        "first_over_best": round(statistics.geometric_mean(first), 3),
        "largest": round(max(first), 2),
        "first_over_best_of_sums": round(sums[0] / sums[1], 3),
        "best_of_4_over_best": round(statistics.geometric_mean(of_four), 3),
        "best_of_8_over_best": round(statistics.geometric_mean(of_eight), 3),
    }


def rows(measured: list[Measured], traits: Traits, costs: TileCosts) -> list[dict[str, Value]]:
    """Return the quality of the analytic and the learned ranking, on networks of the fit and on others."""
    estimates: dict[str, Callable[[KernelProblem, int, int], float]] = {
        "in no order": lambda problem, vw, vc: zlib.crc32(f"{problem.shape} {vw} {vc}".encode()),
        "analytic": lambda problem, vw, vc: analytic_cycles(traits, replace(problem, depths={}), vw, vc),
        "analytic, groups counted": lambda problem, vw, vc: analytic_cycles(traits, problem, vw, vc),
        "learned": lambda problem, vw, vc: costs.cycles(problem, vw, vc, traits.local[1]),
    }
    result = []
    for where, networks in (("fitted to", NETWORKS), ("held out", HELD_OUT)):
        for kernel in KERNELS:
            chosen = [one for one in measured if one.network in networks and one.problem.kernel == kernel]
            result += [judge(f"{name}, {kernel}, networks {where}", chosen, cycles) for name, cycles in estimates.items()]
    return result


def main(words: list[str] | None = None) -> None:
    """Fit, write the costs into the package and ``results/cost_model.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_tuning.cost_model", description=__doc__)
    parser.add_argument("tiles", type=Path)
    parser.add_argument("--load", type=float, default=0.0, help="mean number of busy processes while tiles were measured")
    options = parser.parse_args(words)
    traits = open_device(()).traits
    measured = read_tiles(options.tiles)
    costs = fit([one for one in measured if one.network in NETWORKS], traits.local[1])
    kinds = json.loads(COSTS_FILE.read_text())
    kinds[traits.id] = {"load": costs.load, "steps": [[vw, vc, cycles] for (vw, vc), cycles in costs.steps.items()]}
    partial = COSTS_FILE.with_suffix(".part")
    partial.write_text(json.dumps(kinds, indent=1) + "\n")
    partial.replace(COSTS_FILE)
    write_record(
        HERE / "results" / "cost_model.json",
        {"rankings": rows(measured, traits, costs)},
        source="measured",
        command="python -m experiments.opencl_tuning.cost_model tiles.csv",
        runs=5,
        load=options.load,
        notes=[
            f"{sum(len(one.times) for one in measured)} tiles of {len(measured)} problems, the least of five runs of each, one core. "
            f"Fitted to {', '.join(NETWORKS)}; held out: {', '.join(HELD_OUT)}."
        ],
    )


if __name__ == "__main__":
    main()
