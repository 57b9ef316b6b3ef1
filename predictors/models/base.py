"""What every kernel model answers: the time of a kernel, and what it is made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from predictors.fusion import KernelCost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Which model a time is from: fitted to measurements on the device or on another one with the same chip, from other fits that whole
#: networks measured on the device calibrated, from fits of other chips, or analytic.
Origin = Literal["fit", "networks", "sibling", "relatives", "roofline"]

#: Origins that rest on measurements of the device itself.
MEASURED: tuple[Origin, ...] = ("fit", "networks")

#: The same in words.
ORIGINS: dict[Origin, str] = {
    "fit": "a fit to measurements",
    "networks": "a calibration by whole networks measured on it",
    "sibling": "a fit to another device with the same chip",
    "relatives": "fits of its relatives",
    "roofline": "specifications",
}


class KernelTime(NamedTuple):
    """Time of a kernel and what it is made of, ms."""

    ms: float  # The whole.
    launch_ms: float  # Fixed cost of starting it.
    compute_ms: float  # Arithmetic.
    memory_ms: float  # Moving activations and weights.
    origin: Origin = "roofline"  # Which model it is from.

    @property
    def bound(self) -> str:
        """What takes most of the time: ``launch``, ``compute`` or ``memory``."""
        parts = {"launch": self.launch_ms, "compute": self.compute_ms, "memory": self.memory_ms}
        return max(parts, key=lambda name: parts[name])


class Times(NamedTuple):
    """Times of many kernels: of each an entry in every array, ms, as `KernelTime` has them."""

    ms: "Floats"
    launch_ms: "Floats"
    compute_ms: "Floats"
    memory_ms: "Floats"

    @classmethod
    def of(cls, times: Sequence[KernelTime]) -> "Times":
        """From times one by one."""
        import numpy as np

        return cls(*np.array([(time.ms, time.launch_ms, time.compute_ms, time.memory_ms) for time in times]).reshape(-1, 4).T)

    def kernels(self, origin: Origin) -> list[KernelTime]:
        """One by one, all from the same model."""
        columns = (column.tolist() for column in self)
        return [KernelTime(ms, launch, compute, memory, origin) for ms, launch, compute, memory in zip(*columns, strict=True)]


class KernelModel(Protocol):
    """Times of kernels on one processor with one core set at one precision."""

    def times(self, costs: Sequence[KernelCost]) -> list[KernelTime]:
        """Time of each kernel; equal kernels are computed once."""
        ...

    @property
    def fixed_ms(self) -> float:
        """What an inference takes beside its kernels, ms."""
        ...

    def interval(self) -> tuple[float, float]:
        """Ends of the interval around a network's time, as factors on it."""
        ...
