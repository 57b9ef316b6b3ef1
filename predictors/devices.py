"""Device profiles: what is known of a device's processors and links, read from TOML.

Every number of a profile is a `Quantity`: a value and where it comes from.
A profile is data, so a new device is a new file in `predictors/profiles/`.
"""

import difflib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.faults import find_fault, nearest
from predictors.files import read_toml

Precision = Literal["fp32", "fp16", "int8"]
Layout = Literal["NCHW", "NHWC", "PHWC4"]

#: Bytes of one element.
ITEM_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "int8": 1}

#: Kinds of kernels a profile states an efficiency for.
KERNEL_KINDS = ("conv1x1", "conv", "depthwise", "grouped", "linear", "pool", "reduce", "elementwise", "copy")

PROFILE_FOLDER = Path(__file__).parent / "profiles"

_EVERY_KEY = "predictors/profiles/host.toml shows every key"

#: No number of a device is beyond these; products and quotients of some stay finite.
_LEAST, _MOST = 1e-15, 1e15

_Positive = Annotated[float, msgspec.Meta(ge=_LEAST, le=_MOST)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
_Ratio = Annotated[float, msgspec.Meta(ge=_LEAST, le=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown keys are refused, so that a misspelt one is not silently ignored."""


class Positive(_Part, frozen=True):
    """A number above zero and the key of its source in the profile's ``[sources]``."""

    value: _Positive
    source: _Text


class NotNegative(_Part, frozen=True):
    """A number that may be zero, and the key of its source."""

    value: _NotNegative
    source: _Text


class Ratio(_Part, frozen=True):
    """A number above 0 and up to 1, and the key of its source."""

    value: _Ratio
    source: _Text


class Factor(_Part, frozen=True):
    """A number from 1 on, and the key of its source."""

    value: Annotated[float, msgspec.Meta(ge=1, le=_MOST)]
    source: _Text


class Cores(_Part, frozen=True):
    """Numbers of CPU cores as the device's system counts them, and the key of their source."""

    value: tuple[Annotated[int, msgspec.Meta(ge=0, le=1023)], ...]
    source: _Text


Quantity = Positive | NotNegative | Ratio | Factor | Cores


class CoreSet(_Part, frozen=True):
    """One way to run a processor: a choice of cores.

    Args:
        cores: The cores in words.
        peak_gops: Arithmetic peak of all these cores together per precision,
            10⁹ operations a second (a multiply-accumulate is two).
        scaling: Fraction of the peak that remains after threads wait for each other.
        bandwidth_gbs: Sustained DRAM bandwidth, 10⁹ bytes a second.
        cache_kib: Cache these cores keep activations in, KiB.
        cache_gbs: Bandwidth of that cache, 10⁹ bytes a second.
        power_w: Power while it computes, W.
    """

    cores: str
    peak_gops: dict[Precision, Positive]
    scaling: Ratio
    bandwidth_gbs: Positive
    cache_kib: Positive
    cache_gbs: Positive
    power_w: Positive | None = None


class ProcessorProfile(_Part, frozen=True):
    """One processor of a device.

    Args:
        backend: Fusion rules of the runtime that drives it (`predictors/fusion_rules`).
        layout: How it keeps activations.
        default_precision: Precision a plan uses unless told otherwise.
        default_core_set: Core set meant by the bare processor name.
        width_slice: Output channels are computed in multiples of this many.
        reduce_slice: Input channels are computed in multiples of this many.
        launch_us: Time to start one kernel, µs.
        half_outputs: Output elements of a kernel at which it reaches half of its rate.
        epilogue_macs: Work per output element of a convolution beside its products
            (bias, re-quantisation, store), as a number of multiply-accumulates.
        contention: Factor on its times while another processor computes.
        uncertainty: Relative half-width of the interval around a prediction.
        efficiency: Fraction of the peak per kernel kind when nothing else limits.
        core_sets: Core sets by name.
    """

    backend: str
    layout: Layout
    default_precision: Precision
    default_core_set: str
    width_slice: Positive
    reduce_slice: Positive
    launch_us: NotNegative
    half_outputs: NotNegative
    epilogue_macs: NotNegative
    contention: Factor
    uncertainty: Positive
    efficiency: dict[str, Ratio]
    core_sets: dict[str, CoreSet]


class LinkProfile(_Part, frozen=True):
    """How a tensor moves between the CPU and one other processor.

    Args:
        map_ms: Fixed time to hand a tensor to the processor, ms.
        unmap_ms: Fixed time to make its result readable by the CPU, ms.
        sync_ms: Time to notice that it has finished, ms.
        convert_gbs: Rate of layout and precision conversion and copying, 10⁹ bytes a second.
    """

    map_ms: NotNegative
    unmap_ms: NotNegative
    sync_ms: NotNegative
    convert_gbs: Positive


class _ProfileFile(_Part, frozen=True):
    """A profile as it stands in TOML."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$")]
    name: _Text
    soc: _Text
    calibrated: bool
    sources: dict[str, _Text]
    processors: dict[str, ProcessorProfile]
    links: dict[str, LinkProfile]
    little_cores: Cores | None = None


@dataclass(frozen=True)
class Processor:
    """A processor with one core set, in the units the predictors use.

    Args:
        name: As it is written in a design, such as ``cpu`` or ``cpu[1large]``.
        family: Name without the core set.
        core_set: Name of the core set.
        profile: The processor's profile.
        cores: The core set's profile.
        calibrated: Whether the device profile was fitted to measurements.
    """

    name: str
    family: str
    core_set: str
    profile: ProcessorProfile
    cores: CoreSet
    calibrated: bool

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
        calibrated: Whether its numbers were fitted to measurements on the device.
        sources: Where numbers come from, by key.
        processors: Profile of each processor.
        links: Link between the CPU and each other processor.
        little_cores: Cores for threads that only wait for another processor
            (paper 003, section 6.2); None if not known.
    """

    id: str
    name: str
    soc: str
    calibrated: bool
    sources: dict[str, str]
    processors: dict[str, ProcessorProfile]
    links: dict[str, LinkProfile]
    little_cores: Cores | None = None

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
        family, bracket, rest = name.partition("[")
        profile = self.processors.get(family)
        if profile is None:
            raise UnknownNameError.among(f"processor of {self.id}", name, self.variants)
        core_set = rest.removesuffix("]") if bracket else profile.default_core_set
        if core_set not in profile.core_sets or (bracket and not rest.endswith("]")):
            raise UnknownNameError.among(f"processor of {self.id}", name, self.variants)
        return Processor(name, family, core_set, profile, profile.core_sets[core_set], self.calibrated)

    def source_of(self, quantity: Quantity) -> str:
        """Where a number of this profile comes from, in words."""
        return self.sources[quantity.source]


def list_devices() -> list[str]:
    """Ids of the profiles that ship with nn-stretch, sorted."""
    return sorted(path.stem for path in PROFILE_FOLDER.glob("*.toml"))


def load_device(device: str | Path) -> DeviceProfile:
    """Read and check a device profile.

    Args:
        device: Id of a shipped profile, or the path of a TOML file.

    Raises:
        UnknownNameError: If it is neither; the hint has the closest id.
        StretchError: If the file cannot be read or is not a profile.
    """
    text = str(device)
    if isinstance(device, Path) or text.endswith(".toml") or "/" in text:
        path = Path(device)
    else:
        if text not in list_devices():
            raise UnknownNameError.among("device", text, list_devices())
        path = PROFILE_FOLDER / f"{text}.toml"
    raw = read_toml(
        path, "device profile", "give a profile id (see `stretch devices`) or a TOML file such as predictors/profiles/host.toml"
    )
    try:
        parsed = msgspec.convert(raw, _ProfileFile)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _refused(path, raw, error) from error
    _check(path, parsed)
    return DeviceProfile(
        parsed.id,
        parsed.name,
        parsed.soc,
        parsed.calibrated,
        parsed.sources,
        parsed.processors,
        parsed.links,
        parsed.little_cores,
    )


def _refused(path: Path, raw: dict[str, Any], error: Exception) -> StretchError:
    """What is wrong with a profile that does not fit the schema, with the place in the file."""
    fault = find_fault(raw, _ProfileFile)
    what, hint = (str(error), None) if fault is None else (fault.sentence, fault.hint)
    return StretchError(f"{path} is not a device profile: {what}", hint or _EVERY_KEY)


def _check(path: Path, parsed: _ProfileFile) -> None:
    """Refuse what the schema alone cannot see."""

    def fail(what: str, hint: str | None = None) -> StretchError:
        return StretchError(f"{path} is not a device profile: {what}", hint or _EVERY_KEY)

    if "cpu" not in parsed.processors:
        raise fail("it has no processor `cpu`, which joins the branches")
    missing_links = sorted(set(parsed.processors) - {"cpu"} - set(parsed.links))
    stray_links = sorted(set(parsed.links) - (set(parsed.processors) - {"cpu"}))
    if missing_links:
        close = difflib.get_close_matches(missing_links[0], stray_links, n=1, cutoff=0.5)
        raise fail(f"[links.{missing_links[0]}] is missing", f"is it meant by [links.{close[0]}]?" if close else None)
    if stray_links:
        raise fail(f"[links.{stray_links[0]}] leads to no processor but the cpu itself or an unknown one")
    for family, processor in parsed.processors.items():
        where = f"processors.{family}"
        if processor.default_core_set not in processor.core_sets:
            raise fail(
                f"{where}.default_core_set `{processor.default_core_set}` is none of its core sets",
                nearest(processor.default_core_set, processor.core_sets),
            )
        lacking = sorted(set(KERNEL_KINDS) - set(processor.efficiency))
        unknown = sorted(set(processor.efficiency) - set(KERNEL_KINDS))
        if unknown:
            raise fail(f"{where}.efficiency has the unknown kernel kind `{unknown[0]}`", nearest(unknown[0], lacking or KERNEL_KINDS))
        if lacking:
            raise fail(f"{where}.efficiency lacks `{lacking[0]}`")
        for name, core_set in processor.core_sets.items():
            if processor.default_precision not in core_set.peak_gops:
                raise fail(f"{where}.core_sets.{name}.peak_gops lacks the default precision {processor.default_precision}")
        for label, slice_ in (("width_slice", processor.width_slice), ("reduce_slice", processor.reduce_slice)):
            if slice_.value != round(slice_.value):
                raise fail(f"{where}.{label} must be a whole number")
    for where, quantity in quantities(parsed):
        if quantity.source not in parsed.sources:
            raise fail(
                f"{where} names the source `{quantity.source}`, which [sources] does not have", nearest(quantity.source, parsed.sources)
            )


def quantities(part: object, where: str = "") -> list[tuple[str, Quantity]]:
    """Every number of a profile or a part of one, with its place in the file."""
    if isinstance(part, Positive | NotNegative | Ratio | Factor | Cores):
        return [(where, part)]
    found: list[tuple[str, Quantity]] = []
    if isinstance(part, dict):
        items = list(part.items())
    elif isinstance(part, msgspec.Struct):
        items = [(name, getattr(part, name)) for name in part.__struct_fields__]
    elif isinstance(part, DeviceProfile):
        items = [("processors", part.processors), ("links", part.links), ("little_cores", part.little_cores)]
    else:
        return found
    for key, value in items:
        found += quantities(value, f"{where}.{key}" if where else str(key))
    return found
