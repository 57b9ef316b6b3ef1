"""Write profiles from measurements: tables of kernels, imported times, and the files of a profile."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import tomli_w

from predictors.devices import KERNEL_KINDS
from predictors.errors import StretchError, UsageError
from predictors.files import read_bytes
from predictors.graph import OpGraph
from predictors.host import HOST
from predictors.measurements.benchncnn import NAMES, read_benchncnn
from predictors.measurements.litert import MAX_BYTES, ORDER, network_ms, read_op_profile
from predictors.measurements.networks import KERNELS, LATENCIES, NETWORKS, SOURCE, Measurements, Source, load_measurements, write_networks
from predictors.measurements.tables import KernelLatency, Latency, write_table
from predictors.models.roofline import MULTIPLIES
from predictors.system import deferred_interrupts
from scheduler.measure.steady import LinkTimes, TransferTimes


@dataclass(frozen=True)
class MeasurementTable(Measurements):
    """Measured networks and times, which grow during a run."""

    folder: Path = Path()  # Folder of the measurements.

    @classmethod
    def open(cls, folder: Path, source: Source, resume: bool) -> "MeasurementTable":
        """Return an empty table, or the table of an earlier run."""
        if not folder.exists():
            return cls(source, {}, {}, [], [], folder)
        if not resume:
            raise StretchError(f"{folder} has measurements already", "go on with them by --resume, or choose another --name or --out")
        old = load_measurements(folder)
        if old.source.notes != source.notes:
            raise StretchError(
                f"the measurements in {folder} are of another machine or other versions: {old.source.notes}",
                "measure again under another --name",
            )
        return cls(source, old.graphs, old.families, old.latencies, old.kernels, folder)

    def add(self, graph: OpGraph, family: str, latency: Latency, kernels: list[KernelLatency]) -> None:
        """Add the time of one network on one processor."""
        self.graphs[graph.name], self.families[graph.name] = graph, family
        self.latencies.append(latency)
        self.kernels.extend(kernels)

    def save(self) -> None:
        """Write the present state; a reader finds complete files, old or new, and no time without its network."""
        if not self.graphs:
            return
        with deferred_interrupts():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StretchError(f"cannot make the folder {self.folder}: {error.strerror}", "choose another with --out") from error
            _replace(self.folder / SOURCE, lambda path: path.write_text(tomli_w.dumps(msgspec.to_builtins(self.source))))
            rows = [(name, self.families[name], graph) for name, graph in self.graphs.items()]
            _replace(self.folder / NETWORKS, lambda path: write_networks(path, rows))
            if self.latencies:
                _replace(self.folder / LATENCIES, lambda path: write_table(path, self.latencies))
            if self.kernels:
                _replace(self.folder / KERNELS, lambda path: write_table(path, self.kernels))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file atomically."""
    partial = path.with_name(f".{path.name}")
    try:
        write(partial)
        os.replace(partial, path)
    except OSError as error:
        raise StretchError(f"cannot write {path}: {error.strerror}", "choose a writable folder with --out") from error
    finally:
        partial.unlink(missing_ok=True)


#: Assumed share of the peak that the fastest measured kernel reaches.
BEST = 0.9

#: Efficiency of a kernel kind without measurements.
_UNMEASURED = 0.05

#: Size of activations, bytes, that exceeds every core's caches.
_FAR = 1 << 24

_ID = re.compile(r"[A-Za-z0-9_.-]+")


class MeasuredProcessor(Protocol):
    """A measured processor with one core set."""

    @property
    def family(self) -> str:
        """Name of the processor, such as ``cpu``."""

    @property
    def core_set(self) -> str:
        """Name of the core set, such as ``1core``."""

    @property
    def cores(self) -> tuple[int, ...]:
        """CPU cores that it computes on; empty for other devices."""

    @property
    def backend(self) -> str:
        """Name of the backend's fusion rules."""

    @property
    def precision(self) -> str:
        """Precision of the networks."""

    @property
    def runs_on(self) -> str:
        """Delegate for plans with its times; empty for the default delegate."""


@dataclass(frozen=True)
class Crossing:
    """Link and contention between two processors."""

    link: LinkTimes  # Transfer times from the CPU to the other processor and back.
    contention: tuple[float, float]  # Slowdown of compute-bound kernels, on the CPU and on the other processor.
    contention_memory: tuple[float, float]  # Slowdown of memory-bound kernels.
    runtime: str  # Runtime and interface.
    reads: TransferTimes | None = None  # Transfer times with an idle queue and after a running kernel; None without a queue.
    #: Transfer time while both processors compute, relative to the idle time; None if not measured.
    under_load: float | None = None

    @property
    def resume_ms(self) -> float:
        """Additional time of the CPU's next network after the CPU waited for the other processor, ms."""
        return self.reads.resume_ms if self.reads else 0.0


def valid_id(name: str) -> bool:
    """Return whether a name is valid for a profile."""
    return bool(_ID.fullmatch(name)) and name.strip(".") != ""


def make_profile(
    name: str, machine: str, places: Sequence[MeasuredProcessor], measured: Measurements, crossings: Mapping[str, Crossing]
) -> dict[str, Any]:
    """Return the content of a profile's TOML file."""
    sources = {
        "measured": "measured by `stretch profile`: kernels inside random networks; the fits in the folder of this file have the times",
        "fastest": f"the fastest kernel of the same measurements reaches {BEST:g} of it",
        "typical": "median over the kernels of a kind in the same measurements, against the peak",
        "unmeasured": "no kernel of the kind was measured",
        "layout": "vectors of 512 bits hold 16 numbers; delegates compute that many channels at a time, or halves of it",
        "together": f"measured by `stretch profile` while both processors compute; the interval, {_TOGETHER:.0%} to both sides, is chosen",
        "fits": "not needed with fits, which contain it",
        "spread": "kernels that no fit has",
        "threads": "contained in the peak, which was measured with these cores",
    }
    for family, crossing in crossings.items():
        if crossing.under_load is not None:
            sources[f"{family}_reads"] = (
                f"exchanges take {crossing.under_load:.3g} of their idle time while both processors compute; medians"
            )
        if (reads := crossing.reads) is not None:
            idle, working = (float(np.median(ms)) for ms in (reads.idle_ms, reads.working_ms))
            sources[f"{family}_reads"] = (
                f"exchanges of {(reads.in_bytes + reads.out_bytes) / 1e6:.2g} MB by turns: {idle:.3g} ms with the idle queue, {working:.3g} ms "
                f"behind a kernel of {reads.kernel_ms:.3g} ms, from its end on; medians, the ends are 5th and 95th percentiles of both"
            )
            sources[f"{family}_resume"] = (
                f"of it {crossing.resume_ms:.3g} ms are what the next network of the cpu takes longer, after the cpu waited; median"
            )
            sources[f"{family}_feeder"] = (
                f"processor time in which the calling thread enqueues a kernel of {reads.kernel_ms:.3g} ms, over the kernel's time"
            )
    return {
        "id": name,
        "name": machine,
        "soc": machine,
        "sources": sources,
        "processors": {
            family: _processor(family, places, measured, crossings) for family in dict.fromkeys(place.family for place in places)
        },
        "links": {family: _link(family, crossing) for family, crossing in crossings.items()},
    }


def _figure(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _processor(
    family: str, places: Sequence[MeasuredProcessor], measured: Measurements, crossings: Mapping[str, Crossing]
) -> dict[str, Any]:
    family_places = [place for place in places if place.family == family]
    rows = {
        place.core_set: [row for row in measured.kernels if (row.processor, row.core_set) == (family, place.core_set)]
        for place in family_places
    }
    first = family_places[0]
    peaks = {
        place.core_set: _peak_gops(rows[place.core_set]) or _network_gops(place, measured, place.precision) or 1.0
        for place in family_places
    }
    # launch time of the fastest kernels
    launch_us = float(np.percentile([row.ms for row in rows[first.core_set]], 2)) * 1e3 if rows[first.core_set] else 0.0
    return {
        "backend": first.backend,
        "layout": "NCHW",
        "default_precision": first.precision,
        "default_core_set": first.core_set,
        "delegate": first.runs_on,
        "width_slice": _figure(16, "layout"),
        "reduce_slice": _figure(1, "layout"),
        "launch_us": _figure(launch_us, "measured"),
        "half_outputs": _figure(0, "fits"),
        "epilogue_macs": _figure(0, "fits"),
        "contention": _contention(family, crossings),
        "uncertainty": _figure(0.5, "spread"),
        **_feeder(family, crossings.get(family)),
        "efficiency": {kind: _efficiency(kind, rows[first.core_set], peaks[first.core_set]) for kind in KERNEL_KINDS},
        "core_sets": {place.core_set: _core_set(place, rows[place.core_set], peaks[place.core_set], measured) for place in family_places},
    }


#: Half-width of the interval of a contention factor, relative; factors are medians of runs in turns.
_TOGETHER = 0.1


def _contention(family: str, crossings: Mapping[str, Crossing]) -> dict[str, Any]:
    """Return the slowdown of a processor by each processor that was measured with it."""
    place, measured_with = (0, crossings) if family == HOST else (1, {HOST: crossings[family]})
    result = {}
    for other, crossing in measured_with.items():
        value, memory = (float(f"{min(max(pair[place], 0.2), 50.0):.4g}") for pair in (crossing.contention, crossing.contention_memory))
        low, high = (float(f"{value * factor:.4g}") for factor in (1 - _TOGETHER, 1 + _TOGETHER))
        result[other] = {"value": value, "low": low, "high": high, "memory": memory, "source": "together"}
    return result


def _core_set(place: MeasuredProcessor, rows: Sequence[KernelLatency], peak: float, measured: Measurements) -> dict[str, Any]:
    half = _network_gops(place, measured, "fp16") if place.precision == "fp32" else 0.0
    cores = " and ".join(f"core {core}" for core in place.cores) or "the whole device"
    small, large = _rates(rows)
    return {
        "cores": cores,
        "peak_gops": {place.precision: _figure(peak, "fastest")} | ({"fp16": _figure(half, "fastest")} if half else {}),
        "scaling": _figure(1, "threads"),
        "bandwidth_gbs": _figure(min(small, large), "fastest"),
        "cache_kib": _figure(_FAR / 1024, "fastest"),
        "cache_gbs": _figure(small, "fastest"),
    }


def _products(row: KernelLatency) -> int:
    return row.pixels * row.out_channels * row.groups * row.in_channels * row.taps


def _peak_gops(rows: Sequence[KernelLatency]) -> float:
    """Return the peak speed, 10⁹ operations per second with two per multiply-accumulate; the 99.9th percentile excludes single wrong times."""
    rates = [2 * _products(row) / row.ms / 1e6 for row in rows if row.kind in MULTIPLIES and row.ms > 0.05]
    return float(np.percentile(rates, 99.9)) / BEST if rates else 0.0


def _network_gops(place: MeasuredProcessor, measured: Measurements, precision: str) -> float:
    """Return the peak speed from the fastest whole network, 10⁹ operations per second; 0 without times."""
    rates = [
        2 * measured.graphs[row.network].macs / row.ms / 1e6
        for row in measured.latencies
        if (row.processor, row.core_set, row.precision) == (place.family, place.core_set, precision)
    ]
    return max(rates, default=0.0) / BEST


def _efficiency(kind: str, rows: Sequence[KernelLatency], peak: float) -> dict[str, Any]:
    rates = [2 * _products(row) / row.ms / 1e6 / peak for row in rows if row.kind == kind and row.ms > 0.02]
    return _figure(min(1.0, max(1e-4, float(np.median(rates)))), "typical") if rates else _figure(_UNMEASURED, "unmeasured")


def _rates(rows: Sequence[KernelLatency]) -> tuple[float, float]:
    """Return the bandwidths of caches and memory from the fastest memory-bound kernels, 10⁹ bytes per second."""
    movers = [row for row in rows if row.kind in ("elementwise", "copy", "reduce") and row.ms > 0.01]
    moved = [(4 * (row.reads + row.writes), 4 * (row.reads + row.writes) / row.ms / 1e6) for row in movers]
    small = [rate for size, rate in moved if size < _FAR]
    large = [rate for size, rate in moved if size >= _FAR]
    fastest = float(np.percentile(small, 99)) if small else 10.0
    return fastest, float(np.percentile(large, 99)) if large else fastest


def _feeder(family: str, crossing: Crossing | None) -> dict[str, Any]:
    """Return the share of the CPU for the thread that feeds a processor's queue; empty below a thousandth."""
    reads = crossing.reads if crossing else None
    return {"feeder": _figure(reads.feeding, f"{family}_feeder")} if reads and reads.feeding >= 1e-3 else {}


def _link(family: str, crossing: Crossing) -> dict[str, Any]:
    half, link = crossing.link.fixed_ms / 2, crossing.link
    ends = crossing.reads.spread(link) if crossing.reads else None
    if ends is None and crossing.under_load is not None:
        ends = (min(1.0, crossing.under_load), max(1.0, crossing.under_load))
    return {
        "runtime": crossing.runtime,
        "map_ms": _figure(half, "measured"),
        "unmap_ms": _figure(0, "measured"),
        "sync_ms": _figure(half + crossing.resume_ms, f"{family}_resume" if crossing.reads else "measured"),
        "convert_gbs": _figure(link.to_gbs, "measured"),
        "convert_back_gbs": _figure(link.back_gbs, "measured"),
        **({"spread": {"value": [float(f"{end:.4g}") for end in ends], "source": f"{family}_reads"}} if ends else {}),
    }


#: Returns the graph of a model of `stretch list models`.
Capture = Callable[[str], OpGraph]

_PROCESSOR = re.compile(r"([a-z]+)\[([A-Za-z0-9]+)\]")
_PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class MeasurementTarget:
    """Device, processor and runtime of imported measurements."""

    device: str  # Name of the device.
    processor: str  # Name of the processor with its core set, such as ``cpu[1large]``.
    precision: str | None  # Precision, such as ``fp32``; the file's if None.
    runtime: str  # Runtime and version; the tool's own if empty.

    def row(self, network: str, tool: str, precision: str, ms: float) -> Latency:
        """Return the row of a network's time, ms."""
        if not valid_id(self.device):
            raise UsageError(f"`{self.device}` cannot be the name of a device", "use letters, digits, `_`, `.` and `-`")
        match = _PROCESSOR.fullmatch(self.processor)
        if match is None:
            raise UsageError(f"`{self.processor}` is no processor with its core set", "write it as in a profile: cpu[1large], gpu[all]")
        if precision not in _PRECISIONS:
            raise UsageError(f"`{precision}` is no precision", f"choose {', '.join(_PRECISIONS)}")
        return Latency(self.device, network, match[1], match[2], precision, self.runtime or tool, ms)


def ingest(file: Path, model: str | None, target: MeasurementTarget, out: Path, capture: Capture) -> list[Latency]:
    """Import times into a device's folder of measurements, which is created if missing, and return the new rows.

    Args:
        model: Name of the network of a `benchmark_model` file; None for `benchncnn`, whose output names the networks.
        out: Parent folder of ``<device>.measurements``.
    """
    profiled = ORDER.encode() in read_bytes(file, "measurements", MAX_BYTES)
    if profiled and model is None:
        raise UsageError(f"{file} does not say which network it is of", "name it with --model, as resnet18")
    if not profiled and model is not None:
        raise UsageError("--model is for files of benchmark_model; benchncnn names its networks itself", "leave it out")
    if profiled:
        rows = [target.row(str(model), "benchmark_model", target.precision or "fp32", network_ms(read_op_profile(file)))]
    else:
        rows = _ncnn(file, target)
    folder = out / f"{target.device}.measurements"
    table = MeasurementTable.open(folder, external_source(target.device), resume=True)
    measured = {_place(row) for row in table.latencies}
    for row in rows:
        if _place(row) in measured:
            raise StretchError(
                f"{folder} has a time of {row.network} on {target.processor} already", "give another --runtime, or another --name"
            )
    for row in rows:
        graph = table.graphs.get(row.network) or replace(capture(row.network), name=row.network)
        table.add(graph, family_of(row.network), row, [])
    table.save()
    return rows


def _place(row: Latency) -> tuple[str, ...]:
    return row.network, row.processor, row.core_set, row.precision, row.runtime


def external_source(device: str) -> Source:
    """Return the source record for imported measurements of a device, which share one folder."""
    return Source(
        f"networks on {device}, timed by the tools of their runtimes", "", "", "CC0-1.0", "times as the tools of their runtimes report them"
    )


def family_of(model: str) -> str:
    """Return the family of a network, the first letters of its name: ``resnet`` for ``resnet18``."""
    match = re.match(r"[a-z]+", model.rpartition(":")[2])
    return match[0] if match else model


def _ncnn(file: Path, target: MeasurementTarget) -> list[Latency]:
    runs, _ = read_benchncnn(file)
    known_runs = [run for run in runs if run.name in NAMES]
    if not known_runs:
        names = ", ".join(sorted(NAMES))
        raise StretchError(f"{file} has none of the networks that are known here", f"those of benchncnn that are: {names}")
    rows = [
        target.row(NAMES[run.name], "ncnn", run.precision if run.precision == "int8" else target.precision or run.precision, run.avg_ms)
        for run in known_runs
    ]
    matching = [row for row in rows if target.precision is None or row.precision == target.precision]
    if not matching:
        raise StretchError(f"{file} has no network in {target.precision}")
    return matching
