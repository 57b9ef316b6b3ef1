"""Kernel times of an unmeasured processor, from fits of related processors.

A relative's time is scaled part by part: arithmetic by the ratio of the two peaks,
memory by that of the two bandwidths, starting a kernel not at all. The scaled times of
all relatives are averaged, so that the time of a network is the average of the
relatives' times of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.devices import DeviceProfile, Precision, Processor
from predictors.errors import StretchError
from predictors.fits.prior import Prior
from predictors.fusion import KernelCost
from predictors.models.base import KernelTime, Times
from predictors.models.fitted import FittedModel


@dataclass(frozen=True)
class Ratios:
    """A processor against its relative: factors on the parts of the relative's times."""

    compute: float  # The relative's peak over the processor's, threads that wait for each other considered.
    memory: float  # The relative's bandwidth over the processor's.

    @classmethod
    def between(cls, relative: Processor, processor: Processor, precision: str) -> "Ratios":
        """From what the two profiles specify."""
        one, other = relative.cores, processor.cores
        at: Precision = processor.check_precision(precision)
        peaks = [cores.peak_gops[at].value * cores.scaling.value for cores in (one, other)]
        return cls(peaks[0] / peaks[1], one.bandwidth_gbs.value / other.bandwidth_gbs.value)

    def of(self, times: Times) -> Times:
        """Kernels' times, scaled."""
        compute, memory = self.compute * times.compute_ms, self.memory * times.memory_ms
        work = times.compute_ms + times.memory_ms
        # Of a roofline only the longer part counts: its time is scaled as its parts are on average.
        factor = np.divide(compute + memory, work, out=np.ones_like(work), where=work != 0)
        return Times(times.launch_ms + (times.ms - times.launch_ms) * factor, times.launch_ms, compute, memory)


class RelatedModel:
    """Kernel times from relatives.

    Args:
        prior: The prior.
        relatives: Fit of each relative, and how the processor compares with it.
    """

    def __init__(self, prior: Prior, relatives: Sequence[tuple[FittedModel, Ratios]]) -> None:
        self.prior = prior
        self._relatives = relatives
        self._times: dict[KernelCost, KernelTime] = {}

    @classmethod
    def of(cls, prior: Prior, processor: Processor, load: Callable[[str], DeviceProfile]) -> "RelatedModel":
        """The model of a processor from its prior."""
        relatives: list[tuple[FittedModel, Ratios]] = []
        for reference in prior.relatives:
            relative = load(reference.device).processor(f"{reference.processor}[{reference.core_set}]")
            fit = relative.fits.get(reference.precision)
            if fit is None:
                raise StretchError(
                    f"the times of {processor.name} come from {reference.processor}[{reference.core_set}] of {reference.device} in {reference.precision}, "
                    "which has no fit any more",
                    "make them anew with `stretch fit relatives`",
                )
            relatives.append((FittedModel(fit, relative), Ratios.between(relative, processor, prior.precision)))
        return cls(prior, relatives)

    @property
    def fixed_ms(self) -> float:
        """What an inference takes beside its kernels, ms."""
        return self.prior.scale * sum(model.fixed_ms for model, _ in self._relatives) / len(self._relatives)

    def interval(self) -> tuple[float, float]:
        """Ends of the interval around a network's time, as factors on it."""
        return self.prior.interval.low, self.prior.interval.high

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Time of each kernel; equal kernels are computed once."""
        new = list(dict.fromkeys(cost for cost in costs if cost not in self._times))
        if new:
            factor = self.prior.scale / len(self._relatives)
            scaled = [ratios.of(model.columns(new)) for model, ratios in self._relatives]
            mean = Times(*(factor * sum(column) for column in zip(*scaled, strict=True)))
            self._times.update(zip(new, mean.kernels("relatives"), strict=True))
        return [self._times[cost] for cost in costs]
