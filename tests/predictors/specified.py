"""Profiles by which tests plan: those of version 0.1.0, which do not change when a device is measured."""

from pathlib import Path
from typing import Any

import msgspec

from predictors.devices import Contention, DeviceProfile, load_device

_FOLDER = Path(__file__).parent / "profiles"


def kept(device: str) -> str:
    """File of the profile that is kept; the device's id where there is none."""
    path = _FOLDER / f"{device}.toml"
    return str(path) if path.exists() else device


def specified(device: str) -> DeviceProfile:
    """The profile of a device from specifications and choices alone."""
    return load_device(kept(device))


def contending(device: DeviceProfile, factors: dict[tuple[str, str], float]) -> DeviceProfile:
    """A device whose first processors are slowed by such factors, or sped up below 1, while the second ones compute."""
    processors = {}
    for name, processor in device.processors.items():
        stated = {other: Contention(value, value / 1.2, value * 1.2, "x") for (slowed, other), value in factors.items() if slowed == name}
        processors[name] = msgspec.structs.replace(processor, contention=stated)
    return msgspec.structs.replace(device, processors=processors)


def stating(device: DeviceProfile, **keys: object) -> DeviceProfile:
    """A profile whose processors all state something else."""
    changed = {name: msgspec.structs.replace(profile, **keys) for name, profile in device.processors.items()}
    return msgspec.structs.replace(device, processors=changed)


def with_speed(device: DeviceProfile, family: str, speed: float) -> DeviceProfile:
    """A device of specifications alone, on which every kernel of one processor runs so many times as quickly."""
    changed, processor = msgspec.structs.replace, device.processors[family]

    def times(stated: Any, factor: float) -> Any:
        return changed(stated, value=stated.value * factor)

    sets = {
        name: changed(
            cores,
            peak_gops={at: times(peak, speed) for at, peak in cores.peak_gops.items()},
            bandwidth_gbs=times(cores.bandwidth_gbs, speed),
            cache_gbs=times(cores.cache_gbs, speed),
        )
        for name, cores in processor.core_sets.items()
    }
    processor = changed(processor, core_sets=sets, launch_us=times(processor.launch_us, 1 / speed))
    return msgspec.structs.replace(device, processors={**device.processors, family: processor})
