"""RAPL: what x86 packages and their memory have used, in counters that run over (Linux, Documentation/power/powercap)."""

from pathlib import Path

from scheduler.measure.energy.counters import CounterError, folders, read_number, read_word

#: Counters move about once a millisecond: of so long a time that is one part in a hundred.
LEAST_S = 0.1


class Rapl:
    """The packages of a machine and their memory.

    Cores and graphics are parts of a package, and the platform (``psys``) holds
    packages, so that neither is added to them.

    Args:
        root: Folder such as ``/sys/class``, in which ``powercap`` lies.
    """

    def __init__(self, root: Path) -> None:
        self._zones = [path for path in zones(root) if read_word(path / "name").startswith(("package", "dram"))]
        if not self._zones:
            raise CounterError(f"{root / 'powercap'} has no counter of a package")
        self._last = [self._counter(path) for path in self._zones]
        self._total = 0

    @property
    def name(self) -> str:
        """What it measures, in words."""
        return "RAPL: " + ", ".join(read_word(path / "name") for path in self._zones)

    @property
    def least_s(self) -> float:
        """What is shorter than this it does not tell well, s."""
        return LEAST_S

    def read_mj(self) -> float:
        """Energy until now, mJ."""
        now = [self._counter(path) for path in self._zones]
        self._total += sum(self._since(*zone) for zone in zip(self._zones, self._last, now, strict=True))
        self._last = now
        return self._total / 1e3

    def _since(self, zone: Path, before: int, after: int) -> int:
        """µJ between two readings; the counter may have run over once."""
        if after >= before:
            return after - before
        most = read_number(zone / "max_energy_range_uj")
        if before > most:
            raise CounterError(f"{zone / 'energy_uj'} went back from {before} to {after} µJ, and runs over at {most}")
        return after + most - before

    def _counter(self, zone: Path) -> int:
        energy_uj = read_number(zone / "energy_uj")
        if energy_uj < 0:
            raise CounterError(f"{zone / 'energy_uj'} holds {energy_uj}, and energy is not negative")
        return energy_uj


def zones(root: Path) -> list[Path]:
    """Folders of RAPL's zones, and of those within them; empty where there are none."""
    return folders(root / "powercap", "intel-rapl:*")
