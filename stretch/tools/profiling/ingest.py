"""Import of times from other tools, mainly of phones, into a folder of measurements for `stretch profile --fit`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from predictors.errors import StretchError, UsageError
from predictors.files import read_bytes
from predictors.graph import OpGraph
from predictors.measurements.benchncnn import NAMES, read_benchncnn
from predictors.measurements.litert import MAX_BYTES, ORDER, network_ms, read_op_profile
from predictors.measurements.networks import Source
from predictors.measurements.tables import Latency
from stretch.tools.profiling.table import Table
from stretch.tools.profiling.writing import valid_id

#: Captures a model of `stretch list models`.
Capture = Callable[[str], OpGraph]

_PROCESSOR = re.compile(r"([a-z]+)\[([A-Za-z0-9]+)\]")
_PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Where:
    """What ran the networks."""

    device: str  # Name of the device.
    processor: str  # With its core set, as ``cpu[1large]``.
    precision: str | None  # Such as ``fp32``; None for what the file says.
    runtime: str  # Runtime and version; empty for the tool's own.

    def row(self, network: str, tool: str, precision: str, ms: float) -> Latency:
        """A time of a network."""
        if not valid_id(self.device):
            raise UsageError(f"`{self.device}` cannot be the name of a device", "use letters, digits, `_`, `.` and `-`")
        match = _PROCESSOR.fullmatch(self.processor)
        if match is None:
            raise UsageError(f"`{self.processor}` is no processor with its core set", "write it as in a profile: cpu[1large], gpu[all]")
        if precision not in _PRECISIONS:
            raise UsageError(f"`{precision}` is no precision", f"choose {', '.join(_PRECISIONS)}")
        return Latency(self.device, network, match[1], match[2], precision, self.runtime or tool, ms)


def ingest(file: Path, model: str | None, where: Where, out: Path, capture: Capture) -> list[Latency]:
    """Add times to a device's folder of measurements, which is created if missing.

    Args:
        model: The network of a `benchmark_model` file; None for `benchncnn`, whose output names the networks.
        out: Parent folder of ``<device>.measurements``.
    """
    profiled = ORDER.encode() in read_bytes(file, "measurements", MAX_BYTES)
    if profiled and model is None:
        raise UsageError(f"{file} does not say which network it is of", "name it with --model, as resnet18")
    if not profiled and model is not None:
        raise UsageError("--model is for files of benchmark_model; benchncnn names its networks itself", "leave it out")
    if profiled:
        rows = [where.row(str(model), "benchmark_model", where.precision or "fp32", network_ms(read_op_profile(file)))]
    else:
        rows = _ncnn(file, where)
    folder = out / f"{where.device}.measurements"
    table = Table.open(folder, brought_in(where.device), resume=True)
    known = {_place(row) for row in table.latencies}
    for row in rows:
        if _place(row) in known:
            raise StretchError(
                f"{folder} has a time of {row.network} on {where.processor} already", "give another --runtime, or another --name"
            )
    for row in rows:
        graph = table.graphs.get(row.network) or replace(capture(row.network), name=row.network)
        table.add(graph, family_of(row.network), row, [])
    table.save()
    return rows


def _place(row: Latency) -> tuple[str, ...]:
    return row.network, row.processor, row.core_set, row.precision, row.runtime


def brought_in(device: str) -> Source:
    """Source of imported measurements of a device, which are all in one folder."""
    return Source(
        f"networks on {device}, timed by the tools of their runtimes", "", "", "CC0-1.0", "times as the tools of their runtimes tell them"
    )


def family_of(model: str) -> str:
    """Family of a network, the letters at the beginning of its name: ``resnet`` of ``resnet18``."""
    match = re.match(r"[a-z]+", model.rpartition(":")[2])
    return match[0] if match else model


def _ncnn(file: Path, where: Where) -> list[Latency]:
    runs, _ = read_benchncnn(file)
    known_runs = [run for run in runs if run.name in NAMES]
    if not known_runs:
        names = ", ".join(sorted(NAMES))
        raise StretchError(f"{file} has none of the networks that are known here", f"those of benchncnn that are: {names}")
    rows = [
        where.row(NAMES[run.name], "ncnn", run.precision if run.precision == "int8" else where.precision or run.precision, run.avg_ms)
        for run in known_runs
    ]
    wanted = [row for row in rows if where.precision is None or row.precision == where.precision]
    if not wanted:
        raise StretchError(f"{file} has no network in {where.precision}")
    return wanted
