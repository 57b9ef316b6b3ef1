"""What it costs to move a tensor between two processors of a device.

A processor is reached through the CPU: handing over costs a map and a
conversion, taking back an unmap, a synchronisation and a conversion (paper 003,
sections 2.1 and 7.1). Two processors other than the CPU exchange through it.
"""

from predictors.devices import ITEM_BYTES, DeviceProfile


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
            elements: Elements of the tensor.
            precision: Precision of what crosses, that of the processor that is not the CPU.
        """
        source, target = source.partition("[")[0], target.partition("[")[0]
        if source == target:
            return 0.0
        total = 0.0
        size = elements * ITEM_BYTES[precision]
        if source != "cpu":
            link = self._links[source]
            total += link.unmap_ms.value + link.sync_ms.value + size / (link.convert_gbs.value * 1e6)
        if target != "cpu":
            link = self._links[target]
            total += link.map_ms.value + size / (link.convert_gbs.value * 1e6)
        return total
