"""Create a profile: measure every processor, fit, write."""

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import tomli_w

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fits.store import fit_path, write_fits
from predictors.fitting.fit import MIN_NETWORKS, Judged, fit_device
from predictors.host import HOST
from predictors.measurements.networks import Source
from scheduler.cores import available_cores
from scheduler.measure.steady import preferred
from scheduler.tuning.interrupt import interruption_waits
from stretch.environment import processor_name
from stretch.profiling.choose import one_thread
from stretch.profiling.collect import Collected, Collector
from stretch.profiling.crossing import measure_crossing
from stretch.profiling.places import Place
from stretch.profiling.table import Table
from stretch.profiling.writing import Crossing, make_profile, valid_id

#: Seconds for the hand-overs and contention of a processor, and their maximum share of the total time.
_RESERVED_S, _RESERVED = 20.0, 0.3

Step = Callable[[str], None]


@dataclass(frozen=True)
class Profiled:
    """What came of it."""

    profile: Path
    measurements: Path  # A folder.
    collected: list[Collected]  # Results of this run by processor.
    crossings: Mapping[str, Crossing]  # Links and contention by processor that is not the CPU.
    judged: list[Judged]  # Fits with their cross-validation.


def open_table(name: str, out: Path, places: Sequence[Place], resume: bool) -> Table:
    """The folder of measurements of a profile."""
    check_target(name, out)
    source = Source(f"random networks on {machine()}, measured by `stretch profile`", "", "", "CC0-1.0", _notes(places))
    return Table.open(out / f"{name}.measurements", source, resume)


def check_target(name: str, out: Path) -> None:
    """Check the name and the folder of a profile."""
    if not valid_id(name):
        raise UsageError(f"`{name}` cannot be the name of a profile", "use letters, digits, `_`, `.` and `-`")
    if not out.is_dir():
        raise StretchError(f"there is no folder {out}", "make it, or choose another with --out")
    if not os.access(out, os.W_OK):
        raise StretchError(f"cannot write into {out}", "choose a writable folder with --out")


def machine() -> str:
    """This machine in words."""
    cores = len(available_cores())
    return f"{processor_name()}, {cores} core{'s' if cores > 1 else ''} available, {platform.system()}"


def _notes(places: Sequence[Place]) -> str:
    runtimes = "; ".join(sorted({f"{place.family}: {place.runtime}" for place in places}))
    return f"{machine()}; {runtimes}; medians of runs in turns, kernels by the delegates' profilers, in networks with made-up weights"


def profile_machine(
    name: str, places: Sequence[Place], table: Table, seconds: float, step: Step = lambda doing: None, most: int | None = None
) -> Profiled:
    """Measure, fit and write ``<name>.toml`` and ``<name>.fit.json`` beside the folder of measurements.

    Args:
        most: Maximum number of networks per processor; None for as many as the time allows.
    """
    crossings = {}
    end, others = monotonic() + seconds, [place for place in places if place.family != HOST]
    networks_end = end - min(_RESERVED_S * len(others), _RESERVED * seconds)
    collected = []
    with preferred():
        for number, place in enumerate(places):
            # unused time goes to the following processors
            share = place.share / sum(later.share for later in places[number:])
            collected.append(Collector(place, name, table).collect(share * (networks_end - monotonic()), step, most))
        for place in places:
            known = sum((row.processor, row.core_set) == (place.family, place.core_set) for row in table.latencies)
            if known < MIN_NETWORKS:
                raise StretchError(
                    f"there was time for {known} networks on {place.name}, a fit needs {MIN_NETWORKS}",
                    "go on with --resume, and a larger --budget",
                )
        for number, place in enumerate(others):
            step(f"{place.name}: hand-over and contention, {max(0.0, end - monotonic()):.0f} s left")
            crossings[place.family] = measure_crossing(places[0], place, monotonic() + max(0.0, end - monotonic()) / (len(others) - number))
    step("measured; fitting")
    judged = write_profile(name, places, table, crossings)
    return Profiled(_path(name, table), table.folder, collected, crossings, judged)


def _path(name: str, table: Table) -> Path:
    return table.folder.parent / f"{name}.toml"


def write_profile(name: str, places: Sequence[Place], table: Table, crossings: Mapping[str, Crossing]) -> list[Judged]:
    """Fit the measurements and write the profile; both files appear once both are complete."""
    path = _path(name, table)
    text = tomli_w.dumps(make_profile(name, machine(), places, table.kernels, crossings))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}.") as folder:
        draft = Path(folder) / path.name
        draft.write_text(text)
        with one_thread():
            judged = fit_device(table.loaded(), load_device(draft))
        write_fits(
            fit_path(draft), name, f"stretch fit {table.folder.name} --device {path.name}", [judged_fit.fit for judged_fit in judged]
        )
        with interruption_waits():
            # A profile without fits is valid, one with fits of another profile is not.
            fit_path(path).unlink(missing_ok=True)
            os.replace(draft, path)
            os.replace(fit_path(draft), fit_path(path))
    return judged
