"""Create a profile: measure every processor, fit, write."""

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns

import numpy as np
import tomli_w

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fits.store import fit_path, write_fits
from predictors.fitting.fit import MIN_NETWORKS, Judged, fit_device
from predictors.graph import OpGraph
from predictors.host import HOST
from predictors.measurements.networks import Source
from scheduler.cores import available_cores, pinned
from scheduler.delegates import Delegate
from scheduler.measure.links import Handover, fit_link
from scheduler.measure.networks import runner, time_operators
from scheduler.measure.steady import LEAST, MOST, preferred, time_steadily
from scheduler.measure.together import time_together
from scheduler.runtime.mailbox import Mailbox
from scheduler.runtime.workers import Completion, Worker
from scheduler.tuning.interrupt import interruption_waits
from stretch.environment import processor_name
from stretch.profiling.choose import one_thread
from stretch.profiling.collect import Collected, Collector
from stretch.profiling.drawing import Drawing
from stretch.profiling.files import write_network
from stretch.profiling.places import Place
from stretch.profiling.table import Table
from stretch.profiling.writing import Crossing, make_profile, valid_id

#: Channels, input rows and output rows of the networks for hand-overs: the same work on large and small tensors.
_HANDOVERS = ((16, 16, 16), (16, 112, 112), (64, 112, 112), (64, 112, 1), (64, 56, 56), (128, 56, 1), (16, 32, 1))

#: Runs per hand-over, of which the median is used.
_HANDINGS = 25

#: Channels and rows of the compute-bound and the memory-bound network.
_COMPUTING, _MOVING = (256, 28), (64, 160)


def measure_crossing(host: Place, other: Place, end: float = inf) -> Crossing:
    """Measure the link between the host and another processor, and their contention."""
    with tempfile.TemporaryDirectory() as folder:
        return Crossing(
            fit_link(_handovers(host, other, Path(folder), end)),
            _together(host, other, _computing(), Path(folder), end),
            _together(host, other, _moving(), Path(folder), end),
            other.runtime,
        )


def _handovers(host: Place, place: Place, folder: Path, end: float) -> list[Handover]:
    delegate = place.create()
    # a delegate that blocks its caller gets a thread when a bundle runs, and handing over to the thread and back is
    # part of every exchange
    worker = None if delegate.asynchronous else Handing(host.cores, place.cores)
    runs = {}
    files = {}
    for channels, rows, out in _HANDOVERS:
        drawing = Drawing(np.random.default_rng(0), "relu")
        x = drawing.act(drawing.add("input", shape=(1, channels, rows, rows)))
        if out == 1:
            x = drawing.add("global_avg_pool", x, keepdims=True)
        graph = OpGraph.build(f"handover-{channels}-{rows}-{out}", drawing.ops, x)
        file = write_network(graph, folder / f"{graph.name}.onnx")
        compiled = delegate.compile(file)
        runs[graph.name] = runner(compiled, place.caller if worker is None else ())
        files[graph.name] = (graph, file)
    if worker is None:
        spent = {
            name: time.ms - _kernels_ms(delegate, place, *files[name])
            for name, time in time_steadily(runs, place.serial, most=LEAST if monotonic() > end else MOST).items()
        }
    else:
        spent = _after_work({name: worker.handing(run) for name, run in runs.items()}, _busying(host, place, worker, folder), end)
        worker.close()
    handovers = []
    for name, ms in spent.items():
        graph = files[name][0]
        sizes = [4 * int(np.prod(shape)) for shape in (graph.input.shape, graph.by_name[graph.output].shape)]
        handovers.append(Handover(sizes[0], sizes[1], max(0.0, ms)))
    delegate.close()
    return handovers


def _kernels_ms(delegate: Delegate, place: Place, graph: OpGraph, file: Path) -> float:
    """Times of a network's kernels, and of those that the delegate added."""
    operators, added = time_operators(delegate, file, place.caller, [op.name for op in graph.ops])
    return sum(operators.values()) + added


def _after_work(runs: Mapping[str, Callable[[], float]], busy: Callable[[], object], end: float) -> dict[str, float]:
    """Median times of hand-overs in turns, each after work on both processors, which evicts caches and lets threads sleep."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(_HANDINGS):
        if number >= LEAST and monotonic() > end:
            break
        for name, run in runs.items():
            busy()
            times[name].append(run())
    return {name: median(durations) for name, durations in times.items()}


def _busying(host: Place, place: Place, worker: "Handing", folder: Path) -> Callable[[], None]:
    """A function that keeps the processor busy on its thread, then the host on the caller's thread."""
    file = write_network(_computing(), folder / "busy.onnx")
    run_host, run_other = runner(host.create().compile(file), host.caller), worker.handing(runner(place.create().compile(file), ()))

    def busy() -> None:
        run_other()
        run_host()

    return busy


class Handing:
    """A worker thread on a processor's cores and a waiting caller on the host's, as in the scheduler."""

    def __init__(self, host: tuple[int, ...], cores: tuple[int, ...]) -> None:
        self._host = host
        self._completions: Mailbox[Completion] = Mailbox()
        self._worker = Worker("profile", cores, self._completions)

    def handing(self, work: Callable[[], None]) -> Callable[[], float]:
        """A function that runs work on the thread, waits for it, and returns the overhead in ms."""
        submit = self._worker.submitter([("handed over", work, True)])

        def run() -> float:
            with pinned(self._host[:1]):
                handed = perf_counter_ns()
                submit()
                _, error, start, end = self._completions.get()
                back = perf_counter_ns()
            if error is not None:
                raise error
            return (start - handed + back - end) / 1e6

        return run

    def close(self) -> None:
        """End the thread."""
        self._worker.close()


def _computing() -> OpGraph:
    drawing = Drawing(np.random.default_rng(0), "relu")
    x = drawing.add("input", shape=(1, _COMPUTING[0], _COMPUTING[1], _COMPUTING[1]))
    for _ in range(2):
        x = drawing.act(drawing.conv(x, _COMPUTING[0], 3, bias=True))
    return OpGraph.build("computing", drawing.ops, x)


def _moving() -> OpGraph:
    drawing = Drawing(np.random.default_rng(0), "relu")
    x = drawing.add("input", shape=(1, _MOVING[0], _MOVING[1], _MOVING[1]))
    first = drawing.act(x)
    for _ in range(4):
        x = drawing.add("add", drawing.add("mul", x, first), first)
    return OpGraph.build("moving", drawing.ops, x)


def _together(host: Place, other: Place, graph: OpGraph, folder: Path, end: float) -> tuple[float, float]:
    """Slowdown factors of the host and the other processor."""
    file = write_network(graph, folder / f"{graph.name}.onnx")
    delegates = host.create(), other.create()
    runs = [
        runner(delegate.compile(file), place.caller) for delegate, place in zip(delegates, (host, other), strict=True)
    ]  # fmt: skip
    times = time_together(*runs, end=end)
    for delegate in delegates:
        delegate.close()
    return times.first, times.second


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
