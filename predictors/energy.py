"""Energy of computation from a profile's power figures (paper 003, section 7.3, figure 10)."""

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
