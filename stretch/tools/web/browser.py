"""A profile of a browser's processors, from the total times of random networks that the page of `stretch web` reports.

No browser reports the times of kernels, so fits are to whole networks (`predictors.fitting.networks`). The CPU is WebAssembly, with
one thread and with the page's maximum number of threads; the GPU is WebGPU.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import msgspec
import numpy as np
import onnx

from predictors.errors import StretchError
from predictors.fits import Fit, Prior
from predictors.graph import OpGraph
from predictors.measurements.networks import Source
from predictors.measurements.tables import Latency
from scheduler.measure.steady import Handover, SteadyTime, fit_link
from scheduler.tools.web.server import RUNTIME, BrowserDevice
from stretch.export.quantize.qdq import to_half
from stretch.profile.places import weight_bytes, write_network
from stretch.profile.run import (
    HANDOVERS,
    READ_SHAPE,
    Chooser,
    compute_bound_network,
    family_of,
    handover_network,
    held_out,
    memory_bound_network,
    sizes,
    write_profile,
)
from stretch.profile.writing import Crossing, MeasurementTable

#: Number of networks that are timed in turns, and minimum number of timed networks before a fit.
BATCH, LEAST_NETWORKS = 5, 24

#: Suffix of the address of a network in half precision.
HALF = "-half"

#: Number of measured rounds of a batch, after two warm-up rounds.
ROUNDS = 9

#: Maximum relative distance between the quartiles of a network's times: browsers vary more than programs.
UNSTEADY = 0.4

#: Maximum multiply-accumulates and weights of a network, so that a phone answers within seconds.
MOST_MACS, MOST_WEIGHTS = 250_000_000, 4_000_000

_Ms = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Times = Annotated[list[_Ms], msgspec.Meta(max_length=1000)]


class BrowserPlace(msgspec.Struct, frozen=True):
    """A processor of the browser with one core set, in the form that profiles and fits use."""

    family: str  # ``cpu`` or ``gpu``.
    core_set: str  # ``1thread``, ``4threads`` or ``all``.
    provider: str  # ``wasm`` or ``webgpu``.
    threads: int  # Number of WebAssembly threads.
    precision: str = "fp32"  # Precision of the networks' weights and sums.

    backend = "onnxruntime_web"
    cores: tuple[int, ...] = ()
    runs_on = ""

    @property
    def name(self) -> str:
        """Name such as ``cpu[4threads]``, or ``gpu[all] fp16``."""
        return f"{self.family}[{self.core_set}]" + (f" {self.precision}" if self.precision != "fp32" else "")

    @property
    def runtime(self) -> str:
        """Name and version of the runtime."""
        return f"{RUNTIME} on {self.provider}"


class _Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the page: times in ms by place and network, and times of networks that ran in parallel."""

    device: BrowserDevice
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    times: dict[str, dict[str, _Times]]
    together: dict[str, dict[str, _Times]] | None = None


class BrowserMeasurer:
    """Chooses the next measurements of the page, and writes the profile.

    Args:
        name: Id of the profile.
        out: Folder of the profile.
        seconds: Duration of the measurements in seconds.
        warn: Function that receives warnings.
    """

    def __init__(self, name: str, out: Path, seconds: float, warn: Callable[[str], None] = lambda text: None) -> None:
        self.name, self.out, self._seconds, self._warn = name, out, seconds, warn
        self.fits: list[Fit | Prior] = []
        self._files: dict[str, bytes] = {}
        self._requested: dict[str, OpGraph] = {}
        self._chooser = Chooser([])
        self._table: MeasurementTable | None = None
        self._places: list[BrowserPlace] = []
        self._alone: dict[str, dict[str, float]] = {}
        self._steps = iter(("handovers", "together", "write"))
        self._refused = self._threads = 0
        self._agent, self._end = "", 0.0
        self._together: dict[str, dict[str, list[float]]] = {}

    def network(self, name: str) -> bytes | None:
        """Return the ONNX file of a requested network; None for any other name."""
        return self._files.get(name)

    def answer(self, message: bytes) -> dict[str, Any]:
        """Return the next request to the page.

        Raises:
            StretchError: If the page sends times that were not requested, or another browser continues.
        """
        report = msgspec.json.decode(message, type=_Report)
        if self._table is None:
            self._begin(report)
        assert self._table is not None
        if report.device.agent != self._agent or report.threads != self._threads:
            raise StretchError("another browser goes on with what this one began; start again")
        self._take(report)
        timed = [(row.processor, row.core_set, row.precision) for row in self._table.latencies]
        fewest = min(timed.count((place.family, place.core_set, place.precision)) for place in self._places)
        if self._refused > max(60, len(timed)):
            raise StretchError(
                f"this browser is too busy: {self._refused} times varied by more than {UNSTEADY:.0%}",
                "close other pages and programs, plug the charger in, and start again",
            )
        if monotonic() < self._end or fewest < LEAST_NETWORKS:
            return self._request([self._draw() for _ in range(BATCH)], f"{fewest} networks timed")
        match next(self._steps, None):
            case "handovers" if len({place.family for place in self._places}) > 1:
                graphs = [handover_network(*shape) for shape in HANDOVERS] + [compute_bound_network(), memory_bound_network()]
                return self._request(graphs, "exchanges between CPU and GPU")
            case "together" if self._alone:
                return self._request(
                    [compute_bound_network(), memory_bound_network(), handover_network(*READ_SHAPE)],
                    "both processors at once",
                    together=True,
                )
            case _:
                return {"done": True, "sentences": self._write()}

    def _begin(self, report: _Report) -> None:
        device, self._threads = report.device, report.threads
        counts = sorted({1, report.threads}, reverse=True)
        self._places = [BrowserPlace("cpu", f"{n}thread{'s' if n > 1 else ''}", "wasm", n) for n in counts]
        if device.webgpu:
            half = [BrowserPlace("gpu", "all", "webgpu", 1, "fp16")] if device.fp16 else []
            self._places += [*half, BrowserPlace("gpu", "all", "webgpu", 1)]
        notes = f"{device.agent}; {device.cores} cores; {RUNTIME}; medians of whole networks in turns, made-up weights"
        source = Source("random networks in a browser, measured by the page of `stretch web`", "", "", "CC0-1.0", notes)
        self._table = MeasurementTable.open(self.out / f"{self.name}.measurements", source, False)
        self._agent, self._end = device.agent, monotonic() + self._seconds

    def _draw(self) -> OpGraph:
        while True:
            (graph,) = self._chooser.draw(1)
            if graph.macs <= MOST_MACS and weight_bytes(graph) <= 4 * MOST_WEIGHTS:
                return graph

    def _request(self, graphs: list[OpGraph], state: str, together: bool = False) -> dict[str, Any]:
        self._requested, self._files = {graph.name: graph for graph in graphs}, {}
        with tempfile.TemporaryDirectory() as folder:
            for graph in graphs:
                file = write_network(graph, Path(folder) / "network.onnx")
                self._files[graph.name] = file.read_bytes()
                if any(place.precision == "fp16" for place in self._places):
                    self._files[f"{graph.name}{HALF}"] = to_half(onnx.load(file)).SerializeToString()
        networks = [
            {"name": name, "url": f"networks/{name}", "input": graph.input.shape, "output": graph.by_name[graph.output].shape}
            for name, graph in self._requested.items()
        ]
        places = [
            {"place": place.name, "provider": place.provider, "threads": place.threads, "file": HALF if place.precision == "fp16" else ""}
            for place in self._places
        ]
        if together:
            places = [places[0], places[-1]]
        return {"done": False, "state": state, "networks": networks, "places": places, "together": together, "rounds": ROUNDS}

    def _take(self, report: _Report) -> None:
        places = {place.name: place for place in self._places}
        for name, times in [*report.times.items(), *((report.together or {}).items())]:
            networks = self._requested if name in places else places
            if (name not in places and name not in self._requested) or any(key not in networks for key in times):
                raise StretchError(f"the page sends times of `{name}`, which it was not asked for")
        for name, times in report.times.items():
            for network, values in times.items():
                if network.startswith(("handover", "computing", "moving")):
                    self._alone.setdefault(name, {})[network] = float(np.median(values))
                    continue
                steady = SteadyTime.of(values)
                if steady.spread > UNSTEADY:
                    self._refused += 1
                    continue
                place, graph = places[name], self._requested[network]
                row = Latency(self.name, network, place.family, place.core_set, place.precision, place.runtime, steady.ms, steady.std_ms)
                assert self._table is not None
                self._table.add(graph, family_of(network), row, [])
        self._together = report.together or {}

    def _crossings(self) -> dict[str, Crossing]:
        """Return link and contention between the CPU, with its most threads, and the GPU."""
        if not self._alone or not self._together:
            return {}
        host, other = self._places[0], self._places[-1]
        graphs = [handover_network(*shape) for shape in HANDOVERS]
        link = fit_link([Handover(*sizes(graph), self._alone[other.name][graph.name]) for graph in graphs])

        read = handover_network(*READ_SHAPE)

        def slowdown(graph: OpGraph) -> tuple[float, float]:
            together, alone = self._together[graph.name], self._alone
            on_host, on_other = (float(np.median(together[at.name])) / alone[at.name][graph.name] for at in (host, other))
            return on_host, on_other

        under_load = float(np.median(self._together[read.name][other.name])) / self._alone[other.name][read.name]
        return {
            other.family: Crossing(
                link, slowdown(compute_bound_network()), slowdown(memory_bound_network()), other.runtime, under_load=under_load
            )
        }

    def _write(self) -> list[str]:
        assert self._table is not None
        self._table.save()
        if self._refused:
            self._warn(f"{self._refused} times varied by more than {UNSTEADY:.0%} and were left out: other pages or the battery disturb")
        self.fits = write_profile(
            self.name, [place for place in self._places if place.precision == "fp32"], self._table, self._crossings(), self._agent
        )
        return [
            f"{item.processor}[{item.core_set}] {item.precision}: {held_out(item).networks} networks, each predicted by fits to the others: mean error {held_out(item).mape:.0%}."
            for item in self.fits
        ]
