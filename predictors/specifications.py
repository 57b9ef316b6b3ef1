"""What a profile's file may say of a device: numbers with their sources, and what is wrong with a file that says something else."""

import dataclasses
import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from predictors.errors import StretchError
from predictors.faults import find_fault, nearest
from predictors.thermal import Thermal

Precision = Literal["fp32", "fp16", "int8"]
Layout = Literal["NCHW", "NHWC", "PHWC4"]

#: Bytes of one element.
ITEM_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "int8": 1}

#: Kinds of kernels a profile states an efficiency for.
KERNEL_KINDS = ("conv1x1", "conv", "depthwise", "grouped", "linear", "matmul", "pool", "reduce", "elementwise", "copy")

#: Those that a profile may leave out; they are then as efficient as `linear`.
_LIKE_LINEAR = ("matmul",)

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


class Spread(_Part, frozen=True):
    """An interval of a factor around 1, and the key of its source."""

    value: tuple[Annotated[float, msgspec.Meta(gt=0, le=1)], Annotated[float, msgspec.Meta(ge=1, le=_MOST)]]
    source: _Text


class Cores(_Part, frozen=True):
    """Numbers of CPU cores as the device's system counts them, and the key of their source."""

    value: tuple[Annotated[int, msgspec.Meta(ge=0, le=1023)], ...]
    source: _Text


Quantity = Positive | NotNegative | Ratio | Factor | Spread | Cores


class CoreSet(_Part, frozen=True):
    """One way to run a processor: a choice of cores."""

    cores: str  # The cores in words.
    #: Arithmetic peak of all these cores together per precision, 10⁹ operations a second (a multiply-accumulate is two).
    peak_gops: dict[Precision, Positive]
    scaling: Ratio  # Fraction of the peak that remains after threads wait for each other.
    bandwidth_gbs: Positive  # Sustained DRAM bandwidth, 10⁹ bytes a second.
    cache_kib: Positive  # Cache these cores keep activations in, KiB.
    cache_gbs: Positive  # Bandwidth of that cache, 10⁹ bytes a second.
    power_w: Positive | None = None  # Power while it computes, W.


class ProcessorProfile(_Part, frozen=True):
    """One processor of a device."""

    backend: str  # Fusion rules of the runtime that drives it (`predictors/fusion_rules`).
    layout: Layout  # How it keeps activations.
    default_precision: Precision  # Precision a plan uses unless told otherwise.
    default_core_set: str  # Core set meant by the bare processor name.
    width_slice: Positive  # Output channels are computed in multiples of this many.
    reduce_slice: Positive  # Input channels are computed in multiples of this many.
    launch_us: NotNegative  # Time to start one kernel, µs.
    half_outputs: NotNegative  # Output elements of a kernel at which it reaches half of its rate.
    #: Work per output element of a convolution beside its products (bias, re-quantisation, store), as a number of multiply-accumulates.
    epilogue_macs: NotNegative
    contention: Factor  # Factor on the time of kernels that compute, while another processor works.
    uncertainty: Positive  # Relative half-width of the 90 % interval around a prediction without a fit.
    efficiency: dict[str, Ratio]  # Fraction of the peak per kernel kind when nothing else limits.
    core_sets: dict[str, CoreSet]  # Core sets by name.
    contention_memory: Factor | None = None  # The same for kernels that move memory; `contention` if None (`predictors.predictor`).
    #: Share of the CPU, on the core set that a plan uses, that the thread takes which feeds this processor while it computes; 0 if None.
    feeder: Ratio | None = None
    idle_w: NotNegative | None = None  # Power while it has no work in a run, W; None where not known, and then not counted.
    waiting_w: NotNegative | None = None  # Power while it waits for other processors between its parts of a run, W; `idle_w` if None.
    #: Backends of other kinds of processors whose fits say something of this one, where none of its own kind was ever fitted.
    relatives: tuple[str, ...] = ()
    #: What branches that are scaled have instead of operators that it lacks or is slow at (`predictors.rewrite`).
    rewrites: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()  # Kinds of operators that its runtime does not compute: the CPU does, and tensors go there and back.


class LinkProfile(_Part, frozen=True):
    """How a tensor moves between the CPU and one other processor, in one runtime."""

    #: Runtime and interface that the numbers belong to: another one on the same device may be several times faster or slower.
    runtime: _Text
    map_ms: NotNegative  # Fixed time to hand a tensor to the processor, ms.
    unmap_ms: NotNegative  # Fixed time to make its result readable by the CPU, ms.
    sync_ms: NotNegative  # Time to notice that it has finished, ms.
    convert_gbs: Positive  # Rate of layout and precision conversion and copying on the way to the processor, 10⁹ bytes a second.
    convert_back_gbs: Positive | None = None  # The same on the way back; `convert_gbs` if None.
    #: Ends of the factor that a transfer's time may be off by, nine times in ten; half to twice if None (`stretch.planning.cost.compare`).
    spread: Spread | None = None


class ProfileFile(_Part, frozen=True):
    """A profile as it stands in TOML."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$")]
    name: _Text
    soc: _Text
    sources: dict[str, _Text]
    processors: dict[str, ProcessorProfile]
    links: dict[str, LinkProfile]
    aliases: tuple[_Text, ...] = ()  # Other names that `load_device` knows it by: of the chip, its part numbers, the product.
    left_out: dict[str, _Text] = {}  # Processors that the device has and the profile lacks, with the reason.
    little_cores: Cores | None = None
    thermal: Thermal | None = None


def refused(path: Path, raw: dict[str, Any], error: Exception) -> StretchError:
    """What is wrong with a profile that does not fit the schema, with the place in the file."""
    fault = find_fault(raw, ProfileFile)
    what, hint = (str(error), None) if fault is None else (fault.sentence, fault.hint)
    return StretchError(f"{path} is not a device profile: {what}", hint or _EVERY_KEY)


def check(path: Path, parsed: ProfileFile) -> None:
    """Refuse what the schema alone cannot see."""

    def fail(what: str, hint: str | None = None) -> StretchError:
        return StretchError(f"{path} is not a device profile: {what}", hint or _EVERY_KEY)

    if "cpu" not in parsed.processors:
        raise fail("it has no processor `cpu`, which joins the branches")
    if both := sorted(set(parsed.left_out) & set(parsed.processors)):
        raise fail(f"`left_out` names `{both[0]}`, which is one of its processors")
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
        lacking = sorted(set(KERNEL_KINDS) - {*processor.efficiency, *_LIKE_LINEAR})
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
    if parsed.thermal is not None:
        if (problem := parsed.thermal.problem()) is not None:
            raise fail(f"[thermal] does not hold together: {problem}")
        if parsed.thermal.source not in parsed.sources:
            raise fail(f"[thermal] names the source `{parsed.thermal.source}`, which [sources] does not have")
    for where, quantity in quantities(parsed):
        if quantity.source not in parsed.sources:
            raise fail(
                f"{where} names the source `{quantity.source}`, which [sources] does not have", nearest(quantity.source, parsed.sources)
            )


def quantities(part: object, where: str = "") -> list[tuple[str, Quantity]]:
    """Every number of a profile or a part of one, with its place in the file."""
    if isinstance(part, Quantity):
        return [(where, part)]
    named: list[tuple[str, Quantity]] = []
    if isinstance(part, dict):
        items = list(part.items())
    elif isinstance(part, msgspec.Struct):
        items = [(name, getattr(part, name)) for name in part.__struct_fields__]
    elif dataclasses.is_dataclass(part):
        items = [(field.name, getattr(part, field.name)) for field in dataclasses.fields(part) if field.name not in ("fits", "priors")]
    else:
        return named
    for key, value in items:
        named += quantities(value, f"{where}.{key}" if where else str(key))
    return named
