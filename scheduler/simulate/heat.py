"""A chip's temperature while a simulation goes on, and how it slows the processors down.

One body warms up towards what the power of the moment would make of it in the
end, by its time constant. Between two events the power does not change, so the
temperature, and when it crosses a step, are formulas.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp, inf, log

from predictors.devices import DeviceProfile
from predictors.errors import StretchError, UsageError
from predictors.thermal import Thermal

#: A crossing that is nearer than this counts as now, ms: exponentials and logarithms round.
_NOW_MS = 1e-6


@dataclass(frozen=True)
class Power:
    """What a processor draws."""

    computing_w: float  # While it computes at full speed, W.
    idle_w: float  # While it does not, W.


def thermal_of(device: DeviceProfile) -> Thermal:
    """What the device's profile states of heat."""
    if device.thermal is None:
        raise UsageError(
            f"the profile of {device.id} says nothing of heat", "describe it in a file, with where its numbers come from, and give its path"
        )
    return device.thermal


def powers(device: DeviceProfile, thermal: Thermal, processors: Collection[str]) -> dict[str, Power]:
    """What each processor draws: as the profile states, else as the description of heat does."""
    by_processor = {}
    for name in processors:
        processor = device.processor(name)
        stated = processor.cores.power_w
        watts = stated.value if stated is not None else thermal.power_w.get(name, thermal.power_w.get(processor.family))
        if watts is None:
            raise StretchError(
                f"neither the profile of {device.id} nor the description of heat says what power {name} draws",
                f"state it there as power_w = {{ {name} = 3.0 }}, in W",
            )
        by_processor[name] = Power(watts, 0.0 if processor.profile.idle_w is None else processor.profile.idle_w.value)
    return by_processor


class Heat:
    """The temperature, as time goes on."""

    def __init__(self, thermal: Thermal, power: Mapping[str, Power]) -> None:
        self.thermal, self._power = thermal, power
        self._level = 0
        self._watts = 0.0
        self._at = 0.0
        #: °C, now and at most so far.
        self.temperature_c = self.hottest_c = thermal.ambient_c
        #: When the speed changes next if the power stays, ms.
        self.until = inf
        #: How long any step was in force, ms, and how often the speed changed.
        self.throttled_ms, self.changes = 0.0, 0
        #: What the processors drew, mJ; the rest of the chip is not in it.
        self.processors_mj = 0.0
        self.set({})

    @property
    def speed(self) -> float:
        """Of the processors now, as a share of their profile's."""
        return self.thermal.throttle[self._level - 1].speed if self._level else 1.0

    @property
    def slowest(self) -> float:
        """The speed at the hottest that it was."""
        return min((step.speed for step in self.thermal.throttle if step.at_c <= self.hottest_c), default=1.0)

    def set(self, shares: Mapping[str, float]) -> None:
        """From now on processors compute as stated."""
        scale = self.speed**self.thermal.power_exponent
        self._watts = 0.0
        for name, power in self._power.items():
            share = shares.get(name, 0.0)
            self._watts += power.idle_w + share * max(0.0, power.computing_w * scale - power.idle_w)
        self.until = self._at + self._crossing_ms()

    def advance(self, now: float) -> None:
        """Go on to a moment that is not behind `until`, ms."""
        spent = now - self._at
        if spent > 0:
            self.processors_mj += self._watts * spent
            self.throttled_ms += spent if self._level else 0.0
            end = self._end_c()
            self.temperature_c = end + (self.temperature_c - end) * exp(-spent / (1e3 * self.thermal.time_constant_s))
            self.hottest_c = max(self.hottest_c, self.temperature_c)
            self._at = now

    def change(self) -> None:
        """The temperature is at a step: it is in force from now on, or no more."""
        up, down = self._bounds()
        if self._end_c() >= up:
            self.temperature_c, self._level = up, self._level + 1
            self.hottest_c = max(self.hottest_c, up)
        else:
            self.temperature_c, self._level = down, self._level - 1
        self.changes += 1

    def _end_c(self) -> float:
        """Where the temperature would end."""
        thermal = self.thermal
        return thermal.ambient_c + thermal.resistance_c_per_w * (self._watts + thermal.rest_w)

    def _bounds(self) -> tuple[float, float]:
        """Temperatures at which the next step begins and the present one ends."""
        steps = self.thermal.throttle
        up = steps[self._level].at_c if self._level < len(steps) else inf
        return up, steps[self._level - 1].at_c - self.thermal.hysteresis_c if self._level else -inf

    def _crossing_ms(self) -> float:
        """How long it takes to the next step, ms."""
        end, now = self._end_c(), self.temperature_c
        up, down = self._bounds()
        bound = up if end > up else down if end < down else None
        if bound is None:
            return inf
        return max(_NOW_MS, 1e3 * self.thermal.time_constant_s * log(max(1.0, (end - now) / (end - bound))))
