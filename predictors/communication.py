"""What it costs to move a tensor between two processors of a device.

A processor is reached through the CPU: handing over costs a map and a
conversion, taking back an unmap, a synchronisation and a conversion (paper 003,
sections 2.1 and 7.1). Two processors other than the CPU exchange through it.
"""

from predictors.devices import ITEM_BYTES, DeviceProfile
from predictors.host import HOST, kind_of


class LinkModel:
    """Transfer times between the processors of one device.

    Args:
        device: The device's profile.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self._links = device.links

    def ms(self, source: str, target: str, elements: int, precision: str) -> float:
        """Time to make a tensor of `source` readable by `target`, ms.

        Args:
            source: Processor that holds the tensor, with or without core set.
            target: Processor that needs it, with or without core set.
            precision: Precision of what crosses, that of the processor that is not the CPU.
        """
        return sum(self.parts(source, target, elements, precision).values())

    def parts(self, source: str, target: str, elements: int, precision: str) -> dict[str, float]:
        """The same by link, named after its processor that is not the CPU, ms."""
        source, target = kind_of(source), kind_of(target)
        ms_by_link: dict[str, float] = {}
        if source == target:
            return ms_by_link
        size = elements * ITEM_BYTES[precision]
        if source != HOST:
            link = self._links[source]
            rate = link.convert_back_gbs or link.convert_gbs
            ms_by_link[source] = link.unmap_ms.value + link.sync_ms.value + size / (rate.value * 1e6)
        if target != HOST:
            link = self._links[target]
            ms_by_link[target] = link.map_ms.value + size / (link.convert_gbs.value * 1e6)
        return ms_by_link
