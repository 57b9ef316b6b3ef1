"""Energy of one inference by the machine's counters: RAPL of x86 processors, or the battery and rails of `power_supply`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns

from predictors.errors import StretchError


def read_number(path: Path) -> int:
    """Return the whole number in a file."""
    try:
        text = path.read_text().strip()
    except PermissionError as error:
        raise StretchError(f"{path} may not be read by this user", f"as root: chmod a+r {path}") from error
    except OSError as error:
        raise StretchError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StretchError(f"{path} holds no number") from error
    try:
        return int(text)
    except ValueError as error:
        raise StretchError(f"{path} holds `{text[:20]}`, which is no whole number") from error


def read_word(path: Path) -> str:
    """Return the word in a file, or an empty string if the file cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def folders(root: Path, pattern: str) -> list[Path]:
    """Return the folders of a device class that match a pattern, sorted; an empty list without such a class."""
    try:
        return sorted(path for path in root.glob(pattern) if path.is_dir())
    except OSError:
        return []


#: Minimum time, s: fuel gauges average over up to about a second.
SUPPLY_MIN_S = 2.0

#: Maximum power of a battery-powered device, W: a larger number has another unit.
MAX_W = 1000.0


class Supply:
    """A battery, or a rail that reports its power.

    Drivers differ in the sign of the current out of a battery, so the sign is
    ignored; a charging battery does not show consumption and is refused.

    Args:
        root: Folder such as ``/sys/class`` that contains ``power_supply``.
    """

    def __init__(self, root: Path, clock: Callable[[], int] = perf_counter_ns) -> None:
        folders = supplies(root)
        if not folders:
            raise StretchError(f"{root / 'power_supply'} has nothing that reports its power")
        self._folder, self._clock, self.min_s = folders[0], clock, SUPPLY_MIN_S
        self.name = f"power_supply: {self._folder.name}"
        self._last = clock(), self._watts()
        self._mj = 0.0

    def read_mj(self) -> float:
        """Return the energy so far, mJ: for each interval, the mean power of its two ends times its length."""
        now = self._clock(), self._watts()
        self._mj += (now[0] - self._last[0]) / 1e6 * (now[1] + self._last[1]) / 2
        self._last = now
        return self._mj

    def _watts(self) -> float:
        status = read_word(self._folder / "status")
        if status in ("Charging", "Full", "Not charging"):
            raise StretchError(
                f"{self._folder} is not discharging ({status.lower()}): it does not report the power used", "unplug the charger"
            )
        watts = abs(_microwatts(self._folder)) / 1e6
        if watts > MAX_W:
            raise StretchError(f"{self._folder} reports {watts:.4g} W, which no battery gives")
        return watts


def _microwatts(folder: Path) -> float:
    """Return the current power in µW: reported, or current × voltage; 0 from a battery in use means unknown and is refused."""
    power = folder / "power_now"
    microwatts = read_number(power) if power.exists() else read_number(folder / "current_now") * read_number(folder / "voltage_now") / 1e6
    if microwatts == 0:
        raise StretchError(f"{folder} reports a power of 0 W")
    return microwatts


def supplies(root: Path) -> list[Path]:
    """Return the folders that report power, batteries first; empty if there are none."""
    sources = [
        path
        for path in folders(root / "power_supply", "*")
        if (path / "power_now").exists() or all((path / name).exists() for name in ("current_now", "voltage_now"))
    ]
    return sorted(sources, key=lambda path: (read_word(path / "type") != "Battery", path.name))


#: Minimum time, s: counters change about once per millisecond, which is a hundredth of it.
RAPL_MIN_S = 0.1


class Rapl:
    """The packages of a machine, with their memory.

    Cores and graphics are parts of a package, and the platform (``psys``)
    contains packages, so none of these is added.

    Args:
        root: Folder such as ``/sys/class`` that contains ``powercap``.
    """

    def __init__(self, root: Path) -> None:
        self._zones = [path for path in zones(root) if read_word(path / "name").startswith(("package", "dram"))]
        if not self._zones:
            raise StretchError(f"{root / 'powercap'} has no counter of a package")
        self.name, self.min_s = "RAPL: " + ", ".join(read_word(path / "name") for path in self._zones), RAPL_MIN_S
        self._last, self._total = [self._counter(path) for path in self._zones], 0

    def read_mj(self) -> float:
        """Return the energy so far, mJ."""
        now = [self._counter(path) for path in self._zones]
        self._total += sum(self._since(*zone) for zone in zip(self._zones, self._last, now, strict=True))
        self._last = now
        return self._total / 1e3

    def _since(self, zone: Path, before: int, after: int) -> int:
        """Return the energy between two readings in µJ; the counter may have overflowed once."""
        if after >= before:
            return after - before
        most = read_number(zone / "max_energy_range_uj")
        if before > most:
            raise StretchError(f"{zone / 'energy_uj'} went back from {before} to {after} µJ, and runs over at {most}")
        return after + most - before

    def _counter(self, zone: Path) -> int:
        energy_uj = read_number(zone / "energy_uj")
        if energy_uj < 0:
            raise StretchError(f"{zone / 'energy_uj'} holds {energy_uj}, and energy is not negative")
        return energy_uj


def zones(root: Path) -> list[Path]:
    """Return the folders of RAPL's zones, nested ones included; empty if there are none."""
    return folders(root / "powercap", "intel-rapl:*")


#: Folder in which Linux lists devices by class.
SYS_CLASS = Path("/sys/class")

#: Number of loops, of which the median counts.
LOOPS = 5

#: Multiple of its minimum time after which a counter that has not moved counts as broken.
_PATIENCE = 10


@dataclass(frozen=True)
class MeasuredEnergy:
    """Energy of one inference."""

    mj: float | None  # Median over the loops, mJ, of all consumers that the counter covers; None if not measured.
    counter: str | None  # Counter that measured the energy; None without one.
    reason: str | None  # Reason why the energy was not measured, or None.


def find_meter(root: Path = SYS_CLASS) -> Supply | Rapl:
    """Return the machine's energy counter: RAPL, else a battery or rail."""
    if zones(root):
        return Rapl(root)
    if supplies(root):
        return Supply(root)
    raise StretchError(f"{root} has neither counters of RAPL (powercap) nor a battery or rail that reports its power (power_supply)")


def measure_energy(run: Callable[[], object], root: Path = SYS_CLASS, loops: int = LOOPS) -> MeasuredEnergy:
    """Measure the energy of one inference, including all other consumers that the counter covers."""
    try:
        meter = find_meter(root)
        mj = median(_one_loop(run, meter) for _ in range(loops))
    except StretchError as error:
        return MeasuredEnergy(None, None, error.message + (f" ({error.hint})" if error.hint else ""))
    return MeasuredEnergy(mj, meter.name, None)


def _one_loop(run: Callable[[], object], meter: Supply | Rapl) -> float:
    """Return the energy of one inference in mJ, from a loop that is long enough for the counter."""
    begin, since, count, mj = meter.read_mj(), perf_counter(), 0, 0.0
    # a loop runs until the counter has moved, so that no loop has zero energy
    while (seconds := perf_counter() - since) < meter.min_s or mj <= 0:
        if seconds > _PATIENCE * meter.min_s:
            raise StretchError(f"{meter.name} has not moved for {seconds:.1f} s")
        run()
        count, mj = count + 1, meter.read_mj() - begin
    return mj / count
