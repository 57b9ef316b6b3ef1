"""Energy of computation from a profile's power figures (paper 003, section 7.3, figure 10)."""

from collections.abc import Mapping

from predictors.devices import DeviceProfile


class EnergyModel:
    """Energy on the processors of one device.

    Args:
        device: The device's profile.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self._device = device

    def mj(self, processor: str, ms: float) -> float | None:
        """Energy that a processor takes to compute for some time, mJ; None if its profile states no power.

        What the rest of the device takes meanwhile is not counted.

        Args:
            processor: Name, with or without core set.
            ms: For how long, ms.

        Raises:
            UnknownNameError: If the device has no such processor.
        """
        power = self._device.processor(processor).cores.power_w
        return None if power is None else power.value * ms

    def plan_mj(self, busy: Mapping[str, float], makespan_ms: float) -> float | None:
        """Energy of a run on several processors, mJ: each while it computes, and while it waits where that power is known.

        Args:
            busy: How long each processor computes, ms by name.
            makespan_ms: How long the run takes.

        Returns:
            None if the profile states no power of one of them.

        Raises:
            UnknownNameError: If the device lacks one of them.
        """
        total = 0.0
        for name, ms in busy.items():
            computing, idle = self.mj(name, ms), self._device.processor(name).profile.idle_w
            if computing is None:
                return None
            total += computing + (idle.value * max(0.0, makespan_ms - ms) if idle else 0.0)
        return total
