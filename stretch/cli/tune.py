"""`stretch tune`: quicker schedules and work-groups for the OpenCL kernels of a bundle, kept for later runs."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.bundle import Bundle
    from scheduler.delegates.opencl import OpenCLDelegate
    from scheduler.delegates.opencl.compiled import OpenCLCompiled
    from scheduler.manifest import SubgraphEntry


#: Turns in which a subgraph is measured before and after tuning.
TURNS = 7


class Mode(StrEnum):
    """What is tuned, and how thoroughly."""

    fast = "fast"
    exhaustive = "exhaustive"
    schedule = "schedule"


@verb
def tune(
    out: Output,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    mode: Annotated[
        Mode,
        typer.Option(help="fast: one work-group by formula a kernel; exhaustive: every work-group; schedule: tiles of the convolutions."),
    ] = Mode.schedule,
    budget: Annotated[
        float,
        typer.Option(
            help="Seconds after which no further kernel is begun; an interruption (Ctrl-C) keeps what was found, too.", min=1.0, max=1e6
        ),
    ] = 120.0,
    mapping: Annotated[
        list[str] | None, typer.Option("--map", help="Where a processor runs here, as gpu=opencl1; repeat or separate by commas.")
    ] = None,
) -> None:
    """Tune the kernels of the subgraphs that run on OpenCL, and keep what was found for this device and driver."""
    from predictors.errors import UsageError
    from scheduler.bundle import load_bundle
    from scheduler.delegates import OpenCLDelegate
    from scheduler.mapping import bundle_precisions, parse_mapping, place_processors

    loaded = load_bundle(bundle, check_hashes=True)
    used = list(dict.fromkeys(entry.processor for entry in loaded.manifest.subgraphs))
    placements = place_processors(used, parse_mapping(mapping or []), precisions=bundle_precisions(loaded.manifest))
    chosen = [entry for entry in loaded.manifest.subgraphs if placements[entry.processor].delegate == "opencl"]
    if not chosen:
        where = ", ".join(f"{name} on {place.delegate}" for name, place in placements.items())
        raise UsageError(f"no subgraph of {bundle} runs on OpenCL here ({where})", "map a processor to it, as --map gpu=opencl")
    files = [(entry, OpenCLDelegate.create(placements[entry.processor].cores).in_precision(entry.precision)) for entry in chosen]
    before = _built(loaded, files)
    end = time.monotonic() + budget
    choices: dict[tuple[str, str], Any] = {}
    with out.progress("tuning", total=sum(_steps(compiled, mode) for compiled in before.values())) as bar:

        def step(kernel: str) -> None:
            bar(f"{kernel}, {max(0.0, end - time.monotonic()):.0f} s left")

        for entry, delegate in files:
            file = loaded.file(entry.file)
            left = max(0.0, end - time.monotonic())
            if mode is Mode.schedule:
                for each in delegate.tune(file, left, step):
                    choices[each.kernel, each.shape] = dict(each.choice)
            else:
                for group in delegate.tune_groups(file, mode.value, left, step):
                    choices[group.launch.kernel, group.launch.shape] = None if group.local is None else {"local": list(group.local)}
    if time.monotonic() > end:
        out.warn(f"the budget of {budget:g} s was spent before every kernel was measured; run it again to go on")
    after = _built(loaded, files)
    kernels = [
        _row(entry, old, new, choices, delegate.item_bytes)
        for entry, delegate in files
        for old, new in _pairs(*_times(before[entry.name], after[entry.name]))
    ]
    totals = [sum(row[key] or 0.0 for row in kernels) for key in ("before_ms", "after_ms")]
    data: dict[str, Any] = {
        "bundle": bundle,
        "device": _device(placements[chosen[0].processor].cores),
        "mode": mode.value,
        "source": "measured",
        "before_ms": totals[0],
        "after_ms": totals[1],
        "kernels": kernels,
        "warnings": out.warnings,
    }
    out.emit(data, lambda console: _print(console, data))


def _built(bundle: "Bundle", files: "list[tuple[SubgraphEntry, OpenCLDelegate]]") -> "dict[str, OpenCLCompiled]":
    """Each subgraph as it would run now."""
    return {entry.name: delegate.build(bundle.file(entry.file)) for entry, delegate in files}


def _steps(compiled: "OpenCLCompiled", mode: Mode) -> int:
    """Steps in which a subgraph is tuned: launches, or convolutions where their schedules are tuned."""
    from scheduler.delegates.opencl.workgroups import CONVOLUTIONS

    if mode is not Mode.schedule:
        return len(compiled.launches)
    return len({launch.node for launch in compiled.launches if launch.kernel in CONVOLUTIONS})


def _times(before: "OpenCLCompiled", after: "OpenCLCompiled") -> tuple[list[Any], list[Any]]:
    """The least time of each launch before and after tuning, both measured in turns."""
    found: list[list[Any]] = [before.profile(1), after.profile(1)]
    for _ in range(TURNS):
        for i, compiled in enumerate((before, after)):
            found[i] = [min(one, other, key=lambda each: each.ms) for one, other in zip(found[i], compiled.profile(1), strict=True)]
    return found[0], found[1]


def _pairs(before: list[Any], after: list[Any]) -> list[tuple[Any, Any]]:
    """Launches of the same node before and after; another algorithm has other launches, whose times stand for the node."""
    found: list[tuple[Any, Any]] = []
    nodes = list(dict.fromkeys([one.launch.node for one in before] + [one.launch.node for one in after]))
    for node in nodes:
        old, new = ([one for one in rows if one.launch.node == node] for rows in (before, after))
        if [one.launch.kernel for one in old] == [one.launch.kernel for one in new]:
            found += zip(old, new, strict=True)
        else:
            found += [(one, None) for one in old] + [(None, one) for one in new]
    return found


def _row(entry: "SubgraphEntry", old: Any, new: Any, choices: dict[tuple[str, str], Any], item_bytes: int) -> dict[str, Any]:
    from scheduler.delegates.opencl.tuner import tuned_key

    launch = (new or old).launch
    return {
        "name": launch.node,
        "subgraph": entry.name,
        "kernel": launch.kernel,
        "shape": launch.shape,
        "macs": launch.macs,
        "bytes": launch.traffic(item_bytes),
        "precision": "fp16" if item_bytes == 2 else "fp32",
        "before_ms": None if old is None else old.ms,
        "after_ms": None if new is None else new.ms,
        "choice": choices.get(tuned_key(launch)),
    }


def _device(cores: tuple[int, ...]) -> str:
    from scheduler.delegates.opencl.device import open_device

    device = open_device(cores)
    return f"{device.name}, {device.driver}"


def _print(console: "Console", data: dict[str, Any]) -> None:
    from rich.table import Table

    console.print(f"{data['device']}, mode {data['mode']}")
    table = Table(box=None, pad_edge=False)
    for title in ("kernel", "shape", "choice"):
        table.add_column(title)
    for title in ("before ms", "after ms"):
        table.add_column(title, justify="right")
    for row in sorted(data["kernels"], key=lambda row: -(row["after_ms"] or 0.0))[:30]:
        choice = "" if not row["choice"] else " ".join(f"{key}={value}" for key, value in row["choice"].items())
        table.add_row(row["kernel"], row["shape"], choice, *("" if row[k] is None else f"{row[k]:.3f}" for k in ("before_ms", "after_ms")))
    console.print(table)
    if len(data["kernels"]) > 30:
        console.print(f"… and {len(data['kernels']) - 30} more; --json has them all")
    console.print(f"all kernels: {data['before_ms']:.2f} ms before, {data['after_ms']:.2f} ms after")
