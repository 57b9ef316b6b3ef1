"""Link and contention between two processors of this machine, measured with special networks."""

import tempfile
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns

import numpy as np

from predictors.graph import OpGraph
from scheduler.cores import pinned
from scheduler.delegates import Delegate
from scheduler.measure.links import Handover, fit_link
from scheduler.measure.networks import runner, time_operators
from scheduler.measure.steady import LEAST, MOST, time_steadily
from scheduler.measure.together import time_together
from scheduler.runtime.mailbox import Mailbox
from scheduler.runtime.workers import Completion, Worker
from stretch.profiling.drawing import Drawing
from stretch.profiling.files import write_network
from stretch.profiling.places import Place
from stretch.profiling.writing import Crossing

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
    """A worker thread on a processor's cores and a waiting caller on the host's, as in the scheduler.

    Args:
        host: Cores of the caller.
        cores: Cores of the thread.
    """

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
