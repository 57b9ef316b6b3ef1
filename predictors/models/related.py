"""Kernel times of a processor from fits of related processors.

A relative's time is scaled part by part: arithmetic by the ratio of the two peaks,
memory by the ratio of the two bandwidths, and launches not at all. The scaled times of
all relatives are averaged, so that the time of a network is the average of the
relatives' times. If whole networks were measured on the processor, they give a
factor for each family of kernels, and an additional time per kernel.
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
    """Factors on the parts of a relative's times, for a processor."""

    compute: float  # The relative's peak over the processor's, including the scaling over threads.
    memory: float  # The relative's bandwidth over the processor's.

    @classmethod
    def between(cls, relative: Processor, processor: Processor, precision: str) -> "Ratios":
        """Return the ratios of the specifications of two processors."""
        own_cores, other = relative.cores, processor.cores
        checked: Precision = processor.check_precision(precision)
        peaks = [cores.peak_gops[checked].value * cores.scaling.value for cores in (own_cores, other)]
        return cls(peaks[0] / peaks[1], own_cores.bandwidth_gbs.value / other.bandwidth_gbs.value)

    def of(self, times: Times) -> Times:
        """Return the scaled times of kernels."""
        compute, memory = self.compute * times.compute_ms, self.memory * times.memory_ms
        work = times.compute_ms + times.memory_ms
        # A roofline counts only the longer part, so its time is scaled by the average factor of its parts.
        factor = np.divide(compute + memory, work, out=np.ones_like(work), where=work != 0)
        return Times(times.launch_ms + (times.ms - times.launch_ms) * factor, times.launch_ms, compute, memory)


#: Kinds of kernels that share one factor of a calibration; `depthwise` has its own, and all remaining kinds are `other`.
_DENSE = ("conv", "conv1x1", "grouped", "linear", "matmul")


Family = Literal["dense", "depthwise", "other", "gelu"]

#: Families of kernels with a factor in a calibration. TensorFlow Lite computes GELU outside its fast kernels.
FAMILIES: tuple[Family, ...] = ("dense", "depthwise", "other", "gelu")


def family_of(cost: KernelCost) -> Family:
    """Return the family of a kernel, which has one factor in a calibration."""
    if cost.variant == "gelu":
        return "gelu"
    return "dense" if cost.kind in _DENSE else "depthwise" if cost.kind == "depthwise" else "other"


class RelatedModel:
    """Kernel times from relatives, or from the processor's own roofline, calibrated by networks measured on it.

    Args:
        relatives: Model of each relative, with the ratios of the processor to it.
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
        """Return the time of an inference beyond its kernels, ms."""
        if self.prior.calibration is not None:
            return self.prior.calibration.per_inference_ms
        return self.prior.scale * sum(model.inference_ms(elements) for model, _ in self._relatives) / len(self._relatives)

    def interval(self) -> tuple[float, float]:
        """Return the interval around a network's time, as factors on it."""
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
    """Return a shipped profile; cached, because reading takes time."""
    return load_device(name)


@cache
def _relative(reference: Relative) -> tuple[Processor, FittedModel | None]:
    """Return a relative and its model, if it has one; cached, because core sets, precisions and devices share relatives."""
    relative = _device(reference.device).processor(f"{reference.processor}[{reference.core_set}]")
    fit = relative.fits.get(reference.precision)
    return relative, None if fit is None else FittedModel(fit, relative)


def _columns(model: FittedModel | RooflinePredictor, costs: Sequence[KernelCost]) -> Times:
    return model.columns(costs) if isinstance(model, FittedModel) else Times.of(model.times(costs))
