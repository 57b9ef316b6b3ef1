"""A device profile from measurements: what the roofline needs where no fit speaks, links, contention, and where each number is from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.devices import KERNEL_KINDS
from predictors.host import HOST
from predictors.measurements.tables import KernelLatency
from predictors.models.roofline import MULTIPLIES
from scheduler.measure.links import LinkTimes
from stretch.profiling.places import Place

#: No kernel is believed to come nearer to the peak than this share of it: the fastest one measured defines it.
BEST = 0.9

#: Of a kernel kind nobody measured.
_UNMEASURED = 0.05

#: Bytes from which on a kernel's activations are not in any cache of a core.
_FAR = 1 << 24

_ID = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Crossing:
    """What two processors are to each other."""

    link: LinkTimes  # Hand-over from the CPU to the other and back.
    contention: tuple[float, float]  # Factors on kernels that compute: the CPU's, the other's.
    contention_memory: tuple[float, float]  # Factors on kernels that move memory.
    runtime: str  # Runtime and interface.


def valid_id(name: str) -> bool:
    """Whether a name may be that of a profile."""
    return bool(_ID.fullmatch(name)) and name.strip(".") != ""


def make_profile(
    name: str, machine: str, places: Sequence[Place], kernels: Sequence[KernelLatency], crossings: Mapping[str, Crossing]
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
    return {
        "id": name,
        "name": machine,
        "soc": machine,
        "sources": sources,
        "processors": {family: _processor(family, places, kernels, crossings) for family in dict.fromkeys(each.family for each in places)},
        "links": {family: _link(each) for family, each in crossings.items()},
    }


def _is(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _processor(family: str, places: Sequence[Place], kernels: Sequence[KernelLatency], crossings: Mapping[str, Crossing]) -> dict[str, Any]:
    own = [each for each in places if each.family == family]
    rows = {each.core_set: [row for row in kernels if (row.processor, row.core_set) == (family, each.core_set)] for each in own}
    first = own[0]
    peaks = {each.core_set: _peak_gops(rows[each.core_set]) for each in own}
    computing, moving = _contention(family, crossings)
    return {
        "backend": first.backend,
        "layout": "NCHW",
        "default_precision": "fp32",
        "default_core_set": first.core_set,
        "width_slice": _is(16, "layout"),
        "reduce_slice": _is(1, "layout"),
        "launch_us": _is(_launch_us(rows[first.core_set]), "measured"),
        "half_outputs": _is(0, "fits"),
        "epilogue_macs": _is(0, "fits"),
        "contention": _is(computing, "measured"),
        "contention_memory": _is(moving, "measured"),
        "uncertainty": _is(0.5, "spread"),
        "efficiency": {kind: _efficiency(kind, rows[first.core_set], peaks[first.core_set]) for kind in KERNEL_KINDS},
        "core_sets": {each.core_set: _core_set(each, rows[each.core_set], peaks[each.core_set]) for each in own},
    }


def _contention(family: str, crossings: Mapping[str, Crossing]) -> tuple[float, float]:
    """Worst factors of a processor beside any other."""
    if family == HOST:
        pairs = [(each.contention[0], each.contention_memory[0]) for each in crossings.values()]
    else:
        pairs = [(crossings[family].contention[1], crossings[family].contention_memory[1])]
    return max((pair[0] for pair in pairs), default=1.0), max((pair[1] for pair in pairs), default=1.0)


def _core_set(place: Place, rows: Sequence[KernelLatency], peak: float) -> dict[str, Any]:
    cores = " and ".join(f"core {core}" for core in place.cores) or "the whole device"
    near, far = _rates(rows)
    return {
        "cores": cores,
        "peak_gops": {"fp32": _is(peak, "fastest")},
        "scaling": _is(1, "threads"),
        "bandwidth_gbs": _is(min(near, far), "fastest"),
        "cache_kib": _is(_FAR / 1024, "fastest"),
        "cache_gbs": _is(near, "fastest"),
    }


def _products(row: KernelLatency) -> int:
    return row.pixels * row.out_channels * row.groups * row.in_channels * row.taps


def _peak_gops(rows: Sequence[KernelLatency]) -> float:
    """Two operations a multiply-accumulate; the 99.9th percentile stands for the fastest, as single times may be wrong."""
    rates = [2 * _products(row) / row.ms / 1e6 for row in rows if row.kind in MULTIPLIES and row.ms > 0.05]
    return float(np.percentile(rates, 99.9)) / BEST if rates else 1.0


def _efficiency(kind: str, rows: Sequence[KernelLatency], peak: float) -> dict[str, Any]:
    rates = [2 * _products(row) / row.ms / 1e6 / peak for row in rows if row.kind == kind and row.ms > 0.02]
    return _is(min(1.0, max(1e-4, float(np.median(rates)))), "typical") if rates else _is(_UNMEASURED, "unmeasured")


def _launch_us(rows: Sequence[KernelLatency]) -> float:
    """What the quickest kernels take, µs."""
    return float(np.percentile([row.ms for row in rows], 2)) * 1e3 if rows else 0.0


def _rates(rows: Sequence[KernelLatency]) -> tuple[float, float]:
    """Rates of the quickest movers of elements from caches and from memory, 10⁹ bytes a second."""
    movers = [row for row in rows if row.kind in ("elementwise", "copy", "reduce") and row.ms > 0.01]
    moved = [(4 * (row.reads + row.writes), 4 * (row.reads + row.writes) / row.ms / 1e6) for row in movers]
    near = [rate for size, rate in moved if size < _FAR]
    far = [rate for size, rate in moved if size >= _FAR]
    fastest = float(np.percentile(near, 99)) if near else 10.0
    return fastest, float(np.percentile(far, 99)) if far else fastest


def _link(crossing: Crossing) -> dict[str, Any]:
    half = crossing.link.fixed_ms / 2
    return {
        "runtime": crossing.runtime,
        "map_ms": _is(half, "measured"),
        "unmap_ms": _is(0, "measured"),
        "sync_ms": _is(half, "measured"),
        "convert_gbs": _is(crossing.link.to_gbs, "measured"),
        "convert_back_gbs": _is(crossing.link.back_gbs, "measured"),
    }
