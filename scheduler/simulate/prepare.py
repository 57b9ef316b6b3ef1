"""Bundles as networks of a simulation: their times on its device, and whether they belong together."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import msgspec

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import UsageError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.bundle.manifest import Manifest
from scheduler.placement.priority import choose_processors
from scheduler.runtime.plan import make_plan
from scheduler.simulate.arrivals import Arrivals, parse_arrivals
from scheduler.simulate.networks import Network
from scheduler.simulate.times import contention_factors, device_placements, step_times, with_times


@dataclass(frozen=True)
class ConcurrentWorkload:
    """A concurrent workload: a bundle of another user on the same processors."""

    bundle: Bundle  # The bundle.
    arrivals: Arrivals | None = None  # When its inferences are asked for; None for each as soon as the last one is over.
    written: str | None = None  # How arrivals were written.
    deadline_ms: float | None = None  # Latency allowed; None for any.


@dataclass(frozen=True)
class Other:
    """Another plan of the network."""

    name: str  # What it is called.
    bundle: Bundle  # Of this plan.


def parse_other(text: str, bundle: Bundle) -> Other:
    """A plan to change to, as it is written on the command line.

    Args:
        text: Processors of the bundle, separated by commas, to which its subgraphs move; else the folder of another bundle.
    """
    names = [word.strip() for word in text.split(",")]
    if set(names) <= {entry.processor for entry in bundle.manifest.subgraphs}:
        return Other(f"{bundle.path} on {','.join(names)}", replace(bundle, manifest=_moved(bundle.manifest, names)))
    return Other(text, load_bundle(Path(text), check_hashes=True))


def parse_workload(text: str) -> tuple[Path, Arrivals | None, str | None, float | None]:
    """A concurrent workload in the form of the command line: ``FOLDER``, ``FOLDER@ARRIVALS`` or ``FOLDER@ARRIVALS@DEADLINE``.

    Returns:
        The folder, the arrivals, how they were written, and the latency allowed, ms.
    """
    form = re.fullmatch(r"(.+?)@((?:periodic|poisson):[^@]*)(?:@(.*))?", text)
    if form is None:
        return Path(text), None, None, None
    return Path(form[1]), parse_arrivals(form[2]), form[2], None if form[3] is None else _deadline(form[3])


def _deadline(text: str) -> float:
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        raise UsageError(f"`{text}` is no deadline", "write milliseconds, as runs/other@periodic:33.3@50")
    return milliseconds


def prepare(bundle: Bundle, device: DeviceProfile, company: bool, warn: Callable[[str], None], name: str | None = None) -> Network:
    """A bundle on a device.

    Args:
        device: The device it was planned for, or another one: then all its times are those of its files by that profile.
        company: Whether other inferences run at the same time, of this bundle or others.
        warn: Told what times were not in the plan.
        name: Of the network; the bundle's folder if None.
    """
    elsewhere = device.id != bundle.manifest.device
    manifest = with_times(bundle, device, anew=elsewhere)
    untimed = [entry.name for entry in bundle.manifest.subgraphs if entry.predicted_ms is None]
    if untimed and not elsewhere:
        warn(f"the plan states no time of {', '.join(untimed)}: predicted from the bundle's files")
    times = step_times(manifest, device, contention_factors(bundle, device) if company else None)
    powers = {processor: EnergyModel(device).mj(processor, 1.0) for processor in dict.fromkeys(time.processor for time in times.values())}
    watts = {processor: power for processor, power in powers.items() if power is not None}
    return Network(name or str(bundle.path), make_plan(manifest), device_placements(manifest, device), times, watts)


def check_alternatives(bundle: Bundle, others: Sequence[Other]) -> None:
    """Refuse bundles that cannot take the place of one."""
    for other in others:
        for what, one, two in _compared(bundle.manifest, other.bundle.manifest):
            if one != two:
                raise UsageError(
                    f"{other.name} cannot take the place of {bundle.path}: its {what} is {two}, not {one}",
                    "alternatives are plans of the same network for the same device, as of `stretch branch MODEL --processors cpu,dsp`",
                )


def check_workloads(bundle: Bundle, workloads: Sequence[ConcurrentWorkload]) -> None:
    """Refuse bundles that were planned for other devices."""
    for workload in workloads:
        planned = workload.bundle.manifest.device
        if planned != bundle.manifest.device:
            raise UsageError(
                f"{workload.bundle.path} was planned for {planned}, {bundle.path} for {bundle.manifest.device}",
                "name the device to simulate them on with --device",
            )


def _moved(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The plan on some of its processors: what moves computes in the precision that the plan has there."""
    planned = {entry.processor: entry.planned_precision for entry in manifest.subgraphs}
    moved = choose_processors(manifest, names)
    entries = tuple(
        after if after.processor == before.processor else msgspec.structs.replace(after, planned_precision=planned[after.processor])
        for before, after in zip(manifest.subgraphs, moved.subgraphs, strict=True)
    )
    return msgspec.structs.replace(moved, subgraphs=entries)


def _compared(one: Manifest, two: Manifest) -> list[tuple[str, object, object]]:
    return [
        ("network", one.model.name, two.model.name),
        ("device", one.device, two.device),
        ("original's number of multiply-accumulates", one.model.original_macs, two.model.original_macs),
        ("input", _ends(one, one.inputs), _ends(two, two.inputs)),
        ("output", _ends(one, one.outputs), _ends(two, two.outputs)),
    ]


def _ends(manifest: Manifest, names: Sequence[str]) -> str:
    """Shapes of the inputs or outputs, in order."""
    shapes = {tensor.name: tensor.shape for tensor in manifest.tensors}
    return ", ".join("×".join(map(str, shapes[name])) for name in names)
