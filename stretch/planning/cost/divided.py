"""How long a network takes at least, however it is divided exactly: a bound that no search has to be made for."""

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from predictors.graph import OpGraph
from predictors.host import HOST, is_host
from stretch.planning.cost.branch import Costs

#: Ratios of two processors' times that the bound is looked for at; fewer make it looser, never wrong.
MOST_RATIOS = 48


def least_divided_ms(graph: OpGraph, costs: Costs) -> float:
    """A lower bound on the makespan of every design that divides a network exactly over several processors.

    Each group of operators that no kernel spans may be shared by the processors at will, in any order, with no halo, no join and no
    contention. Of what crosses only the fixed time of each link there and back counts. It holds as far as part of a kernel takes at least
    its share of the kernel's time. That is a linear program: minimise T where the shares s of each group k add up to 1
    and each processor p ends in time, Σₖ sₚₖ tₚₖ + eₚ ≤ T. Any weights λ of the processors that add up to 1 bound it from below by
    Σₖ minₚ λₚ tₚₖ + Σₚ λₚ eₚ; the largest of some is taken.

    Args:
        graph: The original network.
        costs: On the device, in the planned precisions.

    Returns:
        ms, of the best of all subsets of two processors or more; infinite where there is one processor alone.
    """
    names = tuple(costs.precision)
    times = _times(graph, costs, names)
    exchange = np.array([0.0 if is_host(p) else costs.transfer(HOST, p, 0) + costs.transfer(p, HOST, 0) for p in names])
    subsets = [list(some) for count in range(2, len(names) + 1) for some in combinations(range(len(names)), count)]
    return min((_least(times[some], exchange[some]) for some in subsets), default=float("inf"))


def _times(graph: OpGraph, costs: Costs, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Time of each group of operators on each processor, ms, (processors × groups)."""
    launched = [costs.predictor.kernels(graph, name) for name in names]
    group = {op.name: {op.name} for op in graph.ops}
    for kernel in (kernel for kernels in launched for kernel in kernels):
        joined = set().union(*(group[name] for name in kernel.ops))
        group.update(dict.fromkeys(joined, joined))
    column = {id(item): i for i, item in enumerate({id(item): item for item in group.values()}.values())}
    times = np.zeros((len(names), len(column)))
    for row, (name, kernels) in enumerate(zip(names, launched, strict=True)):
        for kernel, time in zip(kernels, costs.predictor.each_kernels_time(kernels, name, costs.precision[name]), strict=True):
            times[row, column[id(group[kernel.ops[0]])]] += time.ms
    return times


def _least(times: NDArray[np.float64], exchange: NDArray[np.float64]) -> float:
    """The bound for processors that all take part."""
    busy = times[:, (times > 0).all(axis=0)]  # a group that costs one of them nothing bounds nothing
    if not busy.size:
        return float(exchange.max())
    # the bound is piecewise linear in the weights and bends where two processors take equally long for a group
    ratios = [np.unique(np.quantile(busy[0] / row, np.linspace(0, 1, MOST_RATIOS), method="nearest")) for row in busy[1:]]
    weights = np.array([(1.0, *item) for item in product(*ratios)])
    weights /= weights.sum(axis=1, keepdims=True)
    total = (weights[:, :, None] * busy).min(axis=1).sum(axis=1) + weights @ exchange
    return float(max(total.max(), exchange.max()))
