"""Kernel times of a processor from fits of related processors.

A relative's time is scaled part by part: arithmetic by the ratio of the two peaks,
memory by that of the two bandwidths, starting a kernel not at all. The scaled times of
all relatives are averaged, so that the time of a network is the average of the
relatives' times of it. Where whole networks were measured on the processor, they
give a factor for each family of kernels, and what each kernel takes besides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from predictors.devices import DeviceProfile, Precision, Processor, load_device
from predictors.errors import StretchError
from predictors.fits import Prior, Relative
from predictors.fusion import KernelCost
from predictors.models.fitted import FittedModel
from predictors.models.roofline import KernelTime, RooflinePredictor, Times


@dataclass(frozen=True)
class Ratios:
    """A processor against its relative: factors on the parts of the relative's times."""

    compute: float  # The relative's peak over the processor's, threads that wait for each other considered.
    memory: float  # The relative's bandwidth over the processor's.

    @classmethod
    def between(cls, relative: Processor, processor: Processor, precision: str) -> "Ratios":
        """From what the two profiles specify."""
        own_cores, other = relative.cores, processor.cores
        checked: Precision = processor.check_precision(precision)
        peaks = [cores.peak_gops[checked].value * cores.scaling.value for cores in (own_cores, other)]
        return cls(peaks[0] / peaks[1], own_cores.bandwidth_gbs.value / other.bandwidth_gbs.value)

    def of(self, times: Times) -> Times:
        """Kernels' times, scaled."""
        compute, memory = self.compute * times.compute_ms, self.memory * times.memory_ms
        work = times.compute_ms + times.memory_ms
        # A roofline counts the longer part alone, so its time is scaled as its parts are on average.
        factor = np.divide(compute + memory, work, out=np.ones_like(work), where=work != 0)
        return Times(times.launch_ms + (times.ms - times.launch_ms) * factor, times.launch_ms, compute, memory)


#: Kinds of kernels whose times a calibration scales alike, in addition to `depthwise`; any remaining kind is `other`.
_DENSE = ("conv", "conv1x1", "grouped", "linear", "matmul")


Family = Literal["dense", "depthwise", "other", "gelu"]

#: Families of kernels that a calibration has a factor for. TensorFlow Lite computes GELU outside of its fast kernels.
FAMILIES: tuple[Family, ...] = ("dense", "depthwise", "other", "gelu")


def family_of(cost: KernelCost) -> Family:
    """Return the family of kernels that a calibration has one factor for."""
    if cost.variant == "gelu":
        return "gelu"
    return "dense" if cost.kind in _DENSE else "depthwise" if cost.kind == "depthwise" else "other"


class RelatedModel:
    """Kernel times from relatives, or from the processor's own roofline, and by networks that were measured on it.

    Args:
        relatives: Model of each relative, and how the processor compares with it.
    """

    def __init__(self, prior: Prior, relatives: Sequence[tuple[FittedModel | RooflinePredictor, Ratios]]) -> None:
        self.prior = prior
        self._relatives = relatives
        self._times: dict[KernelCost, KernelTime] = {}

    @classmethod
    def of(cls, prior: Prior, processor: Processor) -> "RelatedModel":
        """Return the model of a processor from its prior."""
        relatives: list[tuple[FittedModel | RooflinePredictor, Ratios]] = []
        for reference in prior.relatives:
            relative, model = _relative(reference)
            if model is None:
                raise StretchError(
                    f"the times of {processor.name} come from {reference.processor}[{reference.core_set}] of {reference.device} in {reference.precision}, "
                    "which has no fit any more",
                    "make them again with `stretch profile fit`",
                )
            relatives.append((model, Ratios.between(relative, processor, prior.precision)))
        return cls(prior, relatives or [(RooflinePredictor(processor, prior.precision), Ratios(1.0, 1.0))])

    def inference_ms(self, elements: int = 0) -> float:
        """Return the time of an inference in addition to its kernels, ms."""
        if self.prior.calibration is not None:
            return self.prior.calibration.per_inference_ms
        return self.prior.scale * sum(model.inference_ms(elements) for model, _ in self._relatives) / len(self._relatives)

    def interval(self) -> tuple[float, float]:
        """Return the ends of the interval around a network's time, as factors on it."""
        return self.prior.interval.low, self.prior.interval.high

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Return the time of each kernel; equal kernels are computed once."""
        new = list(dict.fromkeys(cost for cost in costs if cost not in self._times))
        if new:
            factor = self.prior.scale / len(self._relatives)
            scaled = [ratios.of(_columns(model, new)) for model, ratios in self._relatives]
            mean = Times(*(factor * sum(column) for column in zip(*scaled, strict=True)))
            if (calibration := self.prior.calibration) is None:
                kernels = mean.kernels("relatives")
            else:
                factors = np.array([calibration.factors[family_of(cost)] for cost in new])
                per_kernel_ms = calibration.per_kernel_ms
                started = np.full_like(mean.ms, per_kernel_ms)
                work = factors * (mean.ms - mean.launch_ms)
                kernels = Times(work + started, started, factors * mean.compute_ms, factors * mean.memory_ms).kernels(
                    "similar" if calibration.similar else "networks"
                )
            self._times.update(zip(new, kernels, strict=True))
        return [self._times[cost] for cost in costs]


@cache
def _device(name: str) -> DeviceProfile:
    """Return a profile that ships with the project, which takes a while to read."""
    return load_device(name)


@cache
def _relative(reference: Relative) -> tuple[Processor, FittedModel | None]:
    """Return a relative and its model, if it has one: core sets, precisions and devices have relatives in common."""
    relative = _device(reference.device).processor(f"{reference.processor}[{reference.core_set}]")
    fit = relative.fits.get(reference.precision)
    return relative, None if fit is None else FittedModel(fit, relative)


def _columns(model: FittedModel | RooflinePredictor, costs: Sequence[KernelCost]) -> Times:
    return model.columns(costs) if isinstance(model, FittedModel) else Times.of(model.times(costs))
