"""Tensors between the kernels of a network, and the least memory that any plan of them takes."""

from collections.abc import Sequence
from math import prod

import numpy as np

from predictors.fusion import Kernel
from predictors.graph import OpGraph
from scheduler.memory import Lifetime, Lifetimes


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


def lower_bound(lifetimes: Lifetimes) -> int:
    """Bytes that no plan can do without: the heaviest set of tensors any two of which overlap.

    By Dilworth's theorem for weights, the value of the least flow that
    carries each tensor's bytes through it along chains of tensors that can
    follow one another, solved as a linear program.
    """
    if not lifetimes.tensors:
        return 0
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    before, count = lifetimes.before, len(lifetimes.tensors)
    direct = before & ~((before.astype(np.float32) @ before.astype(np.float32)) > 0)  # without steps that others make
    sources, targets = (indices.tolist() for indices in np.nonzero(direct))
    edges = len(sources)
    # Flow on edges, then what enters and what leaves at each tensor; flow through a tensor ≥ its bytes.
    weights = np.array([tensor.bytes for tensor in lifetimes.tensors], float)
    scale = float(weights.max())
    rows, columns, values = [], [], []
    for e, (i, j) in enumerate(zip(sources, targets, strict=True)):
        rows += [j, i]
        columns += [e, e]
        values += [1.0, -1.0]
    for i in range(count):
        rows += [i, i]
        columns += [edges + i, edges + count + i]
        values += [1.0, -1.0]
    balance = coo_array((values, (rows, columns)), shape=(count, edges + 2 * count)).tocsr()
    into = balance.maximum(0)  # what flows into each tensor
    cost = np.concatenate([np.zeros(edges), np.ones(count), np.zeros(count)])
    solved = linprog(cost, A_ub=-into, b_ub=-weights / scale, A_eq=balance, b_eq=np.zeros(count), method="highs")
    return round(float(solved.fun) * scale)
