"""Whether one processor is so far ahead of the others that it is best used alone, and how fast these would have to be instead."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from predictors.graph import OpGraph
from predictors.host import HOST, is_host
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.network.units import components


@dataclass(frozen=True)
class Ahead:
    """The fastest processor of a request beside the others, as if a network could be divided without any loss.

    Every processor computes its share in the time that it takes for so much of the whole, none slows another down, and what
    crosses, once in the middle of the network, takes the fixed time of its link, there and back, for each but the host.
    """

    processor: str  # The fastest.
    alone_ms: float  # What it takes by itself, transfers of the input and output left out.
    divided_ms: float  # What that division takes; never less than `alone_ms` where nobody can help.
    handover_ms: float  # What crosses there and back, of the processor whose link takes longest.
    #: How many times as fast all others would have to be for that division to take no longer than `alone_ms`; None where they are already,
    #: or never would be.
    crossover: float | None
    margin: float  # How many times as fast they may be, beside it, for all that the intervals of their times say.

    @property
    def far(self) -> bool:
        """Whether not even that division is faster, also at the ends of the intervals."""
        return self.divided_ms >= self.alone_ms and (self.crossover is None or self.crossover > self.margin)


def ahead(graph: OpGraph, predictor: LatencyPredictor, precision: Mapping[str, str], best: tuple[str, str]) -> Ahead:
    """How far one processor is ahead of the others of a request."""
    processor, at = best
    device = predictor.device
    family = device.processor(processor).family
    best_estimate = predictor.predict(graph, processor, at)
    alone, margin = best_estimate.computing_ms, 1.0
    exchange = {processor: _exchange_ms(predictor, processor, at)}
    times = {processor: alone}
    for name, its in precision.items():
        if device.processor(name).family != family:
            estimate = predictor.predict(graph, name, its)
            times[name] = estimate.computing_ms
            margin = max(margin, estimate.ms / estimate.low_ms * best_estimate.high_ms / best_estimate.ms)
            exchange[name] = _exchange_ms(predictor, name, its)
    divided = _divided_ms(times, exchange)
    helped = sum(max(0.0, alone - exchange[name]) / ms for name, ms in times.items() if name != processor)
    left = min(alone, exchange[processor]) / alone
    crossover = left / helped if helped and left > helped else None
    return Ahead(processor, alone, divided, max(exchange.values()), crossover, margin)


def _exchange_ms(predictor: LatencyPredictor, processor: str, precision: str) -> float:
    """The fixed time of a link, there and back; nothing for the host."""
    if is_host(processor):
        return 0.0
    return predictor.links.ms(HOST, processor, 0, precision) + predictor.links.ms(processor, HOST, 0, precision)


def _divided_ms(times: Mapping[str, float], exchange: Mapping[str, float]) -> float:
    """When all of a network is computed, if each processor works from the end of its exchange on: Σ (T − e) ÷ t is 1."""
    rate, begun, number = 0.0, 0.0, float("inf")
    for name in sorted(times, key=lambda item: exchange[item]):
        if exchange[name] >= number:
            break  # it would begin when all is done
        rate += 1 / times[name]
        begun += exchange[name] / times[name]
        number = (1 + begun) / rate
    return number


# How long a network takes at least, however it is divided exactly: a bound that no search has to be made for.

#: Ratios of two processors' times that the bound is looked for at; fewer make it looser, never wrong.
MOST_RATIOS = 48


def least_divided_ms(graph: OpGraph, costs: Costs) -> float:
    """A lower bound, ms, on the makespan of every design that divides a network exactly over several processors; infinite for one.

    Each group of operators that no kernel spans may be shared by the processors at will, in any order, with no halo, no join and no
    contention. Of what crosses only the fixed time of each link there and back counts. It holds as far as part of a kernel takes at least
    its share of the kernel's time. That is a linear program: minimise T where the shares s of each group k add up to 1
    and each processor p ends in time, Σₖ sₚₖ tₚₖ + eₚ ≤ T. Any weights λ of the processors that add up to 1 bound it from below by
    Σₖ minₚ λₚ tₚₖ + Σₚ λₚ eₚ; the largest of some is taken.
    """
    names = tuple(costs.precision)
    times = _times(graph, costs, names)
    exchange = np.array([0.0 if is_host(p) else costs.transfer(HOST, p, 0) + costs.transfer(p, HOST, 0) for p in names])
    subsets = [list(some) for count in range(2, len(names) + 1) for some in combinations(range(len(names)), count)]
    return min((_least(times[some], exchange[some]) for some in subsets), default=float("inf"))


def _times(graph: OpGraph, costs: Costs, names: tuple[str, ...]) -> NDArray[np.float64]:
    """Time of each group of operators on each processor, ms, (processors × groups)."""
    launched = [costs.predictor.kernels(graph, name) for name in names]
    groups = components((op.name for op in graph.ops), [kernel.ops for kernels in launched for kernel in kernels])
    column = {name: i for i, group in enumerate(groups) for name in group}
    times = np.zeros((len(names), len(groups)))
    for row, (name, kernels) in enumerate(zip(names, launched, strict=True)):
        for kernel, time in zip(kernels, costs.predictor.each_kernels_time(kernels, name, costs.precision[name]), strict=True):
            times[row, column[kernel.ops[0]]] += time.ms
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
