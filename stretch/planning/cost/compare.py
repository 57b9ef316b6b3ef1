"""Which of two predicted runs is faster, and how sure that is.

Two runs on one device are predicted from the same numbers, so what decides is not
whether the intervals of their times overlap, but in how many draws of those numbers
(`stretch.planning.cost.uncertain`) the one is faster than the other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import combinations
from math import log
from typing import Any

import msgspec
import numpy as np

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from predictors.host import is_host, kind_of
from predictors.predictor import Estimate, LatencyPredictor
from stretch.planning.cost import uncertain
from stretch.planning.cost.uncertain import Factors, Floats, Unknown, added, drawn

NO_CLEAR_WINNER = "no clear winner"
BRANCHED = "branched"

#: Times as fast as every control that branches must be predicted to be: one processor is less to build and to keep.
LEAST_GAIN = 1.03

#: How likely branches must fall short of that for a control to be recommended.
SURE = 0.7


@dataclass(frozen=True)
class Branch:
    """One branch of a predicted run."""

    parts: Mapping[Unknown, float]  # Its time, ms by the number that each part is proportional to.
    waits: tuple[int, ...] = ()  # Numbers of the branches of its segment that end before it starts.
    fixed_ms: float = 0.0  # What it takes beside that and is taken as known.

    @classmethod
    def of(
        cls,
        estimate: Estimate,
        device: DeviceProfile,
        links: Mapping[str, float],
        contention_ms: float = 0.0,
        waits: tuple[int, ...] = (),
    ) -> "Branch":
        """A branch from the estimate of its computation.

        Args:
            links: Transfers, ms by processor at the far end.
            contention_ms: What it takes longer beside other branches.
        """
        moving = {uncertain.link(processor, device): ms for processor, ms in links.items()}
        slowed = {uncertain.contention(kind_of(estimate.processor)): contention_ms} if contention_ms else {}
        return cls(added(uncertain.kernels(estimate, device), moving, slowed), waits)


@dataclass(frozen=True)
class PredictedRun:
    """A run as segments of branches that run side by side or wait for each other, one segment after the other."""

    segments: Sequence[Sequence[Branch]]  # The branches of each segment.
    fixed_ms: float = 0.0  # Joins and what else is taken as known.
    #: What is after the segments, such as the transfer of the result, ms by the number it is proportional to.
    parts: Mapping[Unknown, float] = field(default_factory=dict)

    def ms(self, factors: Factors | None = None) -> float:
        """Its time if numbers are off by these factors."""
        return float(self._ms(factors or {}))

    def drawn_ms(self, factors: Mapping[Unknown, Floats]) -> Floats:
        """Its time in each draw."""
        return np.broadcast_to(np.asarray(self._ms(factors), dtype=np.float64), (len(next(iter(factors.values()), np.ones(1))),))

    def _ms(self, factors: Factors) -> Floats | float:
        total = self.fixed_ms + uncertain.ms(self.parts, factors)
        for branches in self.segments:
            ends: dict[int, Any] = {}
            for number in TopologicalSorter({i: branch.waits for i, branch in enumerate(branches)}).static_order():
                starts = [ends[wait] for wait in branches[number].waits]
                fixed_ms = uncertain.ms(branches[number].parts, factors) + branches[number].fixed_ms
                ends[number] = fixed_ms + (uncertain.slowest(starts) if starts else 0.0)
            total = total + uncertain.slowest(ends.values())
        return total

    @property
    def overlaps(self) -> bool:
        """Whether two branches compute at the same time somewhere: both take time, and neither waits for the other."""
        return any(_side_by_side(branches) for branches in self.segments)

    @property
    def unknowns(self) -> set[Unknown]:
        """What its time depends on."""
        return {*self.parts, *(key for branches in self.segments for branch in branches for key in branch.parts)}


class LinkFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A design if every link of the device took another time than stated: at the lower ends of all, as stated, or at the upper ends."""

    factor: float  # On the time of a transfer; of several links the one that is furthest from 1.
    makespan_ms: float  # Of the branched run.
    speedup: float | None  # Over the best single processor, whose transfers change alike; None if that was not compared.


class Certainty(msgspec.Struct, frozen=True, kw_only=True):
    """How sure a prediction is; the fields are keys of `predicted` in the command line's JSON."""

    expected_ms: float  # The mean of the branched run's time over what its numbers may be.
    makespan_low_ms: float  # Lower end of the 90 % interval around the branched run's time.
    makespan_high_ms: float  # Upper end.
    #: That the branched run is faster: than each rival by its name without the processor, and than ``all``.
    probability_faster: dict[str, float]
    #: The number of the profile that decides most between the run and its nearest rival; None if nothing is uncertain.
    measure_next: str | None
    links: tuple[LinkFigure, ...]  # The design at the lower ends of the links' intervals, as stated, and at the upper ends.


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """A control and how its time compares with the branched run's; a row of `comparisons` in the command line's JSON."""

    name: str  # ``single:gpu``, ``whole_graph:cpu`` or ``sequential_same_macs``.
    ms: float  # Its predicted time.
    low_ms: float  # Lower end of the 90 % interval around it.
    high_ms: float  # Upper end.
    ratio: float  # Its time over the branched run's: above 1 branching is faster.
    low: float  # Lower end of the 90 % interval of the ratio.
    high: float  # Upper end.
    probability: float  # That the branched run is faster than it.
    measure: str | None  # What decides most between the two: the number to measure next; None if nothing is uncertain.


@dataclass(frozen=True)
class Recommendation:
    """What to run, as far as the predictions say."""

    recommended: str  # ``branched``, the name of a rival, or `NO_CLEAR_WINNER`.
    probability: float  # That the branched run is faster than every rival.
    expected_ms: float  # The mean of its time over the draws: of branches that wait for each other the slowest of each draw counts.
    low_ms: float  # Lower end of the 90 % interval around its time.
    high_ms: float  # Upper end.
    rivals: tuple[Rival, ...] = ()  # Every control beside the branched run.
    told: frozenset[str] = frozenset()  # Names of those that are told only.

    @property
    def beatable(self) -> tuple[Rival, ...]:
        """The controls that may be recommended."""
        return tuple(rival for rival in self.rivals if rival.name not in self.told)

    @property
    def measure(self) -> str | None:
        """The number that decides most between the branched run and the rival nearest to it."""
        near = min(self.beatable, key=lambda rival: abs(rival.probability - 0.5), default=None)
        return near.measure if near else None


def recommend(branched: PredictedRun, controls: Mapping[str, PredictedRun], told: Collection[str] = ()) -> Recommendation:
    """What to run.

    The branched run is recommended if branches overlap, it is predicted to be at least `LEAST_GAIN` times
    as fast as every control, and the 90 % interval of every such ratio lies above 1. Else the control that is
    predicted to be the fastest is, if with the probability `SURE` branches do not reach that gain over it. Else nothing is.

    Args:
        told: Controls that are compared and neither beaten nor recommended, such as a network that would have to be trained.
    """
    factors = drawn(key for run in (branched, *controls.values()) for key in run.unknowns)
    ours = branched.drawn_ms(factors)
    theirs = {name: control.drawn_ms(factors) for name, control in controls.items()}
    rivals = tuple(_rival(name, control, branched, theirs[name], ours) for name, control in controls.items())
    beatable = {name: ms for name, ms in theirs.items() if name not in told}
    recommended = advised(branched, {name: controls[name] for name in beatable}, factors)
    return Recommendation(recommended, _wins(ours, beatable), float(np.mean(ours)), *uncertain.interval(ours), rivals, frozenset(told))


def advised(
    branched: PredictedRun, controls: Mapping[str, PredictedRun], draws: Mapping[Unknown, Floats], fixed: Factors | None = None
) -> str:
    """What to run, by the rule of `recommend`."""
    ours, ms = branched.drawn_ms(draws), branched.ms(fixed)
    theirs = {name: control.drawn_ms(draws) for name, control in controls.items()}
    predicted = {name: control.ms(fixed) for name, control in controls.items()}
    if branched.overlaps and all(
        predicted[name] >= LEAST_GAIN * ms and uncertain.interval(their / ours)[0] > 1 for name, their in theirs.items()
    ):
        return BRANCHED
    fastest = min(predicted, key=lambda name: predicted[name], default=None)
    if fastest is None or uncertain.share(theirs[fastest] < LEAST_GAIN * ours) < SURE:
        return NO_CLEAR_WINNER
    return fastest


def certainty(recommendation: Recommendation, branched: PredictedRun, single: PredictedRun | None) -> Certainty:
    """How sure a recommendation is.

    Args:
        single: The best single processor, if it was compared.
    """
    ends = (lambda key: key.low), (lambda key: 1.0), (lambda key: key.high)
    figures = [at_links(branched, single, end) for end in ends]
    faster = {rival.name.partition(":")[0]: rival.probability for rival in recommendation.rivals}
    return Certainty(
        expected_ms=recommendation.expected_ms,
        makespan_low_ms=recommendation.low_ms,
        makespan_high_ms=recommendation.high_ms,
        probability_faster={**faster, "all": recommendation.probability},
        measure_next=recommendation.measure,
        links=tuple(figures),
    )


def at_links(branched: PredictedRun, single: PredictedRun | None, factor_of: Callable[[Unknown], float]) -> LinkFigure:
    """The two runs if transfers took other times than stated.

    Args:
        single: The best single processor, if it was compared.
        factor_of: Factor on the time of each link.
    """
    links = {key for run in (branched, single) if run for key in run.unknowns if key.what.startswith(uncertain.LINK)}
    factors = {key: factor_of(key) for key in links or {Unknown(uncertain.LINK, *uncertain.LINK_SPREAD)}}
    ms = branched.ms(factors)
    furthest = max(factors.values(), key=lambda factor: abs(log(factor)))
    return LinkFigure(factor=furthest, makespan_ms=ms, speedup=single.ms(factors) / ms if single else None)


def single_run(graph: OpGraph, processor: str, precision: str, ms: float, predictor: LatencyPredictor) -> PredictedRun:
    """A whole network on one processor."""
    estimate = predictor.predict(graph, processor, precision)
    moving = {} if is_host(processor) else {kind_of(processor): ms - estimate.computing_ms}
    return PredictedRun([[Branch.of(estimate, predictor.device, moving)]])


def _side_by_side(branches: Sequence[Branch]) -> bool:
    """Whether two branches of a segment take time and neither waits for the other, directly or through others."""
    behind: dict[int, set[int]] = {}
    for number in TopologicalSorter({i: branch.waits for i, branch in enumerate(branches)}).static_order():
        waits = branches[number].waits
        behind[number] = set(waits).union(*(behind[wait] for wait in waits))
    busy = [number for number, branch in enumerate(branches) if branch.fixed_ms or any(branch.parts.values())]
    return any(a not in behind[b] and b not in behind[a] for a, b in combinations(busy, 2))


def _wins(ours: Floats, theirs: Mapping[str, Floats]) -> float:
    """Share of draws in which the branched run is faster than every control."""
    if not theirs:
        return 1.0
    return uncertain.share(ours < np.min(list(theirs.values()), axis=0))


def _rival(name: str, control: PredictedRun, branched: PredictedRun, theirs: Floats, ours: Floats) -> Rival:
    low_ms, high_ms = uncertain.interval(theirs)
    low, high = uncertain.interval(theirs / ours)
    return Rival(
        name=name,
        ms=control.ms(),
        low_ms=low_ms,
        high_ms=high_ms,
        ratio=control.ms() / branched.ms(),
        low=low,
        high=high,
        probability=uncertain.share(ours < theirs),
        measure=_decisive(control, branched),
    )


def _decisive(control: PredictedRun, branched: PredictedRun) -> str | None:
    """The number whose interval moves the ratio of the two times most."""

    def moved(key: Unknown) -> float:
        ends = [control.ms({key: end}) / branched.ms({key: end}) for end in (key.low, key.high)]
        return abs(float(np.log(ends[0] / ends[1])))

    # Of numbers that move it alike the first by name, so that the answer does not change from run to run.
    numbers = sorted(control.unknowns | branched.unknowns)
    best = max(numbers, key=moved, default=None)
    return None if best is None or moved(best) == 0 else best.what
