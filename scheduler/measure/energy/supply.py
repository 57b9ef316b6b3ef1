"""Power of a battery or a rail, sampled and summed up (paper 003, section 7.1; Linux, Documentation/ABI/testing/sysfs-class-power)."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

from scheduler.measure.energy.counters import CounterError, folders, read_number, read_word

#: Fuel gauges average over up to a second or so.
LEAST_S = 2.0

#: No device that runs from a battery takes more, W: a larger number is not in the unit that it should be in.
MOST_W = 1000.0


class Supply:
    """A battery, or a rail that tells its power.

    Drivers differ in the sign of what flows out of a battery, so the sign is left
    out; a battery that is being charged says nothing of what is used, and is refused.

    Args:
        root: Folder such as ``/sys/class``, in which ``power_supply`` lies.
    """

    def __init__(self, root: Path, clock: Callable[[], int] = perf_counter_ns) -> None:
        folders = supplies(root)
        if not folders:
            raise CounterError(f"{root / 'power_supply'} has nothing that tells its power")
        self._folder, self._clock = folders[0], clock
        self._last = clock(), self._watts()
        self._mj = 0.0

    @property
    def name(self) -> str:
        """What it measures, in words."""
        return f"power_supply: {self._folder.name}"

    @property
    def least_s(self) -> float:
        """What is shorter than this it does not tell well, s."""
        return LEAST_S

    def read_mj(self) -> float:
        """Energy until now, mJ: the mean of the power at both ends of each interval, times its length."""
        now = self._clock(), self._watts()
        self._mj += (now[0] - self._last[0]) / 1e6 * (now[1] + self._last[1]) / 2
        self._last = now
        return self._mj

    def _watts(self) -> float:
        status = read_word(self._folder / "status")
        if status in ("Charging", "Full", "Not charging"):
            raise CounterError(f"{self._folder} is not discharging ({status.lower()}): it does not tell what is used", "unplug the charger")
        watts = abs(_microwatts(self._folder)) / 1e6
        if watts > MOST_W:
            raise CounterError(f"{self._folder} tells {watts:.4g} W, which no battery gives")
        return watts


def _microwatts(folder: Path) -> float:
    """What it gives now: stated, or current × voltage; 0 W of a battery that gives power means that it does not know."""
    power = folder / "power_now"
    microwatts = read_number(power) if power.exists() else read_number(folder / "current_now") * read_number(folder / "voltage_now") / 1e6
    if microwatts == 0:
        raise CounterError(f"{folder} tells a power of 0 W")
    return microwatts


def supplies(root: Path) -> list[Path]:
    """Folders of what tells its power, sources first; empty where there is none."""
    sources = [
        path
        for path in folders(root / "power_supply", "*")
        if (path / "power_now").exists() or all((path / name).exists() for name in ("current_now", "voltage_now"))
    ]
    return sorted(sources, key=lambda path: (read_word(path / "type") != "Battery", path.name))
