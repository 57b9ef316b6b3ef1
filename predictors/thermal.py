"""Temperature and throttling of a chip: one body with one time constant, and steps of speed that depend on its temperature.

A phone's chip is throttled after minutes of work: one public observation went from
196 to 399 ms within half an hour, another from 213 to 275 ms. Power, a time
constant and steps give that shape. Numbers of real devices are rarely published, so
a thermal model states their source.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from predictors.errors import StretchError
from predictors.faults import find_fault
from predictors.files import read_toml

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Celsius = Annotated[float, msgspec.Meta(ge=-100, le=1000)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Speed = Annotated[float, msgspec.Meta(ge=0.01, le=1)]


class Throttle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of throttling."""

    at_c: _Celsius  # Temperature from which the step applies, °C.
    speed: _Speed  # Speed of all processors, as a share of the speed that the profile's times assume.


class Thermal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chip as one body."""

    #: Source of the numbers: in a profile a key of its ``[sources]``, in a separate file the words themselves, such as ``assumed,
    #: for the shape``.
    source: _Text
    resistance_c_per_w: _Positive  # Final temperature rise above the surroundings per watt, °C.
    time_constant_s: _Positive  # Time after which 63 % of a temperature change are over, s.
    ambient_c: _Celsius  # Temperature of the surroundings, and of the chip at the start, °C.
    throttle: tuple[Throttle, ...]  # Steps, coldest first.
    hysteresis_c: _NotNegative  # Distance below a step's temperature at which the step ends, °C.
    #: Exponent of the speed in the power of a busy processor: 1 if only the clock falls, 3 if the voltage falls with it.
    power_exponent: Annotated[float, msgspec.Meta(ge=0, le=4)]
    power_w: dict[str, _NotNegative] = {}  # Power of processors while computing, if the profile states none, W.
    rest_w: _NotNegative = 0.0  # Constant power of the rest of the chip, W.

    def problem(self) -> str | None:
        """Return the defect of the steps, in words, or None."""
        for before, after in zip(self.throttle, self.throttle[1:], strict=False):
            if not (before.at_c < after.at_c and before.speed > after.speed):
                return f"the step at {after.at_c:g} °C is not hotter and slower than the one before it"
        if any(step.at_c - self.hysteresis_c < self.ambient_c for step in self.throttle):
            return f"a step ends below the {self.ambient_c:g} °C of the surroundings, so it would never end"
        return None


def read_thermal(path: Path) -> Thermal:
    """Read a TOML file with the keys of `Thermal`."""
    raw = read_toml(path, "description of heat")
    try:
        thermal = msgspec.convert(raw, Thermal)
    except msgspec.ValidationError as error:
        sentence, hint = find_fault(raw, Thermal) or (str(error), None)
        raise StretchError(f"{path} does not describe heat: {sentence}", hint or "the guide on running bundles shows every key") from error
    if (problem := thermal.problem()) is not None:
        raise StretchError(f"{path} does not describe heat: {problem}", "state steps from cold to hot")
    return thermal
