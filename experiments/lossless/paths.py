"""Gain of networks that branch by themselves, and a bound on it: `python -m experiments.lossless.run paths`."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from experiments.networks import graph_of, largest_difference, own_precisions
from experiments.records import Row, write_record
from predictors.devices import DeviceProfile, load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from scheduler.bundle.load import load_bundle
from stretch.planning.config import PlanConfig
from stretch.planning.divisions.ends import find_tasks
from stretch.planning.plan import plan
from stretch.planning.result import PlanResult

HERE = Path(__file__).parent
#: Networks that branch by themselves, at their default sizes.
MODELS = {
    "googlenet": "GoogLeNet",
    "inception_v3": "Inception-v3",
    "timm:pnasnet5large": "PNASNet-5-Large",
    "timm:nasnetalarge": "NASNet-A-Large",
    "timm:hrnet_w18_small": "HRNet-W18-Small",
}
DEVICES = (("mi9", "cpu,gpu"), ("mi9", "cpu,gpu,dsp"), ("pixel6", "cpu,gpu"))
#: Device and processors of the designs whose outputs are compared with the original's.
TRIED_ON = ("mi9", "cpu,gpu")


def schedule_bound_ms(graph: OpGraph, device: DeviceProfile, config: PlanConfig) -> float:
    """Return a lower bound of the time of any schedule of a network's kernels on several processors without exchanges, in ms.

    List scheduling has two bounds: the longest chain of kernels, each on its fastest
    processor; and the minimum time for all kernels if they are divided arbitrarily
    (a linear program). Operators that any of the processors fuses count as one kernel.
    """
    predictor = LatencyPredictor(device)
    launched = [predictor.predict(graph, processor, config.precision[processor]).kernels for processor in config.processors]
    kernels = find_tasks(graph, [[item.kernel for item in current] for current in launched], chained=False)
    of = {name: number for number, ops in enumerate(kernels.ops) for name in ops}
    times = np.zeros((len(launched), len(kernels)))
    for row, current in zip(times, launched, strict=True):
        for item in current:
            row[of[item.kernel.ops[0]]] += item.time.ms
    until: list[float] = []
    for sources, fastest in zip(kernels.sources, times.min(axis=0), strict=True):
        until.append(max((until[source] for source in sources), default=0.0) + float(fastest))
    processors, count = times.shape
    # variables: the share of each kernel on each processor, then the time
    cost = np.append(np.zeros(processors * count), 1.0)
    loads = np.zeros((processors, processors * count + 1))
    for p in range(processors):
        loads[p, p * count : (p + 1) * count] = times[p]
        loads[p, -1] = -1.0
    whole = np.hstack([np.tile(np.eye(count), processors), np.zeros((count, 1))])
    result = linprog(cost, A_ub=loads, b_ub=np.zeros(processors), A_eq=whole, b_eq=np.ones(count))
    return max(float(result.fun), max(until))


def paths() -> None:
    """Record the plans for networks that branch by themselves."""
    rows: list[Row] = []
    for model, name in MODELS.items():
        graph = graph_of(model, None)
        for device, processors in DEVICES:
            profile = load_device(device)
            current, both = (_planned(graph, profile, processors, kinds) for kinds in (("graph",), ("rows", "graph")))
            config = PlanConfig(processors=tuple(processors.split(","))).resolve(profile)
            row: Row = {"network and device": f"{name}, {device} {processors}", "best single ms": None, "which": None}
            if both is not None:
                row |= {"best single ms": round(float(both.best_single.ms), 2), "which": both.best_single.processor}
            row |= {"own paths": _gain(current), "bands and paths": _gain(both)}
            row["bound of any schedule"] = (
                None if both is None else round(float(both.best_single.ms / schedule_bound_ms(graph, profile, config)), 3)
            )
            row |= {"MACs ratio": None if both is None else round(both.macs_ratio, 3), "links 2": None, "recommended": None}
            if both is not None:
                row["links 2"] = round(float(both.at_links(2.0).speedup or 0.0), 3)
                row["recommended"] = both.recommended.replace("_", " ")
            rows.append(row)
    write_record(
        HERE / "results" / "paths.json",
        {"paths": rows},
        source="predicted",
        command="python -m experiments.lossless.run paths",
        load=None,
        notes=[
            "Speed-ups over the best single processor, on the shipped profiles; every design computes the original's output.",
            "`bound of any schedule`: the longest chain of kernels, each on its fastest processor, or the least time in which all kernels can be computed, divided at will, whichever is longer; exchanges left out, kernels not divided by rows.",
        ],
    )


def exact() -> None:
    """Record the differences of networks along their own paths and in portions from the originals."""
    import stretch

    device, processors = TRIED_ON
    rows: list[Row] = []
    for model, name in MODELS.items():
        config = PlanConfig(kinds=("graph",), **own_precisions(load_device(device), processors))
        with tempfile.TemporaryDirectory() as folder:
            result = stretch.branch(model, device, out=Path(folder) / "bundle", config=config, weights="none", controls=False)
            assert result.original is not None
            shape = result.plan.graph.input.shape
            row: Row = {
                "network": name,
                "input": "×".join(map(str, shape[1:])),
                "subgraphs": len(load_bundle(Path(folder) / "bundle").manifest.subgraphs),
                "most in a segment": max(len(part.branches) for part in result.plan.design.segments),
                "largest difference": largest_difference(Path(folder) / "bundle", result.original.module.eval(), shape),
            }
        rows.append(row)
        sys.stderr.write(f"{row}\n")
    write_record(
        HERE / "results" / "paths_exact.json",
        {"exact": rows},
        source="measured",
        command="python -m experiments.lossless.run exact",
        runs=1,
        notes=[
            f"Planned for {device} {processors}, random weights with settled statistics; run by the scheduler on CPU cores in fp32, one input.",
            "`largest difference`: between its output and the original's in torch, over the largest output; the libraries add up in other orders.",
        ],
    )


def _planned(graph: OpGraph, device: DeviceProfile, processors: str, kinds: tuple[str, ...]) -> PlanResult | None:
    try:
        return plan(graph, device, PlanConfig(kinds=kinds, **own_precisions(device, processors)))
    except InfeasibleError:
        return None


def _gain(result: PlanResult | None) -> float | None:
    return None if result is None else round(float(result.best_single.ms / result.run.makespan_ms), 3)
