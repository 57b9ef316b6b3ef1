"""What is known of a processor that nobody measured: the fits of its relatives, scaled by what the profiles specify."""

from typing import Annotated

import msgspec

from predictors.fits.fit import Interval

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown keys are refused: a prior says nothing that is not read."""


class Relative(_Part, frozen=True):
    """A fitted processor.

    Args:
        device: Id of a profile that ships.
        processor: Family name.
        core_set: Its core set.
        precision: Its precision.
    """

    device: _Text
    processor: _Text
    core_set: _Text
    precision: _Text


class LeftOut(_Part, frozen=True):
    """How good priors made in the same way were on relatives that were left out one after the other.

    Args:
        chips: Relatives.
        networks: Networks, counted once for each relative that measured them.
        within_20: Share within ±20 % of the measured time.
        mape: Mean absolute error relative to the measured time.
        coverage: Share within the interval that was made without the relative.
    """

    chips: _Count
    networks: _Count
    within_20: Annotated[float, msgspec.Meta(ge=0, le=1)]
    mape: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    coverage: Annotated[float, msgspec.Meta(ge=0, le=1)]


class Prior(_Part, frozen=True):
    """Times of a processor from those of its relatives.

    Args:
        processor: Family name.
        core_set: Its core set.
        precision: Its precision.
        relatives: Whose scaled times are averaged.
        scale: Factor on the average, which makes it right in the middle of the relatives left out.
        interval: Around a network's time: by the spread of the relatives around each other.
        left_out: How good it is.
    """

    processor: _Text
    core_set: _Text
    precision: _Text
    relatives: Annotated[tuple[Relative, ...], msgspec.Meta(min_length=1)]
    scale: Annotated[float, msgspec.Meta(gt=0, le=1e3)]
    interval: Interval
    left_out: LeftOut
