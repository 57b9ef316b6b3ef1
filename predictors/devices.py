"""Device profiles: what is known of a device's processors and links, read from TOML.

Every number of a profile is a `Quantity`: a value and where it comes from.
A profile is data, so a new device is a new file in `predictors/profiles/`.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from predictors.errors import UnknownNameError, UsageError
from predictors.files import read_toml
from predictors.fits.fit import Fit
from predictors.fits.prior import Prior
from predictors.fits.store import read_fits, read_priors
from predictors.specifications import (
    ITEM_BYTES,
    KERNEL_KINDS,
    Cores,
    CoreSet,
    Factor,
    Layout,
    LinkProfile,
    NotNegative,
    Positive,
    Precision,
    ProcessorProfile,
    ProfileFile,
    Quantity,
    Ratio,
    check,
    quantities,
    refused,
)
from predictors.thermal import Thermal

T = TypeVar("T")

__all__ = [
    "ITEM_BYTES",
    "KERNEL_KINDS",
    "PROFILE_FOLDER",
    "CoreSet",
    "Cores",
    "DeviceProfile",
    "Factor",
    "Layout",
    "LinkProfile",
    "NotNegative",
    "Positive",
    "Precision",
    "Processor",
    "ProcessorProfile",
    "Quantity",
    "Ratio",
    "find_device",
    "list_devices",
    "load_device",
    "profile_path",
    "quantities",
]

PROFILE_FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Processor:
    """A processor with one core set, in the units the predictors use."""

    name: str  # As it is written in a design, such as ``cpu`` or ``cpu[1large]``.
    family: str  # Name without the core set.
    core_set: str  # Name of the core set.
    profile: ProcessorProfile  # The processor's profile.
    cores: CoreSet  # The core set's profile.
    fits: Mapping[str, Fit]  # What was fitted to measurements on it, by precision.
    priors: Mapping[str, Prior]  # What its relatives say of it, by precision.

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions it can run, most precise first."""
        return tuple(sorted(self.cores.peak_gops, key=lambda p: -ITEM_BYTES[p]))

    @property
    def default_precision(self) -> Precision:
        """Precision used unless told otherwise."""
        return self.profile.default_precision

    @property
    def width_slice(self) -> int:
        """Channels that widths are best multiples of."""
        return round(self.profile.width_slice.value)

    def check_precision(self, precision: str | None) -> Precision:
        """`precision`, or the default where it is None.

        Raises:
            UsageError: If the processor cannot run it.
        """
        if precision is None:
            return self.default_precision
        for known in self.precisions:
            if precision == known:
                return known
        raise UsageError(f"`{self.name}` does not run `{precision}`", f"it runs {', '.join(self.precisions)}")


@dataclass(frozen=True)
class DeviceProfile:
    """What is known of one device.

    Args:
        id: Short name, used on the command line.
        name: Name in words.
        soc: System on chip.
        sources: Where numbers come from, by key.
        processors: Profile of each processor.
        links: Link between the CPU and each other processor.
        little_cores: Cores for threads that only wait for another processor
            (paper 003, section 6.2); None if not known.
        fits: What was fitted to measurements on the device, by processor, core set and precision.
        priors: What fits of other devices say of it, in the same way.
        thermal: How it heats up; None if not known.
        aliases: Other names of the device and its chip, which `load_device` takes.
        left_out: Processors that the device has and the profile lacks, with the reason.
    """

    id: str
    name: str
    soc: str
    sources: dict[str, str]
    processors: dict[str, ProcessorProfile]
    links: dict[str, LinkProfile]
    little_cores: Cores | None = None
    fits: Mapping[tuple[str, str, str], Fit] = field(default_factory=dict)
    priors: Mapping[tuple[str, str, str], Prior] = field(default_factory=dict)
    thermal: Thermal | None = None
    aliases: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def calibrated(self) -> bool:
        """Whether every processor, with its default core set and precision, was fitted to measurements on the device."""

        def measured(processor: Processor) -> bool:
            fit, prior = processor.fits.get(processor.default_precision), processor.priors.get(processor.default_precision)
            return fit.sibling is None if fit is not None else prior is not None and prior.calibration is not None

        return all(measured(self.processor(name)) for name in self.processors)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Every processor name: the default core set by its bare name, then the others."""
        names = []
        for family, processor in self.processors.items():
            names.append(family)
            names += [f"{family}[{core_set}]" for core_set in processor.core_sets if core_set != processor.default_core_set]
        return tuple(names)

    def processor(self, name: str) -> Processor:
        """The processor called `name`, such as ``cpu`` or ``cpu[1large]``.

        Raises:
            UnknownNameError: If the device has none of that name.
        """
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._processor(name)
        return known

    @cached_property
    def _known(self) -> dict[str, Processor]:
        return {}

    def feeder(self, name: str) -> float:
        """Share of the CPU that the thread takes which feeds a processor while it computes; 0 where its profile states none.

        Args:
            name: Of the processor, such as ``gpu``.

        Raises:
            UnknownNameError: If the device has none of that name.
        """
        stated = self.processor(name).profile.feeder
        return stated.value if stated else 0.0

    def _processor(self, name: str) -> Processor:
        family, bracket, rest = name.partition("[")
        profile = self.processors.get(family)
        if profile is None and family in self.left_out:
            raise UnknownNameError(
                f"the profile `{self.id}` lacks the {family} of the {self.name}: {self.left_out[family]}",
                f"it has {', '.join(self.processors)}; `stretch profile` measures a device of yours",
            )
        if profile is None:
            # `npu` is no misspelt `gpu`
            close = difflib.get_close_matches(name, self.variants, n=1, cutoff=0.7)
            hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(self.processors)}"
            raise UnknownNameError(f"unknown processor of {self.id} `{name}`", hint)
        core_set = rest.removesuffix("]") if bracket else profile.default_core_set
        if core_set not in profile.core_sets or (bracket and not rest.endswith("]")):
            raise UnknownNameError.among(f"processor of {self.id}", name, self.variants)
        return Processor(
            name,
            family,
            core_set,
            profile,
            profile.core_sets[core_set],
            self._fits_at.get((family, core_set), {}),
            self._priors_at.get((family, core_set), {}),
        )

    @cached_property
    def _fits_at(self) -> dict[tuple[str, str], dict[str, Fit]]:
        return _by_core_set(self.fits)

    @cached_property
    def _priors_at(self) -> dict[tuple[str, str], dict[str, Prior]]:
        return _by_core_set(self.priors)

    def source_of(self, quantity: Quantity) -> str:
        """Where a number of this profile comes from, in words."""
        return self.sources[quantity.source]


def _by_core_set(known: Mapping[tuple[str, str, str], T]) -> dict[tuple[str, str], dict[str, T]]:
    """What is known of each core set, by precision."""
    by_core_set: dict[tuple[str, str], dict[str, T]] = {}
    for (processor, core_set, precision), value in known.items():
        by_core_set.setdefault((processor, core_set), {})[precision] = value
    return by_core_set


def list_devices() -> list[str]:
    """Ids of the profiles that ship with nn-stretch, sorted."""
    return sorted(path.stem for path in PROFILE_FOLDER.glob("*.toml"))


def find_device(name: str) -> str:
    """Id of the shipped profile that an id, or a name of its device or chip in any spelling, stands for.

    Args:
        name: Such as ``s25``, ``Galaxy S25`` or ``SM8750``.

    Raises:
        UnknownNameError: If no profile has that name, or several have.
    """
    ids = list_devices()
    if name in ids:
        return name
    names = {profile_id: {_plain(word) for word in (profile_id, *_names(PROFILE_FOLDER / f"{profile_id}.toml"))} for profile_id in ids}
    matching = [match_id for match_id, known in names.items() if _plain(name) in known]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UnknownNameError(f"`{name}` is what {len(matching)} profiles are called", f"choose one of {', '.join(matching)}")
    # another number is another chip: only a name with the same digits can be a misspelling
    digits = re.sub(r"\D", "", name)
    alike = [word for known in names.values() for word in known if re.sub(r"\D", "", word) == digits]
    if close := difflib.get_close_matches(_plain(name), alike, n=1, cutoff=0.6):
        hint = f"did you mean `{next(match_id for match_id, known in names.items() if close[0] in known)}`?"
    else:
        near = difflib.get_close_matches(name, ids, n=1, cutoff=0.5)
        other = f"; the most similar name, `{near[0]}`, is another device" if near else ""
        hint = f"`stretch list devices` lists those that there are{other}; `stretch profile` measures one of yours"
    raise UnknownNameError(f"unknown device `{name}`", hint)


def _names(path: Path) -> list[str]:
    """Names of a shipped profile beside its id."""
    profile = read_toml(path, "device profile")
    return [profile["name"], *profile.get("aliases", ())]


def _plain(name: str) -> str:
    """A name without case and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold())


def profile_path(device: str | Path) -> Path:
    """File of a profile that is named as `load_device` takes it, whether or not it is there.

    Raises:
        UnknownNameError: If a name is of no shipped profile, or of several.
    """
    text = str(device)
    if isinstance(device, Path) or text.endswith(".toml") or "/" in text:
        return Path(device)
    return PROFILE_FOLDER / f"{find_device(text)}.toml"


def load_device(device: str | Path) -> DeviceProfile:
    """Read and check a device profile.

    Args:
        device: Id of a shipped profile, the name of its device or chip in any spelling (``Snapdragon 8 Elite``, ``sm8750``), or the
            path of a TOML file.

    Raises:
        UnknownNameError: If it is none of these, or a chip that several profiles have.
        StretchError: If the file cannot be read or is not a profile.
    """
    path = profile_path(device)
    raw = read_toml(
        path, "device profile", "give a profile id (see `stretch list devices`) or a TOML file such as predictors/profiles/host.toml"
    )
    try:
        parsed = msgspec.convert(raw, ProfileFile)
    except (msgspec.MsgspecError, ValueError) as error:
        raise refused(path, raw, error) from error
    check(path, parsed)
    return DeviceProfile(
        parsed.id,
        parsed.name,
        parsed.soc,
        parsed.sources,
        parsed.processors,
        parsed.links,
        parsed.little_cores,
        read_fits(path, parsed.id),
        read_priors(path, parsed.id),
        parsed.thermal,
        parsed.aliases,
        parsed.left_out,
    )
