"""The files of a device's fits and priors: JSON in the folder of its profile, ``<id>.fit.json`` and ``<id>.prior.json``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from predictors.errors import StretchError
from predictors.faults import find_fault
from predictors.files import read_bytes
from predictors.fits.fit import Fit
from predictors.fits.prior import Prior

MAX_FIT_BYTES = 1 << 25

_HINT = "`stretch profile fit` and `stretch profile` write such files"


class FitFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fits of one device."""

    device: str  # Id of the profile they belong to.
    command: str  # Command that makes this file from shipped or given measurements.
    fits: tuple[Fit, ...]  # One for each processor, core set and precision.


class PriorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The priors of one device."""

    device: str  # Id of the profile they belong to.
    command: str  # Command that makes this file from the fits of other profiles.
    priors: tuple[Prior, ...]  # One for each processor, core set and precision.


File = TypeVar("File", FitFile, PriorFile)


def prior_path(profile: Path) -> Path:
    """Where the priors of a profile are, whether or not there are any."""
    return profile.with_name(f"{profile.stem}.prior.json")


def fit_path(profile: Path) -> Path:
    """Where the fits of a profile are, whether or not there are any."""
    return profile.with_name(f"{profile.stem}.fit.json")


def read_fits(profile: Path, device: str) -> dict[tuple[str, str, str], Fit]:
    """Read the fits next to a profile, by processor, core set and precision; empty if there are none.

    Args:
        profile: The profile's TOML file.

    Raises:
        StretchError: If the file cannot be read, is no file of fits or belongs to another device.
    """
    fit_file = _read(fit_path(profile), FitFile, device)
    return {(fit.processor, fit.core_set, fit.precision): fit for fit in fit_file.fits} if fit_file else {}


def read_priors(profile: Path, device: str) -> dict[tuple[str, str, str], Prior]:
    """Read the priors next to a profile, by processor, core set and precision; empty if there are none.

    Args:
        profile: The profile's TOML file.

    Raises:
        StretchError: If the file cannot be read, is no file of priors or belongs to another device.
    """
    prior_file = _read(prior_path(profile), PriorFile, device)
    return {(prior.processor, prior.core_set, prior.precision): prior for prior in prior_file.priors} if prior_file else {}


def _read(path: Path, kind: type[File], device: str) -> File | None:
    """A file of a device; None if there is none."""
    if not path.exists():
        return None
    content = read_bytes(path, "file of fits", MAX_FIT_BYTES, _HINT)
    try:
        parsed = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is not a file of fits: {_fault(content, kind) or error}", _HINT) from error
    if parsed.device != device:
        raise StretchError(
            f"{path} has fits of `{parsed.device}`, the profile is `{device}`", "write them again with `stretch profile fit`"
        )
    return parsed


def write_fits(path: Path, device: str, command: str, fits: Sequence[Fit]) -> None:
    """Write the fits of a device; the same fits give the same bytes."""
    _write(path, FitFile(device, command, tuple(fits)))


def write_priors(path: Path, device: str, command: str, priors: Sequence[Prior]) -> None:
    """Write the priors of a device; the same priors give the same bytes."""
    _write(path, PriorFile(device, command, tuple(priors)))


def _write(path: Path, content: FitFile | PriorFile) -> None:
    text = msgspec.json.format(msgspec.json.encode(content), indent=0)
    # Whole or not at all: a profile is read together with its fits.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(text + b"\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _fault(content: bytes, kind: type[FitFile] | type[PriorFile]) -> str | None:
    """Describe the fault, with its place, in JSON that is no file of fits."""
    try:
        fault = find_fault(msgspec.json.decode(content), kind)
    except (msgspec.MsgspecError, ValueError):
        return None
    return fault.sentence if fault else None
