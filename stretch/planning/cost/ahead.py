"""Whether one processor is so far ahead of the others that it is best used alone, and how fast these would have to be instead."""

from collections.abc import Mapping
from dataclasses import dataclass

from predictors.graph import OpGraph
from predictors.host import HOST, is_host
from predictors.predictor import LatencyPredictor


@dataclass(frozen=True)
class Ahead:
    """The fastest processor of a request beside the others, as if a network could be divided without any loss.

    The division is as good as one can be that meets once in the middle of the network:
    every processor computes its share in the time that it takes for so much of the whole, none
    slows another down, and what crosses takes the fixed time of its link, there and back, for
    each processor but the host.
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
