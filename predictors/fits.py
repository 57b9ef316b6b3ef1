"""Fits and priors: numbers from measurements that turn kernels into times, their errors on networks left out, their source, and their files.

A device's are JSON in the folder of its profile, ``<id>.fit.json`` and ``<id>.prior.json``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, overload

import msgspec

from predictors.errors import StretchError
from predictors.faults import find_fault
from predictors.files import read_bytes

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the structures of fits and priors; unknown keys are refused."""


class Trees(_Struct, frozen=True):
    """Boosted regression trees over features of a kernel, all nodes in flat lists.

    A node goes to its left child where its feature is at most its threshold,
    else to its right; a leaf is its own child. The prediction is `base` plus the
    values of the leaves that the trees end in.
    """

    features: tuple[_Text, ...]  # Names of the features (`predictors.models.fitted`), which `feature` counts.
    roots: tuple[_Count, ...]  # First node of each tree.
    feature: tuple[_Count, ...]  # Feature that each node asks for.
    threshold: tuple[float, ...]  # Bound of each node.
    left: tuple[_Count, ...]  # Left child of each node.
    right: tuple[_Count, ...]  # Right child of each node.
    value: tuple[float, ...]  # Each leaf's addition; 0 in other nodes.
    base: float  # Start of every prediction.
    bound: Annotated[float, msgspec.Meta(gt=0, le=5)]  # Maximum absolute value of the prediction.

    def __post_init__(self) -> None:
        """Refuse nodes that do not exist or form a cycle."""
        nodes = len(self.feature)
        if any(len(column) != nodes for column in (self.threshold, self.left, self.right, self.value)):
            raise ValueError("the lists of its nodes differ in length")
        if max((*self.roots, *self.left, *self.right), default=-1) >= nodes:
            raise ValueError("a child is no node")
        if not all(
            left > node < right or left == node == right for node, left, right in zip(range(nodes), self.left, self.right, strict=True)
        ):
            raise ValueError("a child comes before its parent")
        if max(self.feature, default=-1) >= len(self.features):
            raise ValueError("a node reads a feature that does not exist")


class KernelGroup(_Struct, frozen=True):
    """Kernels that one formula times."""

    terms: dict[_Text, _NotNegative]  # ms for a unit of each term (`predictors.models.fitted`).
    trees: Trees | None = None  # The logarithm of time ÷ sum of terms, where enough kernels were measured.
    kernels: _Count = 0  # Measured kernels that it was fitted to; 0 where only whole networks were measured.


class Correction(_Struct, frozen=True):
    """From the sum of kernels to a whole network.

    ``scale · sum + per_kernel_ms · kernels + per_weight_ms · weights + per_io_element_ms · elements of inputs and outputs + fixed_ms``
    """

    scale: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0  # Factor on each kernel.
    per_kernel_ms: _NotNegative = 0.0  # Time of each kernel in addition to its own.
    fixed_ms: _NotNegative = 0.0  # Time of an inference in addition to its kernels.
    #: Time of each weight element in addition to the kernel's time: a kernel that is timed alone has its weights in a cache; in a
    #: network others drive them out.
    per_weight_ms: _NotNegative = 0.0
    per_io_element_ms: _NotNegative = 0.0  # Time of each element of inputs and outputs: these move to a processor that is not the CPU.


class Interval(_Struct, frozen=True):
    """Where the measured time of a network lies around the predicted one."""

    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]  # Share of networks of other families that it is made to hold.
    low: Annotated[float, msgspec.Meta(gt=0, le=1)]  # Lower end ÷ prediction.
    high: Annotated[float, msgspec.Meta(ge=1, le=1e6)]  # Upper end ÷ prediction.
    method: _Text  # How it was found, with its source.


class HeldOut(_Struct, frozen=True):
    """How good fits made in the same way were on networks whose family they had not seen."""

    networks: _Count  # Networks, each left out once with its family.
    families: _Count  # Families.
    folds: _Count  # Fits that were made.
    within_10: _Share  # Share within ±10 % of the measured time.
    within_20: _Share  # Share within ±20 %.
    mape: _NotNegative  # Mean absolute error relative to the measured time.
    coverage: _Share  # Share within the interval that was made without them.


class Fit(_Struct, frozen=True, omit_defaults=True):
    """The kernel model of one processor with one core set at one precision."""

    processor: _Text  # Family name, such as ``cpu``.
    core_set: _Text  # Such as ``1large``.
    precision: _Text  # Such as ``fp32``.
    backend: _Text  # Fusion rules that its kernels were made by.
    runtime: _Text  # Runtime and version that was measured.
    groups: dict[_Text, KernelGroup]  # Kernel groups by ``kind`` or ``kind:variant``.
    correction: Correction  # From kernels to networks.
    interval: Interval  # Around a network's time.
    held_out: HeldOut  # How good it is.
    source: _Text  # Measurements it was fitted to, in words.
    #: Id of the profile whose device was measured, where that is another one with the same chip; None: the device itself.
    sibling: _Text | None = None


# Priors: times of a processor from fits of related processors, scaled by specifications, and calibrated by times of whole networks.


class Relative(_Struct, frozen=True):
    """A fitted processor."""

    device: _Text  # Id of a profile that ships.
    processor: _Text  # Family name.
    core_set: _Text  # Its core set.
    precision: _Text  # Its precision.


class LeftOut(_Struct, frozen=True):
    """How good priors made in the same way were on relatives that were left out one after the other."""

    chips: _Count  # Relatives.
    networks: _Count  # Networks, counted once for each relative that measured them.
    within_20: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share within ±20 % of the measured time.
    mape: Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # Mean absolute error relative to the measured time.
    coverage: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share within the interval that was made without the relative.


class MeasuredNetwork(_Struct, frozen=True):
    """A network whose time calibrated a processor."""

    name: _Text  # As the table names it.
    measured_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Its time on the processor.
    predicted_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # By the calibration.
    left_out_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # By one that was made without it.


class Calibration(_Struct, frozen=True):
    """Corrections from times of whole networks: a kernel takes ``factor of its family · work of the relatives + per_kernel_ms``."""

    factors: dict[Literal["dense", "depthwise", "other", "gelu"], Annotated[float, msgspec.Meta(gt=0, le=1e4)]]  # By family of kernels.
    per_kernel_ms: Annotated[float, msgspec.Meta(ge=0, le=1e3)]  # Time to start a kernel.
    #: Time of an inference in addition to its kernels, with the transfer of its input and output.
    per_inference_ms: Annotated[float, msgspec.Meta(ge=0, le=1e4)]
    networks: tuple[MeasuredNetwork, ...]  # Networks that it was made from; empty where the numbers are those of another core set.
    source: _Text  # Where the times come from, and what was measured: the least, the mean or the median of runs.
    similar: bool = False  # Whether all networks alone were measured on another device, with a similar chip.
    #: Time of a pipeline in addition to its network; no network's time has it.
    pipeline_ms: Annotated[float, msgspec.Meta(ge=0, le=1e4)] = 0.0


class Prior(_Struct, frozen=True, omit_defaults=True):
    """Times of a processor from those of its relatives; from its own roofline where it has none."""

    processor: _Text  # Family name.
    core_set: _Text  # Its core set.
    precision: _Text  # Its precision.
    relatives: tuple[Relative, ...]  # Whose scaled times are averaged.
    #: Factor on the average, which makes it right in the middle of the relatives left out.
    scale: Annotated[float, msgspec.Meta(gt=0, le=1e3)]
    interval: Interval  # Around a network's time: by the spread of the relatives around each other.
    left_out: LeftOut  # How good it is.
    calibration: Calibration | None = None  # By networks that were measured on it.

    def __post_init__(self) -> None:
        """Refuse a prior without relatives and calibration, or without a family."""
        if not self.relatives and self.calibration is None:
            raise ValueError("it has neither relatives nor a calibration")
        if self.calibration is not None and len(self.calibration.factors) != 4:
            raise ValueError("its calibration lacks a factor of `dense`, `depthwise`, `other` or `gelu`")


# Files.


MAX_FIT_BYTES = 1 << 25

_HINT = "`stretch profile fit` and `stretch profile` write such files"


class FitFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fits of one device."""

    device: str  # Id of the profile they belong to.
    command: str  # Command that makes this file from shipped or given measurements.
    rows: tuple[Fit, ...] = msgspec.field(name="fits")  # One for each processor, core set and precision.


class PriorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The priors of one device."""

    device: str  # Id of the profile they belong to.
    command: str  # Command that makes this file from the fits of other profiles.
    rows: tuple[Prior, ...] = msgspec.field(name="priors")  # One for each processor, core set and precision.


def prior_path(profile: Path) -> Path:
    """Return where the priors of a profile are, whether or not there are any."""
    return profile.with_name(f"{profile.stem}.prior.json")


def fit_path(profile: Path) -> Path:
    """Return where the fits of a profile are, whether or not there are any."""
    return profile.with_name(f"{profile.stem}.fit.json")


@overload
def read_fits(path: Path, device: str, kind: type[FitFile] = FitFile) -> dict[tuple[str, str, str], Fit]: ...


@overload
def read_fits(path: Path, device: str, kind: type[PriorFile]) -> dict[tuple[str, str, str], Prior]: ...


def read_fits(path: Path, device: str, kind: type[FitFile] | type[PriorFile] = FitFile) -> Mapping[tuple[str, str, str], Fit | Prior]:
    """Read the fits of a device, or its priors, by processor, core set and precision; empty if there is no such file.

    Args:
        path: Of the file, as `fit_path` or `prior_path` has it.

    Raises:
        StretchError: If the file cannot be read, is of another kind or belongs to another device.
    """
    if not path.exists():
        return {}
    content = read_bytes(path, "file of fits", MAX_FIT_BYTES, _HINT)
    try:
        parsed = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is not a file of fits: {_fault(content, kind) or error}", _HINT) from error
    if parsed.device != device:
        raise StretchError(
            f"{path} has fits of `{parsed.device}`, the profile is `{device}`", "write them again with `stretch profile fit`"
        )
    return {(row.processor, row.core_set, row.precision): row for row in parsed.rows}


def write_fits(path: Path, content: FitFile | PriorFile) -> None:
    """Write the fits or priors of a device; equal ones give equal bytes."""
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
