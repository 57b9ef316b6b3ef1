"""Memory of intermediate tensors by four planners, against the least there can be: `python -m experiments.memory_planning.run`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.records import Value, write_record
from predictors.errors import InfeasibleError
from predictors.fusion import Kernel, fuse
from predictors.graph import OpGraph
from scheduler.memory import Lifetimes, plan_memory
from scheduler.memory.plan import graph_lifetimes

HERE = Path(__file__).parent
BACKEND = "tflite_gpu"
#: fp16 in slices of four channels, as the GPU backend of paper 000 stores them.
ITEM_BYTES, LANES = 2, 4
PLANNERS = ("naive", "greedy", "flow", "offset")
MODELS = (
    "resnet18",
    "resnet50",
    "regnet_x_1_6gf",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "vgg16",
    "squeezenet1_1",
    "densenet121",
    "shufflenet_v2_x1_0",
)


def ordered(graph: OpGraph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels by the operator that ends them: a fused addition waits for what it adds."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    return sorted(kernels, key=lambda kernel: max(position[name] for name in kernel.ops))


def mib(count: int) -> float:
    """Bytes in MiB."""
    return round(count / 2**20, 3)


def lifetimes(graph: OpGraph, concurrent: bool = False) -> Lifetimes:
    """Of the tensors between the kernels of the GPU backend."""
    return graph_lifetimes(graph, ordered(graph, fuse(graph, BACKEND)), ITEM_BYTES, LANES, concurrent)


def row(name: str, built: Lifetimes) -> dict[str, Value]:
    """The totals of all planners, each plan checked."""
    result: dict[str, Value] = {"network": name, "tensors": len(built.tensors), "lower bound MiB": mib(built.lower_bound)}
    for planner in PLANNERS:
        plan = plan_memory(built, planner)
        problem = plan.problem(built)
        if problem is not None:
            raise AssertionError(f"{planner} on {name}: {problem}")
        result[f"{planner} MiB"] = mib(plan.total_bytes)
    best = plan_memory(built, "offset").total_bytes
    result["offset over bound"] = round(best / built.lower_bound, 4)
    return result


def main() -> int:
    """Plan all networks and write ``results/planners.json``."""
    from predictors.devices import load_device
    from stretch.capture import capture
    from stretch.models import load_model
    from stretch.planning.config import PlanConfig
    from stretch.planning.design.scale import scaled_graph
    from stretch.planning.plan import plan

    load = os.getloadavg()[0]
    originals: list[dict[str, Value]] = []
    branched: list[dict[str, Value]] = []
    for name in MODELS:
        loaded = load_model(name, weights="none")
        graph = capture(loaded.module, loaded.input_shape, name).graph
        originals.append(row(name, lifetimes(graph)))
        try:
            design = plan(graph, load_device("pixel6"), PlanConfig(processors=("cpu", "gpu"))).design
        except InfeasibleError:
            continue
        net = scaled_graph(graph, design)
        one_by_one, side_by_side = lifetimes(net), lifetimes(net, concurrent=True)
        first = row(f"{name}, branches one after the other", one_by_one)
        second = row(f"{name}, branches side by side", side_by_side)
        branched += [first, second]
    write_record(
        HERE / "results" / "planners.json",
        {"original": originals, "branched": branched},
        source="simulated",
        command="python -m experiments.memory_planning.run",
        runs=1,
        load=load,
        notes=[
            "Bytes are counted, not measured: the plans of scheduler/memory for the tensors between the fused kernels, fp16 in slices of four channels, offsets in multiples of 64 bytes."
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
