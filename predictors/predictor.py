"""Latency of a graph on a processor: kernels by the backend's fusion rules, then the sum of their times."""

from dataclasses import dataclass, field
from math import prod

from predictors.communication import LinkModel
from predictors.devices import DeviceProfile, Precision
from predictors.fusion import Fuser, Kernel, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.joins import meeting_of
from predictors.roofline import KernelTime, RooflinePredictor


@dataclass(frozen=True)
class KernelEstimate:
    """One kernel of a prediction."""

    kernel: Kernel
    time: KernelTime


@dataclass(frozen=True)
class Estimate:
    """A predicted latency.

    Args:
        ms: Most likely value.
        low_ms: Lower end of the interval.
        high_ms: Upper end of the interval.
        processor: Where it would run.
        precision: At what precision.
        calibrated: Whether the profile was fitted to measurements on the device.
        source: Always ``predicted``.
        kernels: What the time is made of, in order.
    """

    ms: float
    low_ms: float
    high_ms: float
    processor: str
    precision: Precision
    calibrated: bool
    source: str = "predicted"
    kernels: tuple[KernelEstimate, ...] = field(default=(), repr=False)


class LatencyPredictor:
    """Predicts graphs on the processors of one device.

    Kernel times are remembered, so that thousands of similar graphs are cheap.

    Args:
        device: The device's profile.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device
        self.links = LinkModel(device)
        self._rooflines: dict[tuple[str, str | None], RooflinePredictor] = {}
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
        roofline = self._roofline(processor, precision)
        kernels = tuple(KernelEstimate(kernel, roofline.time(kernel.cost)) for kernel in self.kernels(graph, processor))
        ms = sum(kernel.time.ms for kernel in kernels)
        spread = 1 + roofline.processor.profile.uncertainty.value
        return Estimate(ms, ms / spread, ms * spread, processor, roofline.precision, self.device.calibrated, kernels=kernels)

    def kernels(self, graph: OpGraph, processor: str) -> list[Kernel]:
        """Kernels the processor's backend launches for `graph`."""
        backend = self.device.processor(processor).profile.backend
        if backend not in self._fusers:
            self._fusers[backend] = Fuser(load_rules(backend))
        return self._fusers[backend].fuse(graph)

    def kernels_ms(self, kernels: list[Kernel], processor: str, precision: str | None = None) -> float:
        """Sum of the times of kernels that `kernels` gave, ms."""
        roofline = self._roofline(processor, precision)
        return sum(roofline.time(kernel.cost).ms for kernel in kernels)

    def kernel_ms(self, kernel: Kernel, processor: str, precision: str | None = None) -> float:
        """Time of one kernel, ms."""
        return self._roofline(processor, precision).time(kernel.cost).ms

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

    def _roofline(self, processor: str, precision: str | None) -> RooflinePredictor:
        key = (processor, precision)
        known = self._rooflines.get(key)
        if known is None:
            known = self._rooflines[key] = RooflinePredictor(self.device.processor(processor), precision)
        return known
