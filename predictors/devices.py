"""Device profiles: facts about a device's processors and links, in TOML files.

Every number in a profile is a `Quantity`: a value with its source.
A profile is data, so a new device is a new file in `predictors/profiles/`.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.faults import find_fault, nearest
from predictors.files import read_toml
from predictors.fits import Fit, Prior, PriorFile, fit_path, prior_path, read_fits
from predictors.host import kind_of
from predictors.thermal import Thermal

# A device's profile: numbers with their sources. Each error in a profile is reported with its position in the file.

Precision = Literal["fp32", "fp16", "int8"]
Layout = Literal["NCHW", "NHWC", "PHWC4"]

#: Bytes of one element.
ITEM_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "int8": 1}

#: Kinds of kernels with an efficiency in each profile.
KERNEL_KINDS = ("conv1x1", "conv", "depthwise", "grouped", "linear", "matmul", "pool", "reduce", "elementwise", "copy")

#: Kinds without an efficiency in some profiles, which then have the efficiency of `linear`.
_LIKE_LINEAR = ("matmul",)

_HINT = "predictors/profiles/host.toml shows every key"

#: Limits of a device's numbers, so that products and quotients of several stay finite.
_MIN, _MAX = 1e-15, 1e15

_Positive = Annotated[float, msgspec.Meta(ge=_MIN, le=_MAX)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_MAX)]
_Ratio = Annotated[float, msgspec.Meta(ge=_MIN, le=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of a profile's structures; unknown keys are refused, so that a misspelt key is not silently ignored."""


class Positive(_Part, frozen=True):
    """A number above zero, and the key of its source in the profile's ``[sources]``."""

    value: _Positive
    source: _Text


class NotNegative(_Part, frozen=True):
    """A number that may be zero, and the key of its source."""

    value: _NotNegative
    source: _Text


class RatioWithSource(_Part, frozen=True):
    """A number above 0 and up to 1, and the key of its source."""

    value: _Ratio
    source: _Text


_Factor = Annotated[float, msgspec.Meta(ge=0.1, le=100)]


class Contention(_Part, frozen=True):
    """Factors on the time of a processor's kernels while another one computes, below 1 if they get faster, and the key of their source."""

    value: _Factor  # Factor on kernels that multiply.
    low: _Factor  # Lower end of its 90 % interval.
    high: _Factor  # Upper end of the interval.
    source: _Text
    memory: _Factor | None = None  # Factor on kernels that move memory, with the same relative uncertainty; `value` if None.


class SlowdownFactors(NamedTuple):
    """Factors on the time of kernels while other processors compute."""

    arithmetic: float  # Factor on kernels that multiply.
    memory: float  # Factor on kernels that move memory.


class Spread(_Part, frozen=True):
    """An interval of a factor around 1, and the key of its source."""

    value: tuple[Annotated[float, msgspec.Meta(gt=0, le=1)], Annotated[float, msgspec.Meta(ge=1, le=_MAX)]]
    source: _Text


class Cores(_Part, frozen=True):
    """Numbers of CPU cores in the numbering of the device's system, and the key of their source."""

    value: tuple[Annotated[int, msgspec.Meta(ge=0, le=1023)], ...]
    source: _Text


Quantity = Positive | NotNegative | RatioWithSource | Contention | Spread | Cores


class CoreSet(_Part, frozen=True):
    """A choice of cores on which a processor runs."""

    cores: str  # The cores in words.
    #: Arithmetic peak of all these cores together per precision, 10⁹ operations per second (a multiply-accumulate is two).
    peak_gops: dict[Precision, Positive]
    scaling: RatioWithSource  # Fraction of the peak that remains despite waiting between threads.
    bandwidth_gbs: Positive  # Sustained DRAM bandwidth, 10⁹ bytes per second.
    cache_kib: Positive  # Size of the cache that holds activations for these cores, KiB.
    cache_gbs: Positive  # Bandwidth of the cache, 10⁹ bytes per second.
    power_w: Positive | None = None  # Power while it computes, W.


class ProcessorProfile(_Part, frozen=True):
    """One processor of a device."""

    backend: str  # Fusion rules of the runtime that drives the processor (`predictors/fusion_rules`).
    layout: Layout  # Memory layout of activations.
    default_precision: Precision  # Precision a plan uses by default.
    default_core_set: str  # Core set used for the processor's name without a core set.
    width_slice: Positive  # Output channels are computed in multiples of this number.
    reduce_slice: Positive  # Input channels are computed in multiples of this number.
    launch_us: NotNegative  # Time to start one kernel, µs.
    half_outputs: NotNegative  # Number of output elements at which a kernel reaches half of its maximum rate.
    #: Additional work per output element of a convolution (bias, re-quantisation, store), in multiply-accumulates.
    epilogue_macs: NotNegative
    uncertainty: Positive  # Relative half-width of the 90 % interval around a prediction without a fit.
    efficiency: dict[str, RatioWithSource]  # Fraction of the peak per kernel kind if nothing else limits.
    core_sets: dict[str, CoreSet]  # Core sets by name.
    contention: dict[str, Contention] = {}  # Slowdown by each processor that computes at the same time; missing processors cause none.
    #: Share of the CPU, on the core set of the plan, taken by the thread that feeds this processor while it computes; 0 if None.
    feeder: RatioWithSource | None = None
    idle_w: NotNegative | None = None  # Power while the processor has no work in a run, W; None if unknown, and then not counted.
    waiting_w: NotNegative | None = None  # Power while the processor waits for others between its parts of a run, W; `idle_w` if None.
    #: Whether plans use the processor only on request, because apps or the paper's runtime cannot reach it everywhere.
    optional: bool = False
    #: Backends of other kinds of processors whose fits describe this processor, if no processor of its kind was fitted.
    relatives: tuple[str, ...] = ()
    #: Replacements, in scaled branches, of operators that the processor lacks or runs slowly; its runtime applies exact ones
    #: everywhere (`predictors.rewrites`).
    rewrites: tuple[str, ...] = ()
    #: Delegate of the processor's measurements, which also runs its subgraphs; empty for the default one of `stretch run`.
    delegate: str = ""
    unsupported: tuple[str, ...] = ()  # Kinds of operators that the CPU computes instead, with transfers both ways.

    @property
    def launching(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Everything that decides the kernels of a graph: backend, operators that the runtime lacks, rewrites."""
        return self.backend, self.unsupported, self.rewrites


class LinkProfile(_Part, frozen=True):
    """Transfer of a tensor between the CPU and one other processor, in one runtime."""

    #: Runtime and interface of the numbers: another one on the same device may be several times faster or slower.
    runtime: _Text
    map_ms: NotNegative  # Fixed time to hand over a tensor to the processor, ms.
    unmap_ms: NotNegative  # Fixed time until the CPU can read the processor's result, ms.
    sync_ms: NotNegative  # Time until the CPU notices the end and its threads wake up, ms.
    convert_gbs: Positive  # Rate of conversion and copying to the processor, 10⁹ bytes per second.
    convert_back_gbs: Positive | None = None  # Rate back from the processor; `convert_gbs` if None.
    #: 90 % interval of the factor on a transfer's time; half to twice if None (`stretch.planning.cost.compare`).
    spread: Spread | None = None

    @property
    def fixed_ms(self) -> float:
        """Fixed time of an exchange, both ways, ms."""
        return self.map_ms.value + self.unmap_ms.value + self.sync_ms.value


class ProfileFile(_Part, frozen=True):
    """A profile in the form of its TOML file."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$")]
    name: _Text
    soc: _Text
    sources: dict[str, _Text]
    processors: dict[str, ProcessorProfile]
    links: dict[str, LinkProfile]
    aliases: tuple[_Text, ...] = ()  # Other names for `load_device`: of the chip, its part numbers and the product.
    left_out: dict[str, _Text] = {}  # Processors of the device that the profile lacks, with the reason.
    little_cores: Cores | None = None
    thermal: Thermal | None = None


def profile_error(path: Path, raw: dict[str, Any], error: Exception) -> StretchError:
    """Return an error with the first defect of a file that does not fit the schema, with its position."""
    problem, hint = find_fault(raw, ProfileFile) or (str(error), None)
    return StretchError(f"{path} is not a device profile: {problem}", hint or _HINT)


def check_profile(path: Path, parsed: ProfileFile) -> None:
    """Refuse defects in a profile that a schema cannot express."""

    def fail(problem: str, hint: str | None = None) -> StretchError:
        return StretchError(f"{path} is not a device profile: {problem}", hint or _HINT)

    if "cpu" not in parsed.processors:
        raise fail("it has no processor `cpu`, which joins the branches")
    if contradictory := sorted(set(parsed.left_out) & set(parsed.processors)):
        raise fail(f"`left_out` names `{contradictory[0]}`, which is one of its processors")
    missing_links = sorted(set(parsed.processors) - {"cpu"} - set(parsed.links))
    stray_links = sorted(set(parsed.links) - (set(parsed.processors) - {"cpu"}))
    if missing_links:
        close = difflib.get_close_matches(missing_links[0], stray_links, n=1, cutoff=0.5)
        raise fail(f"[links.{missing_links[0]}] is missing", f"is it meant by [links.{close[0]}]?" if close else None)
    if stray_links:
        raise fail(f"[links.{stray_links[0]}] leads to no processor but the cpu itself or an unknown one")
    for family, processor in parsed.processors.items():
        key_path = f"processors.{family}"
        if processor.default_core_set not in processor.core_sets:
            raise fail(
                f"{key_path}.default_core_set `{processor.default_core_set}` is none of its core sets",
                nearest(processor.default_core_set, processor.core_sets),
            )
        lacking = sorted(set(KERNEL_KINDS) - {*processor.efficiency, *_LIKE_LINEAR})
        unknown = sorted(set(processor.efficiency) - set(KERNEL_KINDS))
        if unknown:
            raise fail(f"{key_path}.efficiency has the unknown kernel kind `{unknown[0]}`", nearest(unknown[0], lacking or KERNEL_KINDS))
        if lacking:
            raise fail(f"{key_path}.efficiency lacks `{lacking[0]}`")
        for name, core_set in processor.core_sets.items():
            if processor.default_precision not in core_set.peak_gops:
                raise fail(f"{key_path}.core_sets.{name}.peak_gops lacks the default precision {processor.default_precision}")
        for other, stated in processor.contention.items():
            if other not in parsed.processors or other == family:
                rest = [name for name in parsed.processors if name != family]
                raise fail(f"{key_path}.contention.{other} is of no other processor of the device", nearest(other, rest))
            if not stated.low <= stated.value <= stated.high:
                raise fail(f"{key_path}.contention.{other} has the value {stated.value:g}, which is not from `low` to `high`")
        for label, slice_ in (("width_slice", processor.width_slice), ("reduce_slice", processor.reduce_slice)):
            if slice_.value != round(slice_.value):
                raise fail(f"{key_path}.{label} must be a whole number")
    if parsed.thermal is not None:
        if (problem := parsed.thermal.problem()) is not None:
            raise fail(f"[thermal] does not hold together: {problem}")
        if parsed.thermal.source not in parsed.sources:
            raise fail(f"[thermal] names the source `{parsed.thermal.source}`, which [sources] does not have")
    for key_path, quantity in quantities(parsed):
        if quantity.source not in parsed.sources:
            raise fail(
                f"{key_path} names the source `{quantity.source}`, which [sources] does not have", nearest(quantity.source, parsed.sources)
            )


def quantities(part: object, path: str = "") -> list[tuple[str, Quantity]]:
    """Return every number of a profile, or of a part of it, with its position in the file."""
    if isinstance(part, Quantity):
        return [(path, part)]
    quantities_by_name: list[tuple[str, Quantity]] = []
    if isinstance(part, dict):
        items = list(part.items())
    elif isinstance(part, msgspec.Struct):
        items = [(name, getattr(part, name)) for name in part.__struct_fields__ if name not in ("fits", "priors")]
    else:
        return quantities_by_name
    for key, value in items:
        quantities_by_name += quantities(value, f"{path}.{key}" if path else str(key))
    return quantities_by_name


T = TypeVar("T")

__all__ = [
    "ITEM_BYTES",
    "KERNEL_KINDS",
    "PROFILE_FOLDER",
    "Contention",
    "CoreSet",
    "Cores",
    "DeviceProfile",
    "Layout",
    "LinkProfile",
    "NotNegative",
    "Positive",
    "Precision",
    "Processor",
    "ProcessorProfile",
    "Quantity",
    "RatioWithSource",
    "find_device",
    "list_devices",
    "load_device",
    "load_devices",
    "profile_path",
    "quantities",
]

PROFILE_FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True)
class Processor:
    """A processor with one core set, in the units of the predictors."""

    name: str  # Name in a design, such as ``cpu`` or ``cpu[1large]``.
    family: str  # Name without the core set.
    core_set: str  # Name of the core set.
    profile: ProcessorProfile  # The processor's profile.
    cores: CoreSet  # The core set's profile.
    fits: Mapping[str, Fit]  # Fits to measurements on the processor, by precision.
    priors: Mapping[str, Prior]  # Priors from related processors, by precision.

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Supported precisions, most precise first."""
        return tuple(sorted(self.cores.peak_gops, key=lambda p: -ITEM_BYTES[p]))

    @property
    def default_precision(self) -> Precision:
        """Precision used by default."""
        return self.profile.default_precision

    @property
    def width_slice(self) -> int:
        """Number of channels of which widths should be multiples."""
        return round(self.profile.width_slice.value)

    def check_precision(self, precision: str | None) -> Precision:
        """Return `precision`, or the default precision if it is None.

        Raises:
            UsageError: If the processor does not support it.
        """
        if precision is None:
            return self.default_precision
        for supported in self.precisions:
            if precision == supported:
                return supported
        raise UsageError(f"`{self.name}` does not run `{precision}`", f"it runs {', '.join(self.precisions)}")


class InferenceConstant(NamedTuple):
    """Time of an inference on a processor beyond its kernels."""

    ms: float  # The time.
    high: float  # Upper end of its 90 % interval, as a factor.


class DeviceProfile(ProfileFile, frozen=True, kw_only=True, dict=True):
    """A device with its profile, and with the fits and priors of its processors.

    Args:
        id: Short name, used on the command line.
        name: Name in words.
        soc: System on chip.
        sources: Sources of the numbers, by key.
        processors: Profile of each processor.
        links: Link between the CPU and each other processor.
        aliases: Other names of the device and its chip, for `load_device`.
        left_out: Processors of the device that the profile lacks, with the reason.
        little_cores: Cores for threads that only wait for another processor (paper 003, section 6.2); None if unknown.
        thermal: Thermal model of the chip; None if unknown.
        fits: Fits to measurements on the device, by processor, core set and precision.
        priors: Priors from the fits of other devices, by the same keys.
        file: Path of the profile's file; empty for a shipped profile.
    """

    fits: Mapping[tuple[str, str, str], Fit] = {}
    priors: Mapping[tuple[str, str, str], Prior] = {}
    file: str = ""

    @property
    def cli_name(self) -> str:
        """Name of the device on the command line."""
        return self.file or self.id

    @cached_property
    def calibrated(self) -> bool:
        """Whether every processor, with its default core set and precision, has a fit to measurements on the device."""

        def measured(processor: Processor) -> bool:
            fit, prior = processor.fits.get(processor.default_precision), processor.priors.get(processor.default_precision)
            return fit.sibling is None if fit is not None else prior is not None and prior.calibration is not None

        return all(measured(self.processor(name)) for name in self.processors)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Names of all processors: each default core set without a core set's name, then the others."""
        names = []
        for family, processor in self.processors.items():
            names.append(family)
            names += [f"{family}[{core_set}]" for core_set in processor.core_sets if core_set != processor.default_core_set]
        return tuple(names)

    def processor(self, name: str) -> Processor:
        """Return the processor `name`, such as ``cpu`` or ``cpu[1large]``.

        Raises:
            UnknownNameError: If the device has no such processor.
        """
        cached = self._by_name.get(name)
        if cached is None:
            cached = self._by_name[name] = self._processor(name)
        return cached

    def inference_constant(self, name: str) -> InferenceConstant | None:
        """Return the time of an inference beyond its kernels, with its interval, from measured networks; None without measurements."""
        processor = self.processor(name)
        fit, prior = processor.fits.get(processor.default_precision), processor.priors.get(processor.default_precision)
        if fit is not None:
            return InferenceConstant(fit.correction.fixed_ms, fit.interval.high)
        return InferenceConstant(prior.calibration.per_inference_ms, prior.interval.high) if prior and prior.calibration else None

    @cached_property
    def default_processors(self) -> tuple[str, ...]:
        """Processors that a plan uses by default."""
        return tuple(name for name, processor in self.processors.items() if not processor.optional)

    @cached_property
    def _by_name(self) -> dict[str, Processor]:
        return {}

    def slowdown(self, name: str, others: Iterable[str]) -> SlowdownFactors:
        """Return the factors on a processor's times while others compute: the product of their factors, as measured on chips with three.

        Args:
            name: Name of the processor, with or without core set.
            others: Names of the other processors.
        """
        stated = self.processors[kind_of(name)].contention
        by_each = [stated[kind] for kind in sorted({kind_of(other) for other in others}) if kind in stated]
        return SlowdownFactors(
            prod(slowdown.value for slowdown in by_each),
            prod(slowdown.value if slowdown.memory is None else slowdown.memory for slowdown in by_each),
        )

    def feeder(self, name: str) -> float:
        """Return the share of the CPU taken by the thread that feeds a computing processor; 0 if the profile states none.

        Args:
            name: Name of the processor, such as ``gpu``.

        Raises:
            UnknownNameError: If the device has no such processor.
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
            # `npu` is not a misspelling of `gpu`
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


def _by_core_set(values: Mapping[tuple[str, str, str], T]) -> dict[tuple[str, str], dict[str, T]]:
    """Return the values of each core set, by precision."""
    by_core_set: dict[tuple[str, str], dict[str, T]] = {}
    for (processor, core_set, precision), value in values.items():
        by_core_set.setdefault((processor, core_set), {})[precision] = value
    return by_core_set


def list_devices() -> list[str]:
    """Return the ids of the shipped profiles, sorted."""
    return sorted(path.stem for path in PROFILE_FOLDER.glob("*.toml"))


def is_pattern(name: str) -> bool:
    """Return whether a name is a wildcard pattern."""
    return any(sign in name for sign in "*?[") and not Path(name).exists()


def load_devices(names: str) -> "list[DeviceProfile]":
    """Return each profile named by ids, device names, files and wildcard patterns, separated by commas, once.

    Raises:
        UsageError: If a name in the list is empty.
        UnknownNameError: If no profile has a name.
    """
    profiles: dict[str, DeviceProfile] = {}
    for word in (part.strip() for part in names.split(",")):
        if not word:
            raise UsageError(f"the list of devices `{names}` has an empty name", "separate ids by single commas, as in pixel6,mi9")
        ids = fnmatch.filter(list_devices(), word) if is_pattern(word) else [word]
        if not ids:
            raise UnknownNameError.among("device", word, list_devices())
        for profile in map(load_device, ids):
            profiles.setdefault(profile.id, profile)
    return list(profiles.values())


def find_device(name: str) -> str:
    """Return the id of the shipped profile for an id or for any spelling of its device's or chip's name.

    Args:
        name: A name such as ``s25``, ``Galaxy S25`` or ``SM8750``.

    Raises:
        UnknownNameError: If no profile has the name, or several have it.
    """
    ids = list_devices()
    if name in ids:
        return name
    names = {
        profile_id: {_normalise(word) for word in (profile_id, *_profile_names(PROFILE_FOLDER / f"{profile_id}.toml"))}
        for profile_id in ids
    }
    matching = [match_id for match_id, words in names.items() if _normalise(name) in words]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UnknownNameError(f"`{name}` is the name of {len(matching)} profiles", f"choose one of {', '.join(matching)}")
    # a different number means a different chip: only a name with the same digits can be a misspelling
    digits = re.sub(r"\D", "", name)
    candidates = [word for words in names.values() for word in words if re.sub(r"\D", "", word) == digits]
    if "," in name:
        hint = "give one device; `stretch advise MODEL --device A,B` compares several"
    elif close := difflib.get_close_matches(_normalise(name), candidates, n=1, cutoff=0.6):
        hint = f"did you mean `{next(match_id for match_id, words in names.items() if close[0] in words)}`?"
    else:
        similar = difflib.get_close_matches(name, ids, n=1, cutoff=0.5)
        similar_note = f"; the most similar name, `{similar[0]}`, is another device" if similar else ""
        hint = f"`stretch list devices` lists all{similar_note}; `stretch profile` measures a computer or a board, `stretch web --profile` a phone"
    raise UnknownNameError(f"unknown device `{name}`", hint)


def _profile_names(path: Path) -> list[str]:
    """Return the names of a shipped profile, except for its id."""
    profile = read_toml(path, "device profile")
    return [profile["name"], *profile.get("aliases", ())]


def _normalise(name: str) -> str:
    """Return a name without case and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold())


def profile_path(device: str | Path) -> Path:
    """Return the path of a profile from any name that `load_device` accepts, whether or not the file exists.

    Raises:
        UnknownNameError: If no shipped profile has the name, or several have it.
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
        UnknownNameError: If it is none of these, or the chip of several profiles.
        StretchError: If the file cannot be read or is not a profile.
    """
    path = profile_path(device)
    raw = read_toml(
        path, "device profile", "give a profile id (see `stretch list devices`) or a TOML file such as predictors/profiles/host.toml"
    )
    try:
        parsed = msgspec.convert(raw, ProfileFile)
    except (msgspec.MsgspecError, ValueError) as error:
        raise profile_error(path, raw, error) from error
    check_profile(path, parsed)
    return DeviceProfile(
        **msgspec.structs.asdict(parsed),
        fits=read_fits(fit_path(path), parsed.id),
        priors=read_fits(prior_path(path), parsed.id, PriorFile),
        file="" if path.parent == PROFILE_FOLDER else str(path),
    )
