"""Device profile from measurements: parameters of the roofline for kernels without a fit, links, contention, and all sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from predictors.devices import KERNEL_KINDS
from predictors.host import HOST
from predictors.measurements.networks import Measurements
from predictors.measurements.tables import KernelLatency
from predictors.models.roofline import MULTIPLIES
from scheduler.measure.steady import LinkTimes, Reads

#: Share of the peak that the fastest measured kernel is assumed to reach.
BEST = 0.9

#: Efficiency of a kernel kind without measurements.
_UNMEASURED = 0.05

#: Size of activations, in bytes, above which no core's cache holds them.
_FAR = 1 << 24

_ID = re.compile(r"[A-Za-z0-9_.-]+")


class MeasuredPlace(Protocol):
    """A processor with one core set, whose kernels or networks were timed."""

    @property
    def family(self) -> str:
        """Such as ``cpu``."""

    @property
    def core_set(self) -> str:
        """Such as ``1core``."""

    @property
    def cores(self) -> tuple[int, ...]:
        """CPU cores that it computes on; empty for other devices."""

    @property
    def backend(self) -> str:
        """Its fusion rules."""


@dataclass(frozen=True)
class Crossing:
    """Link and contention between two processors."""

    link: LinkTimes  # Transfer from the CPU to the other processor and back.
    contention: tuple[float, float]  # Slowdown of compute-bound kernels: on the CPU, on the other.
    contention_memory: tuple[float, float]  # Slowdown of memory-bound kernels.
    runtime: str  # Runtime and interface.
    reads: Reads | None = None  # Exchanges with an idle queue and behind a running kernel; None where the processor has no queue.
    #: Time of an exchange while both processors compute over that of one alone; None where that was not measured.
    under_load: float | None = None


def valid_id(name: str) -> bool:
    """Whether a name is valid for a profile."""
    return bool(_ID.fullmatch(name)) and name.strip(".") != ""


def make_profile(
    name: str, machine: str, places: Sequence[MeasuredPlace], measured: Measurements, crossings: Mapping[str, Crossing]
) -> dict[str, Any]:
    """The tables of a profile's TOML file."""
    sources = {
        "measured": "measured by `stretch profile`: kernels inside random networks; the fits beside this file have the times",
        "fastest": f"the fastest kernel of the same measurements reaches {BEST:g} of it",
        "typical": "median over the kernels of a kind in the same measurements, against the peak",
        "unmeasured": "no kernel of the kind was measured",
        "layout": "vectors of 512 bits hold 16 numbers; delegates compute that many channels at a time, or halves of it",
        "fits": "not needed beside fits, in which it is contained",
        "spread": "kernels that no fit has",
        "threads": "contained in the peak, which was measured with these cores",
    }
    for family, crossing in crossings.items():
        if crossing.under_load is not None:
            sources[f"{family}_reads"] = f"exchanges take {crossing.under_load:.3g} times as long while both processors compute; medians"
        if (reads := crossing.reads) is not None:
            idle, working = (float(np.median(ms)) for ms in (reads.idle_ms, reads.working_ms))
            sources[f"{family}_reads"] = (
                f"exchanges of {(reads.in_bytes + reads.out_bytes) / 1e6:.2g} MB by turns: {idle:.3g} ms with the idle queue, {working:.3g} ms "
                f"behind a kernel of {reads.kernel_ms:.3g} ms, from its end on; medians, the ends hold nine in ten of both"
            )
            sources[f"{family}_feeder"] = (
                f"processor time of the calling thread while a kernel of {reads.kernel_ms:.3g} ms runs, over wall time"
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


def _is(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _processor(family: str, places: Sequence[MeasuredPlace], measured: Measurements, crossings: Mapping[str, Crossing]) -> dict[str, Any]:
    family_places = [place for place in places if place.family == family]
    rows = {
        place.core_set: [row for row in measured.kernels if (row.processor, row.core_set) == (family, place.core_set)]
        for place in family_places
    }
    first = family_places[0]
    peaks = {place.core_set: _peak_gops(rows[place.core_set]) or _network_gops(place, measured, "fp32") or 1.0 for place in family_places}
    computing, moving = _contention(family, crossings)
    # that of the fastest kernels
    launch_us = float(np.percentile([row.ms for row in rows[first.core_set]], 2)) * 1e3 if rows[first.core_set] else 0.0
    return {
        "backend": first.backend,
        "layout": "NCHW",
        "default_precision": "fp32",
        "default_core_set": first.core_set,
        "width_slice": _is(16, "layout"),
        "reduce_slice": _is(1, "layout"),
        "launch_us": _is(launch_us, "measured"),
        "half_outputs": _is(0, "fits"),
        "epilogue_macs": _is(0, "fits"),
        "contention": _is(computing, "measured"),
        "contention_memory": _is(moving, "measured"),
        "uncertainty": _is(0.5, "spread"),
        **_feeder(family, crossings.get(family)),
        "efficiency": {kind: _efficiency(kind, rows[first.core_set], peaks[first.core_set]) for kind in KERNEL_KINDS},
        "core_sets": {place.core_set: _core_set(place, rows[place.core_set], peaks[place.core_set], measured) for place in family_places},
    }


def _contention(family: str, crossings: Mapping[str, Crossing]) -> tuple[float, float]:
    """Largest slowdown of a processor by any other."""
    if family == HOST:
        pairs = [(crossing.contention[0], crossing.contention_memory[0]) for crossing in crossings.values()]
    else:
        pairs = [(crossings[family].contention[1], crossings[family].contention_memory[1])]
    return max((pair[0] for pair in pairs), default=1.0), max((pair[1] for pair in pairs), default=1.0)


def _core_set(place: MeasuredPlace, rows: Sequence[KernelLatency], peak: float, measured: Measurements) -> dict[str, Any]:
    half = _network_gops(place, measured, "fp16")
    cores = " and ".join(f"core {core}" for core in place.cores) or "the whole device"
    near, far = _rates(rows)
    return {
        "cores": cores,
        "peak_gops": {"fp32": _is(peak, "fastest")} | ({"fp16": _is(half, "fastest")} if half else {}),
        "scaling": _is(1, "threads"),
        "bandwidth_gbs": _is(min(near, far), "fastest"),
        "cache_kib": _is(_FAR / 1024, "fastest"),
        "cache_gbs": _is(near, "fastest"),
    }


def _products(row: KernelLatency) -> int:
    return row.pixels * row.out_channels * row.groups * row.in_channels * row.taps


def _peak_gops(rows: Sequence[KernelLatency]) -> float:
    """Peak with two operations per multiply-accumulate; the 99.9th percentile excludes single wrong times."""
    rates = [2 * _products(row) / row.ms / 1e6 for row in rows if row.kind in MULTIPLIES and row.ms > 0.05]
    return float(np.percentile(rates, 99.9)) / BEST if rates else 0.0


def _network_gops(place: MeasuredPlace, measured: Measurements, precision: str) -> float:
    """What the fastest whole network reaches, where no kernel was timed; 0 where none was."""
    rates = [
        2 * measured.graphs[row.network].macs / row.ms / 1e6
        for row in measured.latencies
        if (row.processor, row.core_set, row.precision) == (place.family, place.core_set, precision)
    ]
    return max(rates, default=0.0) / BEST


def _efficiency(kind: str, rows: Sequence[KernelLatency], peak: float) -> dict[str, Any]:
    rates = [2 * _products(row) / row.ms / 1e6 / peak for row in rows if row.kind == kind and row.ms > 0.02]
    return _is(min(1.0, max(1e-4, float(np.median(rates)))), "typical") if rates else _is(_UNMEASURED, "unmeasured")


def _rates(rows: Sequence[KernelLatency]) -> tuple[float, float]:
    """Bandwidths of caches and memory from the fastest memory-bound kernels, 10⁹ bytes per second."""
    movers = [row for row in rows if row.kind in ("elementwise", "copy", "reduce") and row.ms > 0.01]
    moved = [(4 * (row.reads + row.writes), 4 * (row.reads + row.writes) / row.ms / 1e6) for row in movers]
    near = [rate for size, rate in moved if size < _FAR]
    far = [rate for size, rate in moved if size >= _FAR]
    fastest = float(np.percentile(near, 99)) if near else 10.0
    return fastest, float(np.percentile(far, 99)) if far else fastest


def _feeder(family: str, crossing: Crossing | None) -> dict[str, Any]:
    """What the thread takes of the CPU that feeds a processor with a queue; one that takes less than a thousandth takes nothing."""
    reads = crossing.reads if crossing else None
    return {"feeder": _is(reads.feeding, f"{family}_feeder")} if reads and reads.feeding >= 1e-3 else {}


def _link(family: str, crossing: Crossing) -> dict[str, Any]:
    half, link = crossing.link.fixed_ms / 2, crossing.link
    ends = crossing.reads.spread(link) if crossing.reads else None
    if ends is None and crossing.under_load is not None:
        ends = (min(1.0, crossing.under_load), max(1.0, crossing.under_load))
    return {
        "runtime": crossing.runtime,
        "map_ms": _is(half, "measured"),
        "unmap_ms": _is(0, "measured"),
        "sync_ms": _is(half, "measured"),
        "convert_gbs": _is(link.to_gbs, "measured"),
        "convert_back_gbs": _is(link.back_gbs, "measured"),
        **({"spread": {"value": [float(f"{end:.4g}") for end in ends], "source": f"{family}_reads"}} if ends else {}),
    }
