"""Lifetimes of the tensors between the kernels of an operator graph."""

from collections.abc import Sequence
from math import prod

from predictors.fusion import Kernel
from predictors.graph import OpGraph
from scheduler.memory.lifetimes import Lifetime, Lifetimes


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
