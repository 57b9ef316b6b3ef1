"""Device profiles for tests of planning: the profiles of version 0.1.0, which do not change when a device is measured."""

from pathlib import Path
from typing import Any

import msgspec

from predictors.devices import Contention, DeviceProfile, load_device

_FOLDER = Path(__file__).parent / "profiles"


def kept(device: str) -> str:
    """Path of the device's profile in `profiles`, or the device's id if it has none there."""
    path = _FOLDER / f"{device}.toml"
    return str(path) if path.exists() else device


def specified(device: str) -> DeviceProfile:
    """The profile of a device from specifications and assumptions only, without measurements."""
    return load_device(kept(device))


def contending(device: DeviceProfile, factors: dict[tuple[str, str], float]) -> DeviceProfile:
    """A device with slowdown `factors` by (slowed, computing) processor; factors below 1 are speed-ups."""
    processors = {}
    for name, processor in device.processors.items():
        stated = {other: Contention(value, value / 1.2, value * 1.2, "x") for (slowed, other), value in factors.items() if slowed == name}
        processors[name] = msgspec.structs.replace(processor, contention=stated)
    return msgspec.structs.replace(device, processors=processors)


def stating(device: DeviceProfile, **keys: object) -> DeviceProfile:
    """A profile with the same changed fields in all processors."""
    changed = {name: msgspec.structs.replace(profile, **keys) for name, profile in device.processors.items()}
    return msgspec.structs.replace(device, processors=changed)


def with_speed(device: DeviceProfile, family: str, speed: float) -> DeviceProfile:
    """A specified device on which every kernel of one processor is faster by the factor `speed`."""
    changed, processor = msgspec.structs.replace, device.processors[family]

    def scaled(stated: Any, factor: float) -> Any:
        return changed(stated, value=stated.value * factor)

    sets = {
        name: changed(
            cores,
            peak_gops={at: scaled(peak, speed) for at, peak in cores.peak_gops.items()},
            bandwidth_gbs=scaled(cores.bandwidth_gbs, speed),
            cache_gbs=scaled(cores.cache_gbs, speed),
        )
        for name, cores in processor.core_sets.items()
    }
    processor = changed(processor, core_sets=sets, launch_us=scaled(processor.launch_us, 1 / speed))
    return msgspec.structs.replace(device, processors={**device.processors, family: processor})
