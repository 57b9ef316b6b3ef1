"""Energy of one inference: a loop that is long enough for the counter, several times."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from scheduler.measure.energy.counters import CounterError, Meter
from scheduler.measure.energy.rapl import Rapl, zones
from scheduler.measure.energy.supply import Supply, supplies

#: Where Linux lists its devices by class.
SYS_CLASS = Path("/sys/class")

#: Loops, of which the median counts.
LOOPS = 5

#: A counter that does not move for so many times what it needs is broken.
_PATIENCE = 10


@dataclass(frozen=True)
class MeasuredEnergy:
    """Energy of one inference."""

    mj: float | None  # Median over the loops, mJ: of all that the counter covers, whoever uses it. None where it could not be measured.
    counter: str | None  # What measured it; None where nothing did.
    inferences: int  # How many were run for it.
    reason: str | None  # Why it could not be measured; None where it was.


def find_meter(root: Path = SYS_CLASS) -> Meter:
    """The machine's counter of energy: RAPL, else a battery or rail."""
    if zones(root):
        return Rapl(root)
    if supplies(root):
        return Supply(root)
    raise CounterError(f"{root} has neither counters of RAPL (powercap) nor a battery or rail that tells its power (power_supply)")


def measure_energy(run: Callable[[], object], root: Path = SYS_CLASS, loops: int = LOOPS) -> MeasuredEnergy:
    """Energy of one inference, with all else that the counter covers.

    Args:
        root: As of `find_meter`.
    """
    done, samples = 0, []
    try:
        meter = find_meter(root)
        for _ in range(loops):
            count, mj = _one_loop(run, meter)
            done += count
            samples.append(mj / count)
    except CounterError as error:
        return MeasuredEnergy(None, None, done, error.message + (f" ({error.hint})" if error.hint else ""))
    return MeasuredEnergy(median(samples), meter.name, done, None)


def _one_loop(run: Callable[[], object], meter: Meter) -> tuple[int, float]:
    """Inferences of a loop that the counter tells well, and what they took, mJ."""
    begin, since, count, mj = meter.read_mj(), perf_counter(), 0, 0.0
    # a loop goes on until the counter has moved, so that none takes nothing
    while (seconds := perf_counter() - since) < meter.least_s or mj <= 0:
        if seconds > _PATIENCE * meter.least_s:
            raise CounterError(f"{meter.name} has not moved for {seconds:.1f} s")
        run()
        count, mj = count + 1, meter.read_mj() - begin
    return count, mj
