"""Conditions of a simulation: arrivals of requests, load on processors, variation of times, and temperature of the chip.

One body approaches the final temperature for the current power, with its time constant. Between two events the power
does not change, so formulas give the temperature and the time at which it crosses a throttling step.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import exp, inf, isfinite, log
from typing import Literal

import numpy as np

from predictors.devices import DeviceProfile
from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.thermal import Thermal
from scheduler.runtime.inputs import check_deadline, check_priority

#: Number of inferences for which random numbers are drawn at a time.
_CHUNK = 256

#: Maximum of the ms between requests and of the requests per second; the minimum is its inverse.
_MAX_NUMBER = 1e9

_ARRIVALS_EXAMPLE = "write periodic:MS, as periodic:33.3, or poisson:RATE with requests a second, as poisson:30"


@dataclass(frozen=True)
class Arrivals:
    """Requests that arrive independently of answers."""

    #: ``periodic``: the first at once, then at equal intervals; ``poisson``: at random, independently of each other.
    kind: Literal["periodic", "poisson"]
    every_ms: float  # Mean time between two requests, ms.

    def times(self, seed: int, client: int = 0) -> Iterator[float]:
        """Yield the endless arrival times, ms; each client has its own random times."""
        if self.kind == "periodic":
            for number in count():
                yield number * self.every_ms
        rng, moment = np.random.default_rng([seed, 1, client] if client else [seed, 1]), 0.0
        while True:
            for gap in rng.exponential(self.every_ms, _CHUNK).tolist():
                moment += gap
                yield moment


def parse_arrivals(text: str) -> Arrivals:
    """Return arrivals from their form on the command line: ``periodic:MS`` or ``poisson:RATE``, the rate in requests per second."""
    form = re.fullmatch(r"(periodic|poisson):(.+)", text.strip())
    if form is None:
        raise UsageError(f"`{text}` does not describe arrivals", _ARRIVALS_EXAMPLE)
    try:
        number = float(form[2])
    except ValueError:
        raise UsageError(f"`{text}` has something in the place of a number", _ARRIVALS_EXAMPLE) from None
    if not (isfinite(number) and 1 / _MAX_NUMBER <= number <= _MAX_NUMBER):
        raise UsageError(f"requests cannot come as `{text}` says", f"the number is from {1 / _MAX_NUMBER:g} to {_MAX_NUMBER:g}")
    return Arrivals("periodic", number) if form[1] == "periodic" else Arrivals("poisson", 1e3 / number)


#: Maximum start or end of a load, ms: about twelve days.
MAX_MOMENT_MS = 1e9

#: Tolerance of sums of shares, because 0.9 + 0.1 is not exactly 1.
_ROUNDING = 1e-9

_EXAMPLE = "write a share of a processor and the milliseconds between which it is taken, as gpu=0.9@50:155"

_SPEED_EXAMPLE = "write a processor, a factor on its speed and the milliseconds between which it holds, as gpu=0.5@100:500"

#: Factors on a processor's speed.
MIN_SPEED, MAX_SPEED = 0.01, 10.0

_FORM = re.compile(r"(?P<processor>[^=]+)=(?P<number>[^@=]+)@(?P<start>[^:@]+):(?P<end>[^:@]+)")


@dataclass(frozen=True)
class Load:
    """A load that takes a share of a processor for some time."""

    processor: str  # Processor of the device.
    share: float  # Share of the processor, from 0 to 1.
    start_ms: float  # Start, ms.
    end_ms: float  # End, ms.

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        if not 0 <= self.share <= 1:
            raise UsageError(f"the load on {self.processor} takes {self.share:g} of it, which is no share", "a share is from 0 to 1")
        _check_times(f"the load on {self.processor}", self.start_ms, self.end_ms, _EXAMPLE)


@dataclass(frozen=True)
class Frequency:
    """Another speed of a processor for some time, as set by dynamic voltage and frequency scaling."""

    processor: str  # Processor of the device.
    speed: float  # Factor on the speed for which the profile's times hold.
    start_ms: float  # Start, ms.
    end_ms: float  # End, ms.

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise UsageError(
                f"{self.processor} cannot run at {self.speed:g} of its speed",
                f"a speed is from {MIN_SPEED:g} to {MAX_SPEED:g}; 1 is the profile's",
            )
        _check_times(f"the speed of {self.processor}", self.start_ms, self.end_ms, _SPEED_EXAMPLE)


def parse_loads(texts: Iterable[str]) -> tuple[Load, ...]:
    """Return loads from their form on the command line, such as ``gpu=0.9@50:155``, several separated by commas."""
    return tuple(Load(*parts) for parts in _windows(texts, "load", _EXAMPLE))


def parse_frequencies(texts: Iterable[str]) -> tuple[Frequency, ...]:
    """Return speeds from their form on the command line, such as ``gpu=0.5@100:500``, several separated by commas."""
    return tuple(Frequency(*parts) for parts in _windows(texts, "speed", _SPEED_EXAMPLE))


def _windows(texts: Iterable[str], kind: str, example: str) -> Iterator[tuple[str, float, float, float]]:
    """Yield processor, number, start and end of each entry."""
    for word in (word.strip() for text in texts for word in text.split(",")):
        form = _FORM.fullmatch(word)
        if form is None:
            raise UsageError(f"`{word}` is no {kind}", example)
        try:
            number, start, end = (float(form[name]) for name in ("number", "start", "end"))
        except ValueError:
            raise UsageError(f"`{word}` has something in the place of a number", example) from None
        yield form["processor"].strip(), number, start, end


def _check_times(subject: str, start_ms: float, end_ms: float, example: str) -> None:
    for moment in (start_ms, end_ms):
        if not (isfinite(moment) and 0 <= moment <= MAX_MOMENT_MS):
            raise UsageError(f"{subject} has {moment:g} ms for a moment", f"moments are from 0 to {MAX_MOMENT_MS:g} ms")
    if end_ms <= start_ms:
        raise UsageError(f"{subject} ends at {end_ms:g} ms, and begins at {start_ms:g} ms", example)


class FreeShares:
    """Free share of each processor over time, reduced by loads and scaled by clock frequencies."""

    def __init__(self, loads: Sequence[Load], processors: Collection[str], frequencies: Sequence[Frequency] = ()) -> None:
        intervals: list[Load | Frequency] = [*loads, *frequencies]
        for interval in intervals:
            if interval.processor not in processors:
                raise UnknownNameError.among("processor of the bundle", interval.processor, processors)
        positive_loads = [load for load in loads if load.share]
        effective: list[Load | Frequency] = [*positive_loads, *frequencies]
        moments = sorted({moment for period in effective for moment in (period.start_ms, period.end_ms)})
        self._changes: list[tuple[float, dict[str, float]]] = []
        for moment in moments:
            free = dict.fromkeys(processors, 1.0)
            for load in positive_loads:
                if load.start_ms <= moment < load.end_ms:
                    free[load.processor] -= load.share
            for processor, share in free.items():
                if share < -_ROUNDING:
                    raise UsageError(f"loads take {1 - share:g} of {processor} from {moment:g} ms on", "together they may take 1 of it")
            speeds = _speeds_at(frequencies, moment)
            shares = {name: share * speeds.get(name, 1.0) if share > _ROUNDING else 0.0 for name, share in free.items()}
            self._changes.append((moment, shares))
        self._next = 0
        #: Current free share of each processor, times its speed.
        self.shares = dict.fromkeys(processors, 1.0)
        #: Time of the next change, ms; infinite without one.
        self.until = moments[0] if moments else inf

    def change(self) -> None:
        """Advance to the time `until`."""
        self.shares = self._changes[self._next][1]
        self._next += 1
        self.until = self._changes[self._next][0] if self._next < len(self._changes) else inf


def _speeds_at(frequencies: Sequence[Frequency], moment: float) -> dict[str, float]:
    speeds: dict[str, float] = {}
    for frequency in frequencies:
        if frequency.start_ms <= moment < frequency.end_ms:
            if frequency.processor in speeds:
                raise UsageError(f"{frequency.processor} would have two speeds from {moment:g} ms on", "state one at a time")
            speeds[frequency.processor] = frequency.speed
    return speeds


#: Maximum number of inferences in flight.
MAX_IN_FLIGHT = 64

#: Maximum number of inferences of a simulation, whose times must fit into memory.
MAX_RUNS = 1_000_000

#: Maximum standard deviation of a time's logarithm, at which one time in twenty is over five times the predicted one.
MAX_JITTER = 1.0


@dataclass(frozen=True)
class Scene:
    """Inferences to simulate, and their disturbances."""

    runs: int = 1  # Number of inferences.
    in_flight: int = 1  # Maximum number of inferences at once.
    arrivals: Arrivals | None = None  # Arrivals of requests; None to request each inference as soon as a lane is free.
    loads: tuple[Load, ...] = ()  # Other work that takes a share of the processors.
    frequencies: tuple[Frequency, ...] = ()  # Changes of processor speed.
    jitter: float = 0.0  # Standard deviation of the logarithm of each subgraph's computing time, drawn again in each inference.
    seed: int = 0  # Seed of all random numbers.
    traced: int = 0  # Number of inferences, from the first, whose spans are kept.
    #: Allowed latency for clients that take turns (`scheduler.simulate.clock.TurnTaking`); None for any.
    deadline_ms: float | None = None
    priority: int = 0  # Priority for clients that take turns; higher ones start first.

    def __post_init__(self) -> None:
        """Check that all numbers are in range."""
        if not 1 <= self.runs <= MAX_RUNS:
            raise UsageError(f"{self.runs} inferences cannot be simulated", f"from 1 to {MAX_RUNS} can")
        if not 1 <= self.in_flight <= MAX_IN_FLIGHT:
            raise UsageError(f"{self.in_flight} inferences cannot be in flight", f"from 1 to {MAX_IN_FLIGHT} can")
        if not (isfinite(self.jitter) and 0 <= self.jitter <= MAX_JITTER):
            raise UsageError(f"a jitter of {self.jitter:g} is out of range", f"it is from 0 to {MAX_JITTER:g}; 0.05 is about 5 % of a time")
        if self.seed < 0:
            raise UsageError(f"{self.seed} is no seed", "a seed is 0 or a positive whole number")
        check_deadline(self.deadline_ms)
        check_priority(self.priority)

    def factors(self, subgraphs: int, client: int = 0) -> Iterator[list[float] | None]:
        """Yield for each inference the factors on its subgraphs' times, in the order of the plan; None without jitter.

        The factors depend only on the seed, the client and the number of the inference, so other disturbances do not change the jitter.
        """
        rng = np.random.default_rng([self.seed, 0, client] if client else [self.seed, 0])
        while True:
            if self.jitter:
                yield from rng.lognormal(0.0, self.jitter, (_CHUNK, subgraphs)).tolist()
            else:
                yield None


#: Time in ms within which a crossing counts as now, because exponentials and logarithms are rounded.
_NOW_MS = 1e-6


@dataclass(frozen=True)
class Power:
    """Power of a processor."""

    computing_w: float  # Power while it computes at full speed, W.
    idle_w: float  # Power while it is idle, W.


def thermal_of(device: DeviceProfile) -> Thermal:
    """Return the heat model in the device's profile."""
    if device.thermal is None:
        raise UsageError(f"the profile of {device.id} has no heat model", "describe one in a TOML file with its source, and give its path")
    return device.thermal


def powers(device: DeviceProfile, thermal: Thermal, processors: Collection[str]) -> dict[str, Power]:
    """Return the power of each processor: from the profile, else from the heat model."""
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
    """The temperature of the chip over time."""

    def __init__(self, thermal: Thermal, power: Mapping[str, Power]) -> None:
        self.thermal, self._power = thermal, power
        self._level = 0
        self._watts = 0.0
        self._now = 0.0
        #: Current temperature and highest one so far, °C.
        self.temperature_c = self.hottest_c = thermal.ambient_c
        #: Time of the next change of speed if the power stays the same, ms.
        self.until = inf
        #: Total time under any throttling step, ms, and number of changes of speed.
        self.throttled_ms, self.changes = 0.0, 0
        #: Energy of the processors, mJ, without the rest of the chip.
        self.processors_mj = 0.0
        self.set({})

    @property
    def speed(self) -> float:
        """Current speed of the processors, as a share of the profile's speed."""
        return self.thermal.throttle[self._level - 1].speed if self._level else 1.0

    @property
    def slowest(self) -> float:
        """Speed at the highest temperature so far."""
        return min((step.speed for step in self.thermal.throttle if step.at_c <= self.hottest_c), default=1.0)

    def set(self, shares: Mapping[str, float]) -> None:
        """Set the utilisation of each processor from now on."""
        scale = self.speed**self.thermal.power_exponent
        self._watts = 0.0
        for name, power in self._power.items():
            share = shares.get(name, 0.0)
            self._watts += power.idle_w + share * max(0.0, power.computing_w * scale - power.idle_w)
        self.until = self._now + self._crossing_ms()

    def advance(self, now: float) -> None:
        """Advance to a time that is not after `until`, ms."""
        spent = now - self._now
        if spent > 0:
            self.processors_mj += self._watts * spent
            self.throttled_ms += spent if self._level else 0.0
            end = self._end_c()
            self.temperature_c = end + (self.temperature_c - end) * exp(-spent / (1e3 * self.thermal.time_constant_s))
            self.hottest_c = max(self.hottest_c, self.temperature_c)
            self._now = now

    def change(self) -> None:
        """Start or end the throttling step whose temperature has been reached."""
        up, down = self._bounds()
        if self._end_c() >= up:
            self.temperature_c, self._level = up, self._level + 1
            self.hottest_c = max(self.hottest_c, up)
        else:
            self.temperature_c, self._level = down, self._level - 1
        self.changes += 1

    def _end_c(self) -> float:
        """Return the temperature in °C that the current power would finally reach."""
        thermal = self.thermal
        return thermal.ambient_c + thermal.resistance_c_per_w * (self._watts + thermal.rest_w)

    def _bounds(self) -> tuple[float, float]:
        """Return the temperatures at which the next step begins and the current one ends, °C."""
        steps = self.thermal.throttle
        up = steps[self._level].at_c if self._level < len(steps) else inf
        return up, steps[self._level - 1].at_c - self.thermal.hysteresis_c if self._level else -inf

    def _crossing_ms(self) -> float:
        """Return the time until the next step begins or ends, ms."""
        end, now = self._end_c(), self.temperature_c
        up, down = self._bounds()
        bound = up if end > up else down if end < down else None
        if bound is None:
            return inf
        return max(_NOW_MS, 1e3 * self.thermal.time_constant_s * log(max(1.0, (end - now) / (end - bound))))
