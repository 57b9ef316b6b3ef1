"""Memory of intermediate tensors by four planners, against the least there can be: `python -m experiments.memory_planning.run`."""

import os
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, eye_array, hstack

from experiments.records import Value, write_record
from predictors.errors import InfeasibleError
from predictors.fusion import Kernel, fuse
from predictors.graph import OpGraph
from scheduler.memory import Lifetime, Lifetimes, plan_memory

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


def lower_bound(lifetimes: Lifetimes) -> int:
    """Bytes that no plan can do without: the heaviest set of tensors any two of which overlap.

    By Dilworth's theorem for weights, the value of the least flow that carries each tensor's bytes through it along chains of
    tensors that can follow one another, solved as a linear program.
    """
    tensors, before = lifetimes.tensors, lifetimes.before
    if not tensors:
        return 0
    direct = before & ~((before.astype(np.float32) @ before.astype(np.float32)) > 0)  # without steps that others make
    sources, targets = np.nonzero(direct)
    edges, ones = np.arange(len(sources)), np.ones(len(sources))
    weights = np.array([tensor.bytes for tensor in tensors], float)
    scale = float(weights.max())
    # Flow on edges, then what enters and what leaves at each tensor; flow through a tensor ≥ its bytes.
    into, out = (coo_array((ones, (ends, edges)), (len(tensors), len(edges))) for ends in (targets, sources))
    balance = hstack([into - out, eye_array(len(tensors)), -eye_array(len(tensors))]).tocsr()
    cost = np.concatenate([0 * ones, np.ones(len(tensors)), np.zeros(len(tensors))])
    solved = linprog(cost, A_ub=-balance.maximum(0), b_ub=-weights / scale, A_eq=balance, b_eq=np.zeros(len(tensors)), method="highs")
    return round(float(solved.fun) * scale)


def graph_lifetimes(graph: OpGraph, kernels: Sequence[Kernel], item_bytes: int = 4, lanes: int = 4, concurrent: bool = False) -> Lifetimes:
    """Tensors that kernels hand to each other; the graph's input and output belong to the caller and are left out.

    Args:
        graph: The operators, such as a whole branched network.
        lanes: Channels are stored in multiples of this many (4 in the PHWC4 layout of paper 000).
        concurrent: Whether kernels of different subgraphs (the ``subgraph`` tag
            of their operators) run as soon as what they read is there; else all
            run one after the other.
    """
    step_of = {name: i for i, kernel in enumerate(kernels) for name in kernel.ops}
    written = {kernel.ops[-1]: i for i, kernel in enumerate(kernels)}

    def source(name: str) -> str | None:
        """The tensor whose memory a tensor is: operators without a kernel only give it another name."""
        while name not in step_of:
            inputs = graph.by_name[name].inputs
            if not inputs:
                return None  # the graph's input
            name = inputs[0]
        return name

    uses: dict[str, list[int]] = {name: [step] for name, step in written.items()}
    needed: list[set[int]] = [set() for _ in kernels]
    for step, kernel in enumerate(kernels):
        for name in kernel.ops:
            for read in graph.by_name[name].inputs:
                tensor = source(read)
                if tensor is not None and step_of[tensor] != step:
                    uses.setdefault(tensor, [step_of[tensor]]).append(step)
                    needed[step].add(step_of[tensor])
    result = source(graph.output)
    tensors = []
    for name, steps in sorted(uses.items(), key=lambda item: item[1][0]):
        if name != result:
            shape = graph.by_name[name].shape
            stored = (shape[0], -(-shape[1] // lanes) * lanes, *shape[2:]) if len(shape) > 1 else shape
            tensors.append(Lifetime(name, prod(stored) * item_bytes, tuple(sorted(set(steps)))))
    if not concurrent:
        return Lifetimes(tensors)
    last: dict[str, int] = {}
    for step, kernel in enumerate(kernels):
        subgraph = graph.by_name[kernel.ops[-1]].tags.get("subgraph", "")
        if subgraph in last:
            needed[step].add(last[subgraph])
        last[subgraph] = step
    return Lifetimes(tensors, [tuple(sorted(steps)) for steps in needed])


def lifetimes(graph: OpGraph, concurrent: bool = False) -> Lifetimes:
    """Of the tensors between the kernels of the GPU backend."""
    return graph_lifetimes(graph, ordered(graph, fuse(graph, BACKEND)), ITEM_BYTES, LANES, concurrent)


def row(name: str, built: Lifetimes) -> dict[str, Value]:
    """The totals of all planners, each plan checked."""
    least = lower_bound(built)
    result: dict[str, Value] = {"network": name, "tensors": len(built.tensors), "lower bound MiB": mib(least)}
    for planner in PLANNERS:
        plan = plan_memory(built, planner)
        problem = plan.problem(built)
        if problem is not None:
            raise AssertionError(f"{planner} on {name}: {problem}")
        result[f"{planner} MiB"] = mib(plan.total_bytes)
    best = plan_memory(built, "offset").total_bytes
    result["offset over bound"] = round(best / least, 4)
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
