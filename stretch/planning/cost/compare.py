"""Comparison of two predicted runs: which one is faster, with the probability.

Two runs on one device are predicted from the same numbers (kernels, links, contention), and an error of a number affects every
run equally: if the GPU's convolutions are slower than predicted, they are slower in the branched run and in its controls. So a
run keeps, for each number, the ms that are proportional to it, and a comparison draws all numbers at once. The result is the share of
draws in which one run is faster. Times of a processor that were fitted, or estimated from similar chips, err together, by the
interval of the fit; else each kind of kernel errs independently, by the uncertainty in the profile.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import combinations, product
from math import log, prod
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from predictors.host import HOST, is_host, kind_of
from predictors.predictor import Estimate, Handover, LatencyPredictor
from predictors.structs import Answer
from scheduler.simulate.schedule import execution_order, longest_path
from stretch.planning.cost.branch import Floats
from stretch.planning.cost.makespan import Step

#: Relative rounding difference between two times of one design.
_TOLERANCE = 1e-9
#: Number of draws of a comparison; a probability of 0.7 is then accurate to 0.02.
DRAWS = 2000
#: Half-width of a 90 % interval in standard deviations.
_DEVIATIONS = 1.645
#: Prefix of the name of a link's number.
LINK = "the link to"
#: Names of groups of related numbers.
LINKS, CONTENTION = "all links", "contention"
#: Factors on a link's stated time if its profile has no interval: the spread between public runs of one chip with several runtimes.
LINK_SPREAD = (0.5, 2.0)
#: Minimum predicted speed-up over every control to recommend branches, because a single processor is easier to build and maintain.
MIN_GAIN = 1.03
#: Minimum probability that branches miss this gain, to recommend a control.
MIN_CONFIDENCE = 0.7
#: Factors on a group of related times, to see whether the recommendation changes.
FACTORS = (0.5, 2.0)
#: Maximum factor to try for a faster processor.
MAX_SPEED_FACTOR = 64.0
#: Bisections of the crossover's interval, in ratios; the result has six digits.
_HALVINGS = 22

BRANCHED, NO_CLEAR_WINNER = "branched", "no clear winner"
#: Display names of baselines, and of a recommendation without a baseline.
BASELINES = {
    NO_CLEAR_WINNER: "too close to call",
    "single": "original, {} only",
    "sequential_same_macs": "sequential, same MACs",
    "shortened": "fewer blocks, {} only",
    "whole_graph": "branched, as one graph",
    "original": "original",
}


class UncertainFactor(NamedTuple):
    """A predicted number and the 90 % interval of the factor between its true and its predicted value."""

    what: str  # Name of the number, such as ``conv kernels on gpu``.
    low: float  # Lower end.
    high: float  # Upper end.
    group: str = ""  # Group of numbers with related errors, such as ``times on gpu``.


#: Factors by number: an array with one factor per draw, or a float.
Factors = Mapping[UncertainFactor, Any]


def link(processor: str, device: DeviceProfile) -> UncertainFactor:
    """Return the factor of the link between the host and a processor, with the interval from its profile.

    A measured constant per inference may replace a transfer and include it; then the interval covers both.
    """
    stated = device.links[processor]
    low, high = stated.spread.value if stated.spread else LINK_SPREAD
    if (constant := device.inference_constant(processor)) and constant.ms > stated.fixed_ms:
        low, high = low * stated.fixed_ms / constant.ms, constant.high
    return UncertainFactor(f"{LINK} {processor}", round(max(low, 1e-3), 9), high, LINKS)


def computing_factor_name(processor: str) -> str:
    """Return the name of the group that holds one processor's compute times."""
    return f"times on {processor.partition('[')[0]}"


def kernel_times(estimate: Estimate, device: DeviceProfile) -> dict[UncertainFactor, float]:
    """Return the compute time of an estimate, ms by the number that each part is proportional to."""
    family = estimate.processor.partition("[")[0]
    if not estimate.computing_ms:  # a part that launches no kernel has no uncertain time
        return {}
    if estimate.origin != "roofline":
        spread = estimate.low_ms / estimate.ms, estimate.high_ms / estimate.ms
        return {_times(estimate.processor, estimate.precision, spread): estimate.computing_ms}
    off = 1 + device.processors[family].uncertainty.value
    result: dict[UncertainFactor, float] = {}
    for kernel in estimate.kernels:
        key = UncertainFactor(f"{kernel.kernel.cost.kind} kernels on {family}", 1 / off, off, computing_factor_name(family))
        result[key] = result.get(key, 0.0) + kernel.time.ms
    return result


def _times(processor: str, precision: str, spread: tuple[float, float]) -> UncertainFactor:
    """Return the factor of all times of a processor in a precision."""
    low, high = (round(end, 9) for end in spread)
    return UncertainFactor(f"times of {processor} in {precision}", low, high, computing_factor_name(processor))


def handover_times(handover: Handover, device: DeviceProfile) -> dict[UncertainFactor, float]:
    """Return the time of an inference in addition to its kernels, ms by the number that it is proportional to."""
    if not handover.ms:
        return {}
    if handover.measured:
        return {_times(handover.processor, handover.precision, handover.measured): handover.ms}
    return {link(kind_of(handover.processor), device): handover.ms}


def _ms(parts: Mapping[UncertainFactor, float], factors: Factors) -> Any:
    """Return the time of all parts with these factors on their numbers, ms; numbers without a factor are as predicted."""
    return sum((part * factors.get(key, 1.0) for key, part in parts.items()), 0.0)


def draw_factors(unknowns: Iterable[UncertainFactor], draws: int = DRAWS) -> dict[UncertainFactor, Floats]:
    """Draw independent log-normal factors for each number from its interval; the draws do not depend on other numbers."""
    return {unknown: _draw_factor(unknown, draws) for unknown in set(unknowns)}


@lru_cache(maxsize=1024)
def _draw_factor(unknown: UncertainFactor, draws: int) -> Floats:
    generator = np.random.default_rng([0, crc32(unknown.what.encode())])
    middle, width = (log(unknown.low) + log(unknown.high)) / 2, (log(unknown.high) - log(unknown.low)) / 2 / _DEVIATIONS
    return np.exp(middle + width * generator.standard_normal(draws))


def fraction_true(draws: NDArray[np.bool_]) -> float:
    """Return Laplace's estimate of the probability of an event from boolean draws, which is never 0 or 1."""
    return float((np.sum(draws) + 1) / (draws.size + 2))


def interval(times: Floats) -> tuple[float, float]:
    """Return the ends of the 90 % interval of the draws."""
    low, high = np.quantile(times, (0.05, 0.95))
    return float(low), float(high)


def baseline(name: str) -> str:
    """Return the display name of a baseline's internal id."""
    kind, _, where = name.partition(":")
    return BASELINES.get(kind, name).format(where)


@dataclass(frozen=True)
class UncertainStep:
    """One step of a predicted run."""

    parts: Mapping[UncertainFactor, float]  # Transfer times, ms by the number that each part is proportional to.
    waits: tuple[int, ...] = ()  # Numbers of the steps that end before it starts.
    fixed_ms: float = 0.0  # Remaining time, without uncertainty.
    #: Compute time, contention included, ms by number; `contended` has the share that contention with other steps changes, by number.
    computing: Mapping[UncertainFactor, float] = field(default_factory=dict)
    contended: Mapping[UncertainFactor, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, estimate: Estimate, device: DeviceProfile, links: Mapping[str, float], computing_ms: float, together: Mapping[str, float] = {}
    ) -> "UncertainStep":
        """Return the step of a branch that computes for `computing_ms`, contention included; `together` has the ms in parallel with each other kind of processor."""
        moving = {link(processor, device): ms for processor, ms in links.items()}
        alone, kind = kernel_times(estimate, device), kind_of(estimate.processor)
        if not alone:
            return cls(moving)
        longer, share = computing_ms / estimate.computing_ms, sum(estimate.computing.shares)
        contended = {
            UncertainFactor(f"contention of {other} on {kind}", one.low / one.value, one.high / one.value, CONTENTION): share
            * min(1.0, together[other] / computing_ms)
            for other, one in device.processors[kind].contention.items()
            if together.get(other) and one.low < one.high
        }
        return cls(moving, computing={key: ms * longer for key, ms in alone.items()}, contended=contended)

    def ms(self, factors: Factors) -> Any:
        """Return the time if numbers are off by these factors."""
        shares = (1 + share * (factors.get(key, 1.0) - 1) for key, share in self.contended.items())
        return _ms(self.computing, factors) * prod(shares) + _ms(self.parts, factors) + self.fixed_ms


@dataclass(frozen=True)
class PredictedRun:
    """A run as steps that run side by side or wait for each other, in the order of its schedule."""

    steps: Sequence[UncertainStep]  # Branches, joins and sides.
    #: Time after the steps, such as the transfer of the result, ms by the number that it is proportional to.
    parts: Mapping[UncertainFactor, float] = field(default_factory=dict)

    def ms(self, factors: Factors | None = None) -> float:
        """Return the time if numbers are off by these factors."""
        return float(self._ms(factors or {}))

    def drawn_ms(self, factors: Mapping[UncertainFactor, Floats]) -> Floats:
        """Return the run's time in each draw, ms."""
        return np.broadcast_to(np.asarray(self._ms(factors), dtype=np.float64), (len(next(iter(factors.values()), np.ones(1))),))

    def _ms(self, factors: Factors) -> Floats | float:
        ends = longest_path([step.ms(factors) for step in self.steps], [step.waits for step in self.steps])
        total: Floats | float = reduce(np.maximum, ends, 0.0) + _ms(self.parts, factors)
        return total

    @property
    def overlaps(self) -> bool:
        """Whether any two steps that take time can run side by side: neither waits for the other, directly or indirectly."""
        ancestors = [frozenset[int]()] * len(self.steps)
        for number in execution_order(tuple(step.waits for step in self.steps)):
            waits = self.steps[number].waits
            ancestors[number] = frozenset(waits).union(*(ancestors[wait] for wait in waits))
        busy = [i for i, step in enumerate(self.steps) if step.fixed_ms or any((*step.parts.values(), *step.computing.values()))]
        return any(a not in ancestors[b] and b not in ancestors[a] for a, b in combinations(busy, 2))

    @property
    def unknowns(self) -> set[UncertainFactor]:
        """The uncertain numbers that its time depends on."""
        return {*self.parts, *(key for step in self.steps for numbers in (step.parts, step.computing, step.contended) for key in numbers)}


def uncertain_run(
    steps: Sequence[Step], device: DeviceProfile, output: Mapping[str, float] = {}, handover: Handover | None = None
) -> PredictedRun:
    """Return the run of a timeline's steps with uncertain times; the time of a join has no uncertainty.

    Args:
        output: Transfer times of the result, ms by processor at the far end of the link.
        handover: Constant time per inference.
    """
    uncertain = []
    for step in steps:
        time = step.time
        if time is None:
            uncertain.append(UncertainStep({}, step.waits, step.job.ms))
        else:
            branch = UncertainStep.of(time.estimate, device, time.links, time.ms + time.contention_ms, time.together)
            uncertain.append(replace(branch, waits=step.waits))
    parts = {link(far, device): ms for far, ms in output.items()} | (handover_times(handover, device) if handover else {})
    return PredictedRun(uncertain, parts)


def single_run(estimate: Estimate, device: DeviceProfile) -> PredictedRun:
    """Return the run of a whole network on one processor."""
    return PredictedRun([UncertainStep(kernel_times(estimate, device))], handover_times(estimate.handover, device))


class LinkFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of a design with every link at the lower end of its interval, as stated, or at the upper end."""

    factor: float  # Factor on transfer times; for several links, the factor furthest from 1.
    makespan_ms: float  # Of the branched run.
    speedup: float | None  # Speed-up over the best single processor with the same factors; None if it was not compared.


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of a design with one group of related numbers scaled."""

    numbers: str  # Name of the group: ``times on gpu``, ``all links`` or ``contention``.
    factor: float  # Factor on all numbers; for contention, at the ends of its intervals, the factor furthest from 1.
    makespan_ms: float  # Of the branched run.
    speedup: float | None  # Speed-up over the fastest control that may be recommended, with the same factors; None without a control.
    recommended: str  # Recommendation with the scaled numbers.


class Certainty(Answer, frozen=True, kw_only=True):
    """Uncertainty of a prediction, and the numbers that decide its recommendation; the fields are keys of `predicted` in the command line's JSON."""

    expected_ms: float  # Mean time of the branched run over all draws.
    makespan_low_ms: float  # Lower end of the 90 % interval around the branched run's time.
    makespan_high_ms: float  # Upper end.
    #: Probability that the branched run is faster than each baseline, by its name without the processor, and than ``all`` of them.
    probability_faster: dict[str, float]
    #: The profile's number with most influence on the comparison with the closest baseline; None if nothing is uncertain.
    measure_next: str | None
    links: tuple[LinkFigure, ...]  # Prediction at the lower ends of the links' intervals, as stated, and at the upper ends.
    changes: tuple[Change, ...]  # Prediction with each group of numbers halved and doubled; contention at the ends of its interval.
    #: Minimum factor by which all other processors must be faster so that the same branches take no longer than the best single processor
    #: alone; None if they already do, never would, or no single processor was compared.
    crossover: float | None


class ControlComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A control and its time compared with the branched run's; a row of `comparisons` in the command line's JSON."""

    name: str  # ``single:gpu``, ``whole_graph:cpu``, ``shortened:cpu`` or ``sequential_same_macs``.
    ms: float  # Predicted time.
    low_ms: float  # Lower end of the 90 % interval of the time.
    high_ms: float  # Upper end.
    ratio: float  # The time over the branched run's; above 1 if branching is faster.
    low: float  # Lower end of the 90 % interval of the ratio.
    high: float  # Upper end.
    probability: float  # Probability that the branched run is faster.
    measure: str | None  # Number with most influence on the comparison, to measure next; None if nothing is uncertain.


@dataclass(frozen=True)
class Recommendation:
    """Recommendation, based on the predictions."""

    recommended: str  # ``branched``, the name of a baseline, or `NO_CLEAR_WINNER`.
    compared: tuple[ControlComparison, ...]  # Every control of the branched run.
    reference: frozenset[str]  # Names of controls that are only compared: they need not be beaten and are not recommended.

    @property
    def beatable(self) -> tuple[ControlComparison, ...]:
        """Controls that may be recommended."""
        return tuple(control for control in self.compared if control.name not in self.reference)


def recommend(branched: PredictedRun, controls: Mapping[str, PredictedRun], reference: Collection[str] = ()) -> Recommendation:
    """Return the recommendation.

    The recommendation is the branched run if branches overlap, its predicted speed-up over every control is at least `MIN_GAIN`,
    and the 90 % interval of every speed-up is above 1. Else it is the control with the lowest predicted time, if
    branches miss this gain over it with at least the probability `MIN_CONFIDENCE`. Else it is `NO_CLEAR_WINNER`.

    Args:
        reference: Controls that are only compared and never recommended, such as a network that needs training.
    """
    factors = draw_factors(key for run in (branched, *controls.values()) for key in run.unknowns)
    branched_draws, branched_ms = branched.drawn_ms(factors), branched.ms()

    def comparison(name: str, control: PredictedRun) -> ControlComparison:
        draws, ms = control.drawn_ms(factors), control.ms()
        (low_ms, high_ms), (low, high) = interval(draws), interval(draws / branched_draws)
        probability, measure = fraction_true(branched_draws < draws), _decisive(control, branched)
        times = {"ms": ms, "low_ms": low_ms, "high_ms": high_ms, "ratio": ms / branched_ms, "low": low, "high": high}
        return ControlComparison(name=name, **times, probability=probability, measure=measure)

    beatable = {name: control for name, control in controls.items() if name not in reference}
    compared = tuple(comparison(name, control) for name, control in controls.items())
    return Recommendation(recommend_among(branched, beatable, factors), compared, frozenset(reference))


def recommend_among(
    branched: PredictedRun, controls: Mapping[str, PredictedRun], draws: Mapping[UncertainFactor, Floats], fixed: Factors | None = None
) -> str:
    """Return the recommended name by the rule of `recommend`; `fixed` are factors on the predicted times."""
    branched_draws, least = branched.drawn_ms(draws), MIN_GAIN * branched.ms(fixed)
    predicted = {name: (control.ms(fixed), control.drawn_ms(draws)) for name, control in controls.items()}
    if branched.overlaps and all(ms >= least and interval(drawn / branched_draws)[0] > 1 for ms, drawn in predicted.values()):
        return BRANCHED
    fastest = min(predicted, key=lambda name: predicted[name][0], default=None)
    if fastest is None or fraction_true(predicted[fastest][1] < MIN_GAIN * branched_draws) < MIN_CONFIDENCE:
        return NO_CLEAR_WINNER
    return fastest


def _decisive(control: PredictedRun, branched: PredictedRun) -> str | None:
    """Return the name of the number whose interval changes the ratio of the two times most; None if none changes it."""

    def effect(key: UncertainFactor) -> float:
        ends = [control.ms({key: end}) / branched.ms({key: end}) for end in (key.low, key.high)]
        return abs(float(np.log(ends[0] / ends[1])))

    # Among numbers of equal effect take the first by name, so that the answer is reproducible.
    best = max(sorted(control.unknowns | branched.unknowns), key=effect, default=None)
    return None if best is None or effect(best) == 0 else best.what


def certainty(
    recommendation: Recommendation,
    branched: PredictedRun,
    controls: Mapping[str, PredictedRun],
    single: str | None,
    others: Mapping[str, PredictedRun] = MappingProxyType({}),
) -> Certainty:
    """Return the uncertainty of a recommendation, and the numbers that it depends on.

    Args:
        single: Name of the control on the best single processor.
        others: Alternatives in addition to the controls; to be faster than ``all``, the branched run must be no slower than these.
    """
    single_run = controls.get(single) if single else None
    ends = (lambda key: key.low), (lambda key: 1.0), (lambda key: key.high)
    closest = min(recommendation.beatable, key=lambda control: abs(control.probability - 0.5), default=None)
    faster = {control.name.partition(":")[0]: control.probability for control in recommendation.compared}
    runs = {**controls, **others}
    factors = draw_factors(key for run in (branched, *runs.values()) for key in run.unknowns)
    branched_draws = branched.drawn_ms(factors)
    # a design may be its own baseline, and is no slower than itself
    is_faster = [branched_draws < run.drawn_ms(factors) * (1 + (_TOLERANCE if name in others else 0.0)) for name, run in runs.items()]
    beatable = {name: control for name, control in controls.items() if name not in recommendation.reference}
    draws = draw_factors(key for run in (branched, *beatable.values()) for key in run.unknowns)
    groups = sorted({key.group for key in draws if key.group})
    low_ms, high_ms = interval(branched_draws)
    return Certainty(
        # the mean includes the wait for the slowest branch of each draw
        expected_ms=float(np.mean(branched_draws)),
        makespan_low_ms=low_ms,
        makespan_high_ms=high_ms,
        probability_faster={**faster, "all": fraction_true(np.all(is_faster, axis=0)) if is_faster else 1.0},
        measure_next=closest.measure if closest else None,
        links=tuple(at_links(branched, single_run, end) for end in ends),
        changes=tuple(_scale_factor(group, factor, branched, beatable, draws) for group, factor in product(groups, FACTORS)),
        crossover=_crossover(branched, single_run, single.partition(":")[2]) if single and single_run else None,
    )


def at_links(branched: PredictedRun, single: PredictedRun | None, factor_of: Callable[[UncertainFactor], float]) -> LinkFigure:
    """Return the prediction with `factor_of` each link as a factor on its transfers."""
    links = {key for run in (branched, single) if run for key in run.unknowns if key.what.startswith(LINK)}
    factors = {key: factor_of(key) for key in links or {UncertainFactor(LINK, *LINK_SPREAD)}}
    ms = branched.ms(factors)
    furthest = max(factors.values(), key=lambda factor: abs(log(factor)))
    return LinkFigure(factor=furthest, makespan_ms=ms, speedup=single.ms(factors) / ms if single else None)


def _scale_factor(
    group: str, factor: float, branched: PredictedRun, controls: Mapping[str, PredictedRun], draws: Mapping[UncertainFactor, Floats]
) -> Change:
    # contention has a narrower interval, so it is scaled to the ends of this interval, not halved or doubled
    ends = {key: key.low if factor < 1 else key.high for key in draws if key.group == CONTENTION}
    fixed = ends if group == CONTENTION else {key: factor for key in draws if key.group == group}
    factors = {key: draw * fixed.get(key, 1.0) for key, draw in draws.items()}
    ms, control_ms = branched.ms(fixed), {name: control.ms(fixed) for name, control in controls.items()}
    return Change(
        numbers=group,
        factor=max(fixed.values(), key=lambda one: abs(log(one))),
        makespan_ms=ms,
        speedup=min(control_ms.values()) / ms if control_ms else None,
        recommended=recommend_among(branched, controls, factors, fixed),
    )


def _crossover(branched: PredictedRun, single: PredictedRun, processor: str) -> float | None:
    """Return the `crossover` of `Certainty` by bisection: with faster other processors only the branched run gets faster."""
    own, prefix, bound = computing_factor_name(processor), computing_factor_name(""), single.ms()
    other_factors = [key for key in branched.unknowns if key.group.startswith(prefix) and key.group != own]

    def pays(faster: float) -> bool:
        return branched.ms(dict.fromkeys(other_factors, 1 / faster)) <= bound

    if pays(1.0) or not pays(MAX_SPEED_FACTOR):
        return None
    low, high = 1.0, MAX_SPEED_FACTOR
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


# Lower bounds on the time of a network for any division, without a search.


def processor_lead(
    graph: OpGraph, predictor: LatencyPredictor, precision: Mapping[str, str], best: tuple[str, str]
) -> tuple[bool, float | None]:
    """Compare the fastest processor, with its precision, with the other processors of a request, for a network divided without any loss.

    Every processor computes its share at its speed for the whole network, and none slows another down. The only transfer, in the
    middle of the network, takes the fixed time of the link, there and back, for each processor but the host.

    Returns:
        Whether the division is not faster, even at the ends of the intervals of the times; and the minimum factor by which all others must
        be faster so that the division takes no longer than the fastest processor alone, None if it already does not or never would.
    """
    (processor, at), device = best, predictor.device
    family = device.processor(processor).family
    best_estimate = predictor.predict(graph, processor, at)
    alone, margin = best_estimate.computing_ms, 1.0
    times, exchange = {processor: alone}, {processor: _exchange_ms(predictor, processor, at)}
    for name, its in precision.items():
        if device.processor(name).family != family:
            estimate = predictor.predict(graph, name, its)
            times[name], exchange[name] = estimate.computing_ms, _exchange_ms(predictor, name, its)
            margin = max(margin, estimate.ms / estimate.low_ms * best_estimate.high_ms / best_estimate.ms)
    helped = sum(max(0.0, alone - exchange[name]) / ms for name, ms in times.items() if name != processor)
    left = min(alone, exchange[processor]) / alone
    crossover = left / helped if helped and left > helped else None
    return divided_ms(times, exchange) >= alone and (crossover is None or crossover > margin), crossover


def _exchange_ms(predictor: LatencyPredictor, processor: str, precision: str) -> float:
    """Return the fixed time of a link, there and back, ms; 0 for the host."""
    if is_host(processor):
        return 0.0
    return predictor.links.ms(HOST, processor, 0, precision) + predictor.links.ms(processor, HOST, 0, precision)


def divided_ms(times: Mapping[str, float], exchange: Mapping[str, float]) -> float:
    """Return the time T to compute a network if each processor starts after its transfer e, ms: Σ (T − e) ÷ t = 1."""
    rate, begun, number = 0.0, 0.0, float("inf")
    for name in sorted(times, key=lambda item: exchange[item]):
        if exchange[name] >= number:
            break  # it would begin after the end
        rate += 1 / times[name]
        begun += exchange[name] / times[name]
        number = (1 + begun) / rate
    return number


def ideal_split_ms(graph: OpGraph, processors: Sequence[str], predictor: LatencyPredictor, precision: Mapping[str, str]) -> float:
    """Return the time of the original divided over the processors without any loss, 1 / Σ 1/t, ms."""
    times = {name: predictor.predict(graph, name, precision.get(name)).computing_ms for name in processors}
    return divided_ms(times, dict.fromkeys(times, 0.0))
