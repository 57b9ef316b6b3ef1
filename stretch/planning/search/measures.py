"""What adds up over the segments of a design: time, multiply-accumulates, what is lost, energy, and mixtures of them.

A design is searched for by one measure and may be bounded in another. Each is told for
every option of a segment and every processor that may hold what arrives at it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import UsageError
from stretch.planning.cost.options import SegmentOptions
from stretch.planning.search.space import DesignSpace

Floats = NDArray[np.float64]

#: What each option of a segment adds, whoever holds what arrives: (n,).
AdditiveCost = Callable[[SegmentOptions], Floats]


@dataclass(frozen=True)
class Measure:
    """What adds up over the segments of a design."""

    of: Callable[
        [SegmentOptions], Floats
    ]  # What each option of a segment adds, by holder of what arrives: an array that broadcasts to `SegmentOptions.ms`.
    leaving: Callable[[DesignSpace, str], float]  # What it adds that a processor holds the network's output.

    def total(self, space: DesignSpace, picks: Iterable[tuple[SegmentOptions, int]]) -> float:
        """Of a whole design."""
        holder, result = space.costs.host, 0.0
        for options, index in picks:
            result += float(np.broadcast_to(self.of(options), options.ms.shape)[space.holders.index(holder), index])
            holder = options.holder(space.costs.host)
        return result + self.leaving(space, holder)


def _nothing(space: DesignSpace, holder: str) -> float:
    return 0.0


#: The makespan, ms.
LATENCY = Measure(lambda options: options.ms, lambda space, holder: space.leaving_ms(holder))

#: Multiply-accumulates.
MACS = Measure(lambda options: options.macs.astype(float), _nothing)


def additive(toll: AdditiveCost) -> Measure:
    """A measure that does not ask where tensors are."""
    return Measure(toll, _nothing)


def weighed(*parts: tuple[float, Measure]) -> Measure:
    """A sum of measures with weights."""
    some = [(weight, measure) for weight, measure in parts if weight]

    def of(options: SegmentOptions) -> Floats:
        return np.asarray(sum(weight * measure.of(options) for weight, measure in some), dtype=np.float64)

    return Measure(of, lambda space, holder: sum(weight * measure.leaving(space, holder) for weight, measure in some))


@dataclass(frozen=True)
class ProcessorPowers:
    """Power of a device's processors, W, which are mJ a ms; 0 where the profile does not state what one takes without work."""

    computing: Mapping[str, float]  # Of each that may have work while it computes.
    waiting: Mapping[str, float]  # Of each while it has work in a run and waits.
    idle: Mapping[str, float]  # Of every processor of the device, by family, while it has none.
    families: Mapping[str, str]  # Of each that may have work.

    @classmethod
    def of(cls, device: DeviceProfile, processors: Sequence[str]) -> "ProcessorPowers":
        """As the model of energy tells it."""
        model = EnergyModel(device)
        computing, waiting = {}, {}
        for name in processors:
            one = model.mj(name, 1.0)
            if one is None:
                raise UsageError(
                    f"the profile of {device.id} states no power of the {name}, so nothing can be planned for energy",
                    "name other processors, or add `power_w` to the profile",
                )
            computing[name] = one
            waiting[name] = sum(part.mj or 0.0 for part in model.parts({name: 0.0}, 1.0) if part.state == "waiting")
        idle = {part.processor: part.mj or 0.0 for part in model.parts({}, 1.0)}
        return cls(computing, waiting, idle, {name: device.processor(name).family for name in processors})

    def groups(self, processors: Sequence[str]) -> list[tuple[str, ...]]:
        """Sets of processors of which each has to be searched by itself.

        A processor waits in designs that give it work, and idles in others. Where that takes different power,
        what it costs is known where it is said which processors have some. A design that leaves one of them idle is
        found, at its own cost, with the smaller set.
        """
        if all(self.waiting[name] == self.idle[self.families[name]] for name in processors):
            return [tuple(processors)]
        return [some for count in range(len(processors), 0, -1) for some in combinations(processors, count)]

    def energy(self, processors: Sequence[str]) -> Measure:
        """Energy of designs all of whose processors are these, mJ.

        It is what `EnergyModel.plan_mj` says of their timelines where each of these has work, and no less where one has none,
        since none takes more while it idles than while it waits.
        """
        working = {self.families[name] for name in processors}
        waits = sum(self.waiting[name] for name in processors) + sum(current for name, current in self.idle.items() if name not in working)

        def of(options: SegmentOptions) -> Floats:
            more = sum((self.computing[name] - self.waiting[name]) * ms for name, ms in options.busy().items())
            return np.asarray(waits * options.ms + more, dtype=np.float64)

        return Measure(of, lambda space, holder: waits * space.leaving_ms(holder))


def on_only(space: DesignSpace, processors: Sequence[str]) -> DesignSpace:
    """The designs of a space that give work to none but these processors."""
    if set(processors) >= set(space.processors):
        return space
    other = copy(space)
    host = space.costs.host
    other.options = [[o for o in options if o.working(host) <= set(processors)] for options in space.options]
    return other
