"""Priors: times of a processor from fits of related processors, scaled by specifications, and calibrated by times of whole networks."""

from typing import Annotated, Literal

import msgspec

from predictors.fits.fit import Interval

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class _PriorStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the structures of a prior; unknown keys are refused."""


class Relative(_PriorStruct, frozen=True):
    """A fitted processor."""

    device: _Text  # Id of a profile that ships.
    processor: _Text  # Family name.
    core_set: _Text  # Its core set.
    precision: _Text  # Its precision.


class LeftOut(_PriorStruct, frozen=True):
    """How good priors made in the same way were on relatives that were left out one after the other."""

    chips: _Count  # Relatives.
    networks: _Count  # Networks, counted once for each relative that measured them.
    within_20: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share within ±20 % of the measured time.
    mape: Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # Mean absolute error relative to the measured time.
    coverage: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share within the interval that was made without the relative.


class MeasuredNetwork(_PriorStruct, frozen=True):
    """A network whose time calibrated a processor."""

    name: _Text  # As the table names it.
    measured_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # Its time on the processor.
    predicted_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # By the calibration.
    left_out_ms: Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # By one that was made without it.


class Calibration(_PriorStruct, frozen=True):
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


class Prior(_PriorStruct, frozen=True, omit_defaults=True):
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
