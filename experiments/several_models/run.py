"""Pairs of networks that share a phone's processors, simulated: `python -m experiments.several_models.run`."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean, median

from experiments.networks import graph_of, own_precisions
from experiments.records import Row, write_record
from predictors.devices import DeviceProfile, load_device
from stretch.planning.config import PlanConfig
from stretch.stages.together import BestPair, Candidate, CandidatePair, best_pair, candidates

HERE = Path(__file__).parent
DEVICE, PROCESSORS = "mi9-release", ("cpu", "gpu", "dsp")

#: Networks of several sizes and kinds, at 224×224.
MODELS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "regnet_x_1_6gf",
    "googlenet",
    "densenet121",
    "shufflenet_v2_x1_0",
    "mnasnet1_0",
    "squeezenet1_1",
    "vgg11",
)

#: Minimum ratio for which a pair counts as gaining.
MORE = 1.01

#: Number of designs for each set of processors, and their maximum time relative to the best one's.
TOP, WITHIN = 2, 1.3


def ways(models: Sequence[str], device: DeviceProfile) -> dict[str, list[Candidate]]:
    """Return the candidates of each network: exact designs for every set of processors, and the whole network on each processor."""
    result = {}
    for model in models:
        began = time.perf_counter()
        result[model] = candidates(
            graph_of(model), device, PlanConfig(lossless=True, **own_precisions(device, ",".join(PROCESSORS))), TOP, WITHIN
        )
        sys.stderr.write(f"{model}: {len(result[model])} candidates in {time.perf_counter() - began:.1f} s\n")
    return result


def pair_row(one: str, other: str, once: BestPair, often: BestPair) -> Row:
    """Return the row of a pair of networks: until one inference of each is over, and for many successive ones."""
    best, fixed, sequential = once.best, once.fixed, once.sequential
    rate, fixed_rate = often.best.pairs_per_second or 0.0, often.fixed.pairs_per_second or 0.0
    sequential_rate = 1e3 / sequential.makespan_ms
    return {
        "pair": f"{one}, {other}",
        "one after the other, ms": round(sequential.makespan_ms, 3),
        "best mapping, ms": round(fixed.makespan_ms, 3),
        "together, ms": round(best.makespan_ms, 3),
        "over one after the other": round(sequential.makespan_ms / best.makespan_ms, 3),
        "over the mapping": round(fixed.makespan_ms / best.makespan_ms, 3),
        "one after the other, pairs a second": round(sequential_rate, 3),
        "best mapping, pairs a second": round(fixed_rate, 3),
        "together, pairs a second": round(rate, 3),
        "rate over one after the other": round(rate / sequential_rate, 3),
        "rate over the mapping": round(rate / fixed_rate, 3),
        "mapping": words(once.fixed),
        "designs": words(once.best),
        "designs for the rate": words(often.best),
    }


def words(pair: CandidatePair) -> str:
    """Return the processors that each network uses, as text."""
    return "; ".join("+".join(value.processors) for value in (pair.first, pair.second))


def rows_of(result: Mapping[str, list[Candidate]], device: DeviceProfile) -> list[Row]:
    """Return a row for each pair of networks."""
    rows = []
    for one, other in combinations(result, 2):
        both = result[one], result[other]
        once, often = (best_pair(*both, device, PROCESSORS, goal) for goal in ("makespan", "throughput"))
        rows.append(pair_row(one, other, once, often))
        sys.stderr.write(f"{rows[-1]['pair']}: {rows[-1]['over one after the other']} and {rows[-1]['over the mapping']}\n")
    return rows


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the means of ratios over all pairs, and the number of pairs whose best candidates have designs of several processors."""
    result = []
    for name in ("over one after the other", "over the mapping", "rate over one after the other", "rate over the mapping"):
        ratios = [float(row[name] or 0) for row in rows]
        row: Row = {
            "ratio": name,
            "pairs": len(ratios),
            "geometric mean": round(geometric_mean(ratios), 3),
            "median": round(median(ratios), 3),
            "least": min(ratios),
            "greatest": max(ratios),
            f"pairs above {MORE:g}": sum(ratio > MORE for ratio in ratios),
        }
        result.append(row)
    return result


def main(names: list[str] | None = None) -> None:
    """Simulate every pair, and write ``results/simulated.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.several_models.run", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="networks, separated by commas")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulated.json", help="the record")
    options = parser.parse_args(names)
    device = load_device(DEVICE)
    result = ways(options.models.split(","), device)
    rows = rows_of(result, device)
    alone: list[Row] = []
    for model, network_candidates in result.items():
        whole = [item for item in network_candidates if item.design is None]
        best = min(network_candidates, key=lambda item: item.alone_ms)
        row: Row = {
            "network": model,
            "candidates": len(network_candidates),
            "best, ms": round(best.alone_ms, 3),
            "its processors": "+".join(best.processors),
        }
        row |= {f"{item.processors[0]} alone, ms": round(item.alone_ms, 3) for item in sorted(whole, key=lambda item: item.processors)}
        alone.append(row)
    write_record(
        options.out,
        {"summary": summary(rows), "networks": alone, "pairs": rows},
        source="simulated",
        command="python -m experiments.several_models.run",
        runs=1,
        notes=[
            f"Times are those of the profile of {DEVICE} as this commit has it; nothing ran on a phone. Networks at 224×224, exact designs, which compute what the originals compute.",
            "One after the other: each network on the candidate that is fastest alone. Best mapping: each network whole on one processor, the best of all such pairs, run at the same time. Together: the best pair of all candidates, whole networks among them. Subgraphs take turns on processors as those of a Scheduler do.",
            "ms: one inference of each begun together, until both are over. Pairs a second: with two of each in flight.",
        ],
    )


if __name__ == "__main__":
    main()
