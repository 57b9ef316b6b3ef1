"""What networks gain that branch by themselves, and a bound on it: `python -m experiments.lossless.run paths`."""

from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from experiments.records import Value, write_record
from predictors.devices import DeviceProfile, load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.result import PlanResult

HERE = Path(__file__).parent
#: Networks with parallel paths, at the sizes that they are made for.
MODELS = {"googlenet": "GoogLeNet", "inception_v3": "Inception-v3"}
DEVICES = (("mi9", "cpu,gpu"), ("mi9", "cpu,gpu,dsp"), ("pixel6", "cpu,gpu"))
Row = dict[str, Value]


def schedule_bound_ms(graph: OpGraph, device: DeviceProfile, config: PlanConfig) -> float:
    """A time that no schedule of a network's kernels on several processors can be below, exchanges left out, ms.

    List scheduling's two bounds: the longest chain of kernels, each on its fastest
    processor; and the least time in which all kernels, divided at will, can be
    computed (a linear program).
    """
    predictor, host = LatencyPredictor(device), config.processors[0]
    kernels = predictor.kernels(graph, host)
    rows = []
    for processor in config.processors:
        own = predictor.predict(graph, processor, config.precision[processor]).kernels
        if [each.kernel.ops for each in own] != [kernel.ops for kernel in kernels]:
            raise ValueError(f"the kernels of {processor} and {host} cannot be compared one by one")
        rows.append([each.time.ms for each in own])
    times = np.array(rows)
    fastest = dict(zip((kernel.name for kernel in kernels), times.min(axis=0), strict=True))
    last = {kernel.ops[-1]: kernel.name for kernel in kernels}
    until: dict[str, float] = {}
    for op in graph.ops:
        until[op.name] = max((until[name] for name in op.inputs), default=0.0) + (fastest[last[op.name]] if op.name in last else 0.0)
    processors, count = times.shape
    # variables: the share of each kernel on each processor, then the time
    cost = np.append(np.zeros(processors * count), 1.0)
    loads = np.zeros((processors, processors * count + 1))
    for p in range(processors):
        loads[p, p * count : (p + 1) * count] = times[p]
        loads[p, -1] = -1.0
    whole = np.hstack([np.tile(np.eye(count), processors), np.zeros((count, 1))])
    found = linprog(cost, A_ub=loads, b_ub=np.zeros(processors), A_eq=whole, b_eq=np.ones(count))
    return max(float(found.fun), max(until.values()))


def paths() -> None:
    """Record what is planned for networks that branch by themselves."""
    from stretch.capture import capture
    from stretch.models.load import load_model

    rows: list[Row] = []
    for model, name in MODELS.items():
        loaded = load_model(model, weights="none")
        graph = capture(loaded.module, loaded.input_shape, model).graph
        for device, processors in DEVICES:
            known = load_device(device)
            own, both = (_planned(graph, known, processors, kinds) for kinds in (("own",), ("rows", "own")))
            config = PlanConfig(processors=tuple(processors.split(","))).checked(known)
            row: Row = {"network and device": f"{name}, {device} {processors}", "best single ms": None, "which": None}
            if both is not None:
                row |= {"best single ms": round(float(both.best_single.ms), 2), "which": both.best_single.processor}
            row |= {"own paths": _gain(own), "bands and paths": _gain(both)}
            row["bound of any schedule"] = (
                None if both is None else round(float(both.best_single.ms / schedule_bound_ms(graph, known, config)), 3)
            )
            row |= {"MACs ratio": None if both is None else round(both.macs_ratio, 3), "links 2": None, "recommended": None}
            if both is not None:
                row["links 2"] = round(float(next(each.speedup for each in both.certainty.links if each.factor == 2)), 3)
                row["recommended"] = both.recommended.replace("_", " ")
            rows.append(row)
    write_record(
        HERE / "results" / "paths.json",
        {"paths": rows},
        source="predicted",
        command="python -m experiments.lossless.run paths",
        runs=None,
        load=None,
        notes=[
            "Speed-ups over the best single processor, on the shipped profiles; every design computes the original's output.",
            "`bound of any schedule`: the longest chain of kernels, each on its fastest processor, or the least time in which all kernels can be computed, divided at will, whichever is longer; exchanges left out, kernels not divided by rows.",
        ],
    )


def _planned(graph: OpGraph, device: DeviceProfile, processors: str, kinds: tuple[str, ...]) -> PlanResult | None:
    try:
        return plan(graph, device, PlanConfig(processors=tuple(processors.split(",")), kinds=kinds))
    except InfeasibleError:
        return None


def _gain(result: PlanResult | None) -> float | None:
    return None if result is None else round(float(result.best_single.ms / result.run.makespan_ms), 3)
