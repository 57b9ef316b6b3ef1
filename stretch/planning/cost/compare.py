"""Which of two predicted runs is faster, and whether the profile's uncertainty leaves that open.

A profile states an efficiency for each kind of kernel on each processor, and
how far the times that follow from it may be off. Two runs on one device are
predicted from the same numbers: where convolutions on the GPU are slower than
stated, they are slower in both. So what decides is not whether the intervals
of the two times overlap, but how the ratio of the times changes when one number
after the other is off by as much as the profile allows, in both runs at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, hypot, log
from typing import Any

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from predictors.predictor import Estimate, LatencyPredictor

#: What is uncertain: the times of one kind of kernel on one processor, whatever its cores.
Key = tuple[str, str]

NO_CLEAR_WINNER = "no clear winner"
BRANCHED = "branched"


@dataclass(frozen=True)
class Branch:
    """One branch of a predicted run.

    Args:
        fixed_ms: Transfers.
        kernels: Computation, contention included, ms by what is uncertain.
    """

    fixed_ms: float
    kernels: Mapping[Key, float]

    @classmethod
    def of(cls, estimate: Estimate, fixed_ms: float = 0.0, contention: float = 1.0) -> "Branch":
        """A branch from the estimate of its computation.

        Args:
            estimate: Of the branch alone.
            fixed_ms: Transfers.
            contention: Factor on its times beside other branches.
        """
        family = estimate.processor.partition("[")[0]
        kernels: dict[Key, float] = {}
        for each in estimate.kernels:
            key = (family, each.kernel.cost.kind)
            kernels[key] = kernels.get(key, 0.0) + each.time.ms * contention
        return cls(fixed_ms, kernels)

    def then(self, other: "Branch") -> "Branch":
        """This and another branch, one after the other on one processor."""
        kernels = {key: self.kernels.get(key, 0.0) + other.kernels.get(key, 0.0) for key in (*self.kernels, *other.kernels)}
        return Branch(self.fixed_ms + other.fixed_ms, kernels)

    def ms(self, factors: Mapping[Key, float]) -> float:
        """Its time if kernels take so many times longer than predicted."""
        return self.fixed_ms + sum(ms * factors.get(key, 1.0) for key, ms in self.kernels.items())


@dataclass(frozen=True)
class PredictedRun:
    """A run as segments of branches that run side by side, one segment after the other.

    Args:
        segments: The branches of each segment.
        fixed_ms: Joins and the transfer of the result.
    """

    segments: Sequence[Sequence[Branch]]
    fixed_ms: float = 0.0

    def ms(self, factors: Mapping[Key, float] | None = None) -> float:
        """Its time if kernels take so many times longer than predicted."""
        return self.fixed_ms + sum(max(branch.ms(factors or {}) for branch in branches) for branches in self.segments)

    @property
    def keys(self) -> set[Key]:
        """What its time depends on."""
        return {key for branches in self.segments for branch in branches for key in branch.kernels}


@dataclass(frozen=True)
class Rival:
    """A control and how its time compares with the branched run's.

    Args:
        name: ``single:gpu``, ``whole_graph:cpu`` or ``sequential_same_macs``.
        ms: Its predicted time.
        ratio: That over the branched run's: above 1 branching is faster.
        low: Lower end of the interval of the ratio.
        high: Upper end.
    """

    name: str
    ms: float
    ratio: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """For the `comparisons` of the command line's JSON."""
        return {"name": self.name, "ms": self.ms, "ratio": self.ratio, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Recommendation:
    """What to run, as far as the predictions say.

    Args:
        choice: ``branched``, the name of a rival, or `NO_CLEAR_WINNER`.
        rivals: Every control beside the branched run.
    """

    choice: str
    rivals: tuple[Rival, ...] = field(default=())


def recommend(branched: PredictedRun, controls: Mapping[str, PredictedRun], device: DeviceProfile) -> Recommendation:
    """The fastest run, if the uncertainty leaves it the fastest.

    The branched run is recommended if it is faster than each control over the
    whole interval of their ratio; a control, if it is the fastest and faster
    than the branched run over the whole interval. Else nothing is.

    Args:
        branched: The design.
        controls: Its controls, by name.
        device: Whose profile both were predicted from.
    """
    rivals = tuple(_rival(name, control, branched, device) for name, control in controls.items())
    fastest = min(rivals, key=lambda rival: rival.ms, default=None)
    if all(rival.low > 1 for rival in rivals):
        return Recommendation(BRANCHED, rivals)
    if fastest is not None and fastest.high < 1:
        return Recommendation(fastest.name, rivals)
    return Recommendation(NO_CLEAR_WINNER, rivals)


def single_run(graph: OpGraph, processor: str, precision: str, ms: float, predictor: LatencyPredictor) -> PredictedRun:
    """A whole network on one processor.

    Args:
        graph: The network.
        processor: Where.
        precision: At what precision.
        ms: Its time, transfers included.
        predictor: What that was predicted with.
    """
    estimate = predictor.predict(graph, processor, precision)
    return PredictedRun([[Branch.of(estimate, ms - estimate.ms)]])


def _rival(name: str, control: PredictedRun, branched: PredictedRun, device: DeviceProfile) -> Rival:
    """The interval of a ratio: errors of different numbers are independent, so what they change adds up as squares, up and down apart."""

    def logarithm(factors: Mapping[Key, float]) -> float:
        return log(control.ms(factors) / branched.ms(factors))

    middle = logarithm({})
    down = up = 0.0
    for key in sorted(control.keys | branched.keys):
        off = 1 + device.processors[key[0]].uncertainty.value
        changes = [logarithm({key: factor}) - middle for factor in (off, 1 / off)]
        down, up = hypot(down, min(0.0, *changes)), hypot(up, max(0.0, *changes))
    return Rival(name, control.ms(), exp(middle), exp(middle - down), exp(middle + up))
