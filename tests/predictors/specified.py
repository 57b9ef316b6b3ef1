"""Profiles by which tests plan: those of version 0.1.0, which do not change when a device is measured."""

from pathlib import Path

from predictors.devices import DeviceProfile, load_device

_FOLDER = Path(__file__).parent / "profiles"


def kept(device: str) -> str:
    """File of the profile that is kept; the device's id where there is none."""
    path = _FOLDER / f"{device}.toml"
    return str(path) if path.exists() else device


def specified(device: str) -> DeviceProfile:
    """The profile of a device from specifications and choices alone."""
    return load_device(kept(device))
