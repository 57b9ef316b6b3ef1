"""Priors of unmeasured processors: fits of related processors, scaled by the specifications in their profiles."""

from typing import Annotated

import msgspec

from predictors.fits.fit import Interval

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown keys are refused: a prior says nothing that is not read."""


class Relative(_Part, frozen=True):
    """A fitted processor."""

    device: _Text  # Id of a profile that ships.
    processor: _Text  # Family name.
    core_set: _Text  # Its core set.
    precision: _Text  # Its precision.


class LeftOut(_Part, frozen=True):
    """How good priors made in the same way were on relatives that were left out one after the other."""

    chips: _Count  # Relatives.
    networks: _Count  # Networks, counted once for each relative that measured them.
    within_20: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share within ±20 % of the measured time.
    mape: Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # Mean absolute error relative to the measured time.
    coverage: Annotated[float, msgspec.Meta(ge=0, le=1)]  # Share within the interval that was made without the relative.


class Prior(_Part, frozen=True):
    """Times of a processor from those of its relatives."""

    processor: _Text  # Family name.
    core_set: _Text  # Its core set.
    precision: _Text  # Its precision.
    relatives: Annotated[tuple[Relative, ...], msgspec.Meta(min_length=1)]  # Whose scaled times are averaged.
    #: Factor on the average, which makes it right in the middle of the relatives left out.
    scale: Annotated[float, msgspec.Meta(gt=0, le=1e3)]
    interval: Interval  # Around a network's time: by the spread of the relatives around each other.
    left_out: LeftOut  # How good it is.
