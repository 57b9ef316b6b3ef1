"""Rounds of contenders in several starts, and what the machine was like meanwhile."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from predictors import system
from scheduler.delegates.base import Array
from scheduler.measure.steady import Steady
from scheduler.measure.turns import known, play_round
from scheduler.tools.bench import MeasurementLength
from scheduler.tools.bench.runtimes import Ready

#: Rounds of a warm-up window, and the largest relative difference between the medians of two windows.
WINDOW, DRIFT = 5, 0.05

#: Fewest starts if `MeasurementLength.width` ends the measurement.
LEAST_STARTS = 3


@dataclass
class RawTimes:
    """Raw results."""

    ns: dict[str, list[list[int]]]  # Times of each contender by start and round.
    warmup: list[int] = field(default_factory=list)  # Number of warm-up rounds of each start.
    steady: set[str] = field(default_factory=set)  # Contenders whose times were stable after the warm-up of every start.
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)  # Outputs of each contender in the first start.


def play(
    makers: Mapping[str, Callable[[], Ready]], effort: MeasurementLength, seed: int, step: Callable[[], None] | None = None
) -> RawTimes:
    """Time contenders in interleaved rounds.

    A round runs all contenders once in random order, so that disturbances and cache contents affect all of them alike.
    """
    rng = np.random.default_rng(seed)
    measured = RawTimes({name: [] for name in makers}, steady=set(makers))
    while not _enough(measured, effort):
        with contextlib.ExitStack() as stack:
            ready: dict[str, Ready] = {}
            for name, make in makers.items():
                ready[name] = make()
                stack.callback(ready[name].close)
            _one_start(ready, measured, effort, rng, step)
    return measured


def _one_start(
    ready: Mapping[str, Ready], measured: RawTimes, effort: MeasurementLength, rng: np.random.Generator, step: Callable[[], None] | None
) -> None:
    calls = {name: contender.time for name, contender in ready.items()}

    def rounds(count: int, times: dict[str, list[int]], after: Callable[[], None] | None = None) -> None:
        for _ in range(count):
            order = rng.permutation(len(calls))
            names = list(calls)
            for name, ns in play_round({names[i]: calls[names[i]] for i in order}, 0).items():
                # a coarse clock may return 0, which has no ratio
                times[name].append(max(1, ns))
            if after is not None:
                after()

    before: dict[str, list[int]] = {name: [] for name in calls}
    done = 0
    while done < effort.warmup and not all(holds(times) for times in before.values()):
        count = min(WINDOW, effort.warmup - done)
        rounds(count, before)
        done += count
    measured.steady -= {name for name, times in before.items() if not holds(times)}
    measured.warmup.append(done)
    counted: dict[str, list[int]] = {name: [] for name in calls}
    rounds(effort.rounds, counted, step)
    for name, times in counted.items():
        measured.ns[name].append(times)
    if not measured.outputs:
        measured.outputs = {name: contender.outputs() for name, contender in ready.items()}


def holds(times: Sequence[int]) -> bool:
    """Whether times are stable: the last two windows agree, and the last one has little spread."""
    if len(times) < 2 * WINDOW:
        return False
    low, middle, high = (float(n) for n in np.percentile(times[-WINDOW:], [25, 50, 75]))
    before = float(np.median(times[-2 * WINDOW : -WINDOW]))
    last = Steady(middle, (high - low) / 1.349, WINDOW, 0)
    return not last.unsteady and abs(middle / before - 1) <= DRIFT


def _enough(measured: RawTimes, effort: MeasurementLength) -> bool:
    done = len(measured.warmup)
    if done >= effort.starts or effort.width is None or done < min(LEAST_STARTS, effort.starts):
        return done >= effort.starts
    return all(known(starts).width <= effort.width for starts in measured.ns.values())


#: A machine with more busy processes a core than this before a measurement is not quiet.
BUSY = 0.3

#: Share of stolen CPU time (other guests on the host) above which there is a warning.
STOLEN = 0.01

#: Rise of temperature, °C, above which there is a warning.
WARMER = 10.0

_Text = Annotated[str, msgspec.Meta(max_length=300)]
_Core = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """A machine before and after a measurement; None, or nothing, for what it does not tell."""

    processor: _Text  # Its name.
    system: _Text  # Operating system and architecture.
    cores: list[_Core]  # That were used.
    process_cores: list[_Core]  # That this process may use.
    governors: dict[_Text, _Text]  # What sets the frequency of each core that was used, by its number.
    mhz_before: dict[_Text, float]  # Frequency of each.
    mhz_after: dict[_Text, float]  # The same afterwards.
    celsius_before: dict[_Text, float]  # Temperature of each thermal zone, by its type.
    celsius_after: dict[_Text, float]  # The same afterwards.
    load_before: float | None  # Mean number of busy processes in the minute before.
    load_after: float | None  # In the last minute.
    stolen: float | None  # Share of the cores' time that the host gave to others.
    busy: float | None  # Utilisation of the cores by all processes.

    @property
    def warnings(self) -> list[str]:
        """What of it makes times doubtful, one sentence each."""
        messages = []
        if self.load_before is not None and self.load_before > BUSY * len(self.process_cores):
            messages.append(
                f"{self.load_before:.1f} processes were busy in the minute before: on a machine that works for others times vary"
            )
        slow = sorted({name for name in self.governors.values() if name != "performance"})
        if slow:
            messages.append(f"the cores' frequency is set by `{', '.join(slow)}`, not `performance`: it depends on what ran before")
        if self.stolen is not None and self.stolen > STOLEN:
            messages.append(f"the host gave {self.stolen:.1%} of the cores' time to others")
        hotter = max((after - self.celsius_before.get(zone, after) for zone, after in self.celsius_after.items()), default=0.0)
        if hotter > WARMER:
            messages.append(f"the machine warmed up by {hotter:.0f} °C: later rounds may be slower")
        return messages


@dataclass(frozen=True)
class MachineReading:
    """A machine at one moment, as `Conditions` has it; `ticks` are its cores' in all, idle and stolen."""

    mhz: dict[str, float]
    celsius: dict[str, float]
    load: float | None
    ticks: tuple[int, int, int] | None


def look(cores: Sequence[int], root: Path = Path("/")) -> MachineReading:
    """The machine as it is now (`root`: where ``sys`` and ``proc`` are)."""
    mhz = {}
    for core in cores:
        with suppress(OSError, ValueError):
            mhz[str(core)] = int(_frequency(root, core, "scaling_cur_freq")) / 1000
    celsius: dict[str, float] = {}
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        with suppress(OSError, ValueError):
            name, degrees = (zone / "type").read_text().strip()[:100], int((zone / "temp").read_text()) / 1000
            # several zones of one type: the hottest says when a chip throttles
            celsius[name] = max(degrees, celsius.get(name, degrees))
    load = system.load_average()
    return MachineReading(mhz, celsius, None if load is None else round(load, 2), _ticks(cores, root))


def governors(cores: Sequence[int], root: Path = Path("/")) -> dict[str, str]:
    """What sets the frequency of each core, by its number; empty where the system does not tell."""
    by_core = {}
    for core in cores:
        with suppress(OSError):
            by_core[str(core)] = _frequency(root, core, "scaling_governor")[:100]
    return by_core


def conditions(
    before: MachineReading, after: MachineReading, *, processor: str, system: str, cores: Sequence[int], process_cores: Sequence[int]
) -> Conditions:
    """What two looks at a machine say together."""
    stolen = busy = None
    if before.ticks is not None and after.ticks is not None:
        passed, idle, lost = (then - now for now, then in zip(before.ticks, after.ticks, strict=True))
        if passed > 0:
            stolen, busy = round(max(0, lost) / passed, 4), round(max(0, passed - idle - lost) / passed, 4)
    return Conditions(
        processor=processor[:300],
        system=system[:300],
        cores=list(cores),
        process_cores=list(process_cores),
        governors=governors(cores),
        mhz_before=before.mhz,
        mhz_after=after.mhz,
        celsius_before=before.celsius,
        celsius_after=after.celsius,
        load_before=before.load,
        load_after=after.load,
        stolen=stolen,
        busy=busy,
    )


def _frequency(root: Path, core: int, name: str) -> str:
    return (root / f"sys/devices/system/cpu/cpu{core}/cpufreq/{name}").read_text().strip()


def _ticks(cores: Sequence[int], root: Path) -> tuple[int, int, int] | None:
    """Ticks of the cores in all, idle and stolen (proc(5): user nice system idle iowait irq softirq steal)."""
    wanted = {f"cpu{core}" for core in cores}
    sums, available = [0, 0, 0], False
    try:
        for line in (root / "proc/stat").read_text().splitlines():
            name, *words = line.split()
            if name in wanted and len(words) >= 8:
                ticks = [int(word) for word in words[:8]]
                sums = [sums[0] + sum(ticks), sums[1] + ticks[3] + ticks[4], sums[2] + ticks[7]]
                available = True
    except (OSError, ValueError):
        return None
    return (sums[0], sums[1], sums[2]) if available else None
