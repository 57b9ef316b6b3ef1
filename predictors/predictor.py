"""Latency of a graph on a processor: kernels by the backend's fusion rules, then the sum of their times."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from predictors.communication import LinkModel
from predictors.contention import contended_ms
from predictors.devices import DeviceProfile, Precision, Processor, load_device
from predictors.errors import StretchError
from predictors.fits.prior import Prior
from predictors.fusion import Fuser, Kernel, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.joins import meeting_of
from predictors.models.base import KernelModel, KernelTime, Origin
from predictors.models.roofline import RooflinePredictor


@dataclass(frozen=True)
class KernelEstimate:
    """One kernel of a prediction."""

    kernel: Kernel
    time: KernelTime


@dataclass(frozen=True)
class Estimate:
    """A predicted latency.

    Args:
        ms: Most likely value of a whole inference: kernels, and what one takes beside them.
        contended_ms: The kernels alone while other processors compute.
        fixed_ms: What an inference takes beside its kernels, such as the hand-over of its input and output; 0 where not known.
        low_ms: Lower end of the interval.
        high_ms: Upper end of the interval.
        processor: Where it would run.
        precision: At what precision.
        calibrated: Whether the times of this processor, core set and precision were fitted to measurements on the device.
        origin: What times its kernels: a fit, fits of other devices, or the roofline.
        source: Always ``predicted``.
        kernels: What the time is made of, in order.
    """

    ms: float
    contended_ms: float
    fixed_ms: float
    low_ms: float
    high_ms: float
    processor: str
    precision: Precision
    calibrated: bool
    origin: Origin
    source: str = "predicted"
    kernels: tuple[KernelEstimate, ...] = field(default=(), repr=False)

    @property
    def computing_ms(self) -> float:
        """The kernels alone: what a part of a network takes inside a plan, where links stand for the hand-over."""
        return self.ms - self.fixed_ms


class LatencyPredictor:
    """Predicts graphs on the processors of one device.

    Kernel times are remembered, so that thousands of similar graphs are cheap.

    Args:
        device: The device's profile.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device
        self.links = LinkModel(device)
        self._models: dict[tuple[str, str | None], KernelModel] = {}
        self._fusers: dict[str, Fuser] = {}

    def predict(self, graph: OpGraph, processor: str, precision: str | None = None) -> Estimate:
        """Latency of `graph` on `processor`, without communication.

        Args:
            graph: The operators.
            processor: Such as ``gpu`` or ``cpu[1large]``.
            precision: None for the processor's default.

        Raises:
            UnknownNameError: If the device has no such processor.
            UsageError: If the processor does not run the precision.
        """
        model, on = self._model(processor, precision), self.device.processor(processor)
        at = on.check_precision(precision)
        launched = self.kernels(graph, processor)
        times = model.times([kernel.cost for kernel in launched])
        ms = sum(time.ms for time in times) + model.fixed_ms
        low, high = model.interval()
        kernels = tuple(KernelEstimate(kernel, time) for kernel, time in zip(launched, times, strict=True))
        contended = sum(contended_ms(time, on.profile) for time in times)
        return Estimate(ms, contended, model.fixed_ms, ms * low, ms * high, processor, at, at in on.fits, _origin(on, at), kernels=kernels)

    def kernels(self, graph: OpGraph, processor: str) -> list[Kernel]:
        """Kernels the processor's backend launches for `graph`."""
        backend = self.device.processor(processor).profile.backend
        if backend not in self._fusers:
            self._fusers[backend] = Fuser(load_rules(backend))
        return self._fusers[backend].fuse(graph)

    def kernels_ms(self, kernels: Sequence[Kernel], processor: str, precision: str | None = None) -> float:
        """Sum of the times of kernels that `kernels` gave, ms."""
        return sum(time.ms for time in self._model(processor, precision).times([kernel.cost for kernel in kernels]))

    def kernels_contended_ms(self, kernels: Sequence[Kernel], processor: str, precision: str | None = None) -> float:
        """Sum of their times while other processors compute, ms."""
        profile = self.device.processor(processor).profile
        return sum(contended_ms(time, profile) for time in self._model(processor, precision).times([kernel.cost for kernel in kernels]))

    def kernel_ms(self, kernel: Kernel, processor: str, precision: str | None = None) -> float:
        """Time of one kernel, ms."""
        return self._model(processor, precision).times([kernel.cost])[0].ms

    def join_ms(self, kind: str, shape: tuple[int, ...], branches: int, host: str, precision: str | None = None) -> float:
        """Time in which the host joins branch outputs, ms.

        Outputs side by side cost nothing where channels are the slowest axis:
        each branch writes its slice of the joined tensor. Elsewhere they are copied.

        Args:
            kind: Of the join, as designs or bundles name it.
            shape: Of the joined tensor, batch and channels first.
            branches: How many outputs are joined.
            host: Processor that joins.
            precision: Precision on it; the processor's default if None.
        """
        meeting = meeting_of(kind)
        if meeting.in_place and self.device.processor(host).profile.layout == "NCHW":
            return 0.0
        channels, pixels = shape[1], shape[0] * prod(shape[2:])
        written = pixels * channels
        cost = KernelCost(meeting.kernel, 1, 1, channels, 1, pixels, written * meeting.reads(branches), written, 0)
        return self.kernel_ms(Kernel("join", ("join",), cost, 0), host, precision)

    def _model(self, processor: str, precision: str | None) -> KernelModel:
        """What times kernels: a fit where there is one, else the roofline."""
        key = (processor, precision)
        known = self._models.get(key)
        if known is None:
            known = self._models[key] = self._new_model(self.device.processor(processor), precision)
        return known

    def _new_model(self, processor: Processor, precision: str | None) -> KernelModel:
        at = processor.check_precision(precision)
        fit, prior = processor.fits.get(at), processor.priors.get(at)
        if fit is None:
            return related_model(prior, processor) if prior else RooflinePredictor(processor, precision)
        # Evaluating fits needs numpy, which profiles without them do without.
        from predictors.models.fitted import FittedModel

        return FittedModel(fit, processor)


def _origin(processor: Processor, precision: str) -> Origin:
    return "fit" if precision in processor.fits else "relatives" if precision in processor.priors else "roofline"


def related_model(prior: Prior, processor: Processor) -> KernelModel:
    """The model of a processor that nobody measured.

    Args:
        prior: What its relatives say of it.
        processor: The processor.

    Raises:
        StretchError: If a relative's profile or fit is gone.
    """
    from predictors.models.fitted import FittedModel
    from predictors.models.related import Ratios, RelatedModel

    relatives: list[tuple[KernelModel, Ratios]] = []
    for each in prior.relatives:
        relative = load_device(each.device).processor(f"{each.processor}[{each.core_set}]")
        fit = relative.fits.get(each.precision)
        if fit is None:
            raise StretchError(
                f"the times of {processor.name} come from {each.processor}[{each.core_set}] of {each.device} in {each.precision}, "
                "which has no fit any more",
                "make them anew with `stretch fit relatives`",
            )
        relatives.append((FittedModel(fit, relative), Ratios.between(relative, processor, prior.precision)))
    return RelatedModel(prior, relatives)
