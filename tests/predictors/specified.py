"""Profiles by which tests plan: those of version 0.1.0, which do not change when a device is measured."""

from dataclasses import replace
from pathlib import Path

from msgspec import structs

from predictors.devices import DeviceProfile, load_device

_FOLDER = Path(__file__).parent / "profiles"


def kept(device: str) -> str:
    """File of the profile that is kept; the device's id where there is none."""
    path = _FOLDER / f"{device}.toml"
    return str(path) if path.exists() else device


def specified(device: str) -> DeviceProfile:
    """The profile of a device from specifications and choices alone."""
    return load_device(kept(device))


def stating(device: DeviceProfile, **keys: object) -> DeviceProfile:
    """A profile whose processors all state something else."""
    return replace(device, processors={name: structs.replace(profile, **keys) for name, profile in device.processors.items()})
