"""Fits and priors: numbers from measurements that turn kernels into times, their held-out errors, their sources and their files.

A device's fits and priors are JSON files next to its profile, ``<id>.fit.json`` and ``<id>.prior.json``.
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
    """Boosted regression trees over features of a kernel, with all nodes in flat lists.

    A node leads to its left child if its feature is at most its threshold, else
    to its right child; a leaf is its own child. The prediction is `base` plus
    the values of the leaves that are reached.
    """

    features: tuple[_Text, ...]  # Names of the features (`predictors.models.fitted`), which `feature` indexes.
    roots: tuple[_Count, ...]  # First node of each tree.
    feature: tuple[_Count, ...]  # Index of the feature that each node compares.
    threshold: tuple[float, ...]  # Threshold of each node.
    left: tuple[_Count, ...]  # Left child of each node.
    right: tuple[_Count, ...]  # Right child of each node.
    value: tuple[float, ...]  # Value of each leaf; 0 in other nodes.
    base: float  # Initial value of every prediction.
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
    """Kernels that share one formula for their time."""

    terms: dict[_Text, _NotNegative]  # ms per unit of each term (`predictors.models.fitted`).
    trees: Trees | None = None  # Trees for the logarithm of time ÷ sum of terms, if enough kernels were measured.
    kernels: _Count = 0  # Number of measured kernels of the fit; 0 if only whole networks were measured.


class Correction(_Struct, frozen=True):
    """Correction from the sum of kernels to a whole network.

    ``scale · sum + per_kernel_ms · kernels + per_weight_ms · weights + per_io_element_ms · elements of inputs and outputs + fixed_ms``
    """

    scale: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0  # Factor on each kernel.
    per_kernel_ms: _NotNegative = 0.0  # Additional time of each kernel.
    fixed_ms: _NotNegative = 0.0  # Additional time of each inference.
    #: Additional time of each weight element: a kernel timed alone has its weights in a cache, but in a network the other kernels evict
    #: them.
    per_weight_ms: _NotNegative = 0.0
    per_io_element_ms: _NotNegative = 0.0  # Time of each element of inputs and outputs, which other processors than the CPU must be sent.


class Interval(_Struct, frozen=True):
    """Interval of a network's measured time around the prediction."""

    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]  # Target share of networks of other families inside the interval.
    low: Annotated[float, msgspec.Meta(gt=0, le=1)]  # Lower end ÷ prediction.
    high: Annotated[float, msgspec.Meta(ge=1, le=1e6)]  # Upper end ÷ prediction.
    method: _Text  # How the interval was computed, with the source of the method.


class HeldOut(_Struct, frozen=True):
    """Accuracy of fits made in the same way, on networks of families left out of the fit."""

    networks: _Count  # Number of networks, each left out once with its family.
    families: _Count  # Number of families.
    folds: _Count  # Number of fits.
    within_10: _Share  # Share of networks within ±10 % of the measured time.
    within_20: _Share  # Share of networks within ±20 %.
    mape: _NotNegative  # Mean absolute error relative to the measured time.
    coverage: _Share  # Share of networks inside the interval made without them.


class Fit(_Struct, frozen=True, omit_defaults=True):
    """The kernel model of one processor with one core set at one precision."""

    processor: _Text  # Family name, such as ``cpu``.
    core_set: _Text  # Name of the core set, such as ``1large``.
    precision: _Text  # Precision, such as ``fp32``.
    backend: _Text  # Fusion rules that produced the kernels.
    runtime: _Text  # Measured runtime with its version.
    groups: dict[_Text, KernelGroup]  # Kernel groups by ``kind`` or ``kind:variant``.
    correction: Correction  # From kernels to networks.
    interval: Interval  # Interval around a network's time.
    held_out: HeldOut  # Accuracy on families left out of the fit.
    source: _Text  # Measurements used for the fit, in words.
    #: Id of the profile of the measured device, if that is another device with the same chip; None for this device.
    sibling: _Text | None = None


# Priors: times of a processor from fits of related processors, scaled by specifications, and calibrated by the times of whole networks.


class Relative(_Struct, frozen=True):
    """A fitted processor, related to another one."""

    device: _Text  # Id of a shipped profile.
    processor: _Text  # Family name.
    core_set: _Text  # Core set of the processor.
    precision: _Text  # Precision of the fit.


class LeftOut(_Struct, frozen=True):
    """Accuracy of priors made in the same way, on relatives left out one after the other."""

    chips: _Count  # Number of relatives.
    networks: _Count  # Number of networks, counted once per relative with a measurement.
    within_20: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share of networks within ±20 % of the measured time.
    mape: Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # Mean absolute error relative to the measured time.
    coverage: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share of networks inside the interval made without the relative.


class MeasuredNetwork(_Struct, frozen=True):
    """A network whose time was used to calibrate a processor."""

    name: _Text  # Name in the table of measurements.
    measured_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Measured time on the processor.
    predicted_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Time predicted with the calibration.
    left_out_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Time predicted with a calibration made without this network.


class Calibration(_Struct, frozen=True):
    """Corrections from times of whole networks: a kernel takes ``factor of its family · time from the relatives + per_kernel_ms``."""

    factors: dict[Literal["dense", "depthwise", "other", "gelu"], Annotated[float, msgspec.Meta(gt=0, le=1e4)]]  # Factors by family.
    per_kernel_ms: Annotated[float, msgspec.Meta(ge=0, le=1e3)]  # Time to start a kernel.
    #: Additional time of each inference, with the transfer of its input and output.
    per_inference_ms: Annotated[float, msgspec.Meta(ge=0, le=1e4)]
    networks: tuple[MeasuredNetwork, ...]  # Networks of the calibration; empty if the numbers come from another core set.
    source: _Text  # Source of the times, and which of the runs' times they are: the minimum, mean or median.
    similar: bool = False  # Whether all networks timed alone were measured on another device with a similar chip.
    #: Additional time of a pipeline, which the times of networks do not include.
    pipeline_ms: Annotated[float, msgspec.Meta(ge=0, le=1e4)] = 0.0


class Prior(_Struct, frozen=True, omit_defaults=True):
    """Times of a processor from those of its relatives, or from its own roofline if it has none."""

    processor: _Text  # Family name.
    core_set: _Text  # Core set of the processor.
    precision: _Text  # Precision of the times.
    relatives: tuple[Relative, ...]  # Relatives whose scaled times are averaged.
    #: Factor on the average, which makes it right for the median relative left out.
    scale: Annotated[float, msgspec.Meta(gt=0, le=1e3)]
    interval: Interval  # Interval around a network's time, from the spread of the relatives.
    left_out: LeftOut  # Accuracy on relatives left out.
    calibration: Calibration | None = None  # Calibration by networks measured on the processor.

    def __post_init__(self) -> None:
        """Refuse a prior without relatives and calibration, or with a calibration that lacks a family."""
        if not self.relatives and self.calibration is None:
            raise ValueError("it has neither relatives nor a calibration")
        if self.calibration is not None and len(self.calibration.factors) != 4:
            raise ValueError("its calibration lacks a factor of `dense`, `depthwise`, `other` or `gelu`")


# Files of fits and priors.


MAX_FIT_BYTES = 1 << 25

_HINT = "`stretch profile fit` and `stretch profile` write such files"


class FitFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fits of one device."""

    device: str  # Id of the profile that the fits belong to.
    command: str  # Command that creates this file from shipped or given measurements.
    rows: tuple[Fit, ...] = msgspec.field(name="fits")  # One fit per processor, core set and precision.


class PriorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The priors of one device."""

    device: str  # Id of the profile that the priors belong to.
    command: str  # Command that creates this file from the fits of other profiles.
    rows: tuple[Prior, ...] = msgspec.field(name="priors")  # One prior per processor, core set and precision.


def prior_path(profile: Path) -> Path:
    """Return the path of a profile's priors, whether or not the file exists."""
    return profile.with_name(f"{profile.stem}.prior.json")


def fit_path(profile: Path) -> Path:
    """Return the path of a profile's fits, whether or not the file exists."""
    return profile.with_name(f"{profile.stem}.fit.json")


@overload
def read_fits(path: Path, device: str, kind: type[FitFile] = FitFile) -> dict[tuple[str, str, str], Fit]: ...


@overload
def read_fits(path: Path, device: str, kind: type[PriorFile]) -> dict[tuple[str, str, str], Prior]: ...


def read_fits(path: Path, device: str, kind: type[FitFile] | type[PriorFile] = FitFile) -> Mapping[tuple[str, str, str], Fit | Prior]:
    """Read the fits or priors of a device, by processor, core set and precision; return an empty mapping without a file.

    Args:
        path: Path of the file, from `fit_path` or `prior_path`.

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
    """Write the fits or priors of a device; equal contents give equal bytes."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=0)
    # The file is written in one step, because a profile is read together with its fits.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(text + b"\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _fault(content: bytes, kind: type[FitFile] | type[PriorFile]) -> str | None:
    """Return the fault, with its position, of JSON that is not a valid file of fits or priors, or None."""
    try:
        fault = find_fault(msgspec.json.decode(content), kind)
    except (msgspec.MsgspecError, ValueError):
        return None
    return fault[0] if fault else None
