"""Choice of this machine's cores and delegates for a device's processors, and of the processor that runs each subgraph.

Paper 003, section 6.2: the scheduler follows the processor that an operator has as an attribute, unless that
processor is not available or the user prefers low energy.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Literal

import msgspec

from predictors.errors import MissingBackendError, UsageError
from predictors.host import HOST, host_among, is_host, kind_of
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.cores import available_cores, little_core
from scheduler.delegates import Delegate, delegates, get_delegate, load_plugins, origin
from scheduler.placement.place import Dispatch, Placement


def drivers(kind: str) -> list[tuple[str, type[Delegate]]]:
    """Return names and classes of the delegates that drive a kind of processor, including plug-ins, sorted by name."""
    _load_plugins_once()
    return [(name, delegates.get(name)) for name in delegates if kind in delegates.get(name).drives]


def first_driver(available: Iterable[str]) -> str | None:
    """Return the delegate that drives a processor: the first preferred one of those available, else the first, or None.

    Names after a preferred one are not read, so `available` may be a generator.
    """
    first = None
    for name in available:
        if delegates.get(name).preferred():
            return name
        first = first or name
    return first


@cache
def _load_plugins_once() -> None:
    """Load plug-ins once; `stretch list delegates` reports those that fail."""
    load_plugins()


def is_integer_only(processor: str) -> bool:
    """Return whether a processor has no floating point: every delegate that drives it runs only int8."""
    precisions_of_drivers = [set(delegate.precisions) for _, delegate in drivers(kind_of(processor))]
    return bool(precisions_of_drivers) and all(precisions == {"int8"} for precisions in precisions_of_drivers)


def device_dispatch(processor: str) -> Dispatch:
    """Return how a processor gets work on its device (paper 003, section 6.2): a CPU on the calling thread, others as their delegates do."""
    if is_host(processor):
        return "inline"
    return "async" if any(delegate.asynchronous for _, delegate in drivers(kind_of(processor))) else "blocking"


def host_of(manifest: Manifest) -> str:
    """Return the processor that joins branches and computes in floating point."""
    return manifest.joins[0].processor if manifest.joins else HOST


#: Names of the delegates that may drive a processor without a mapping, separated by commas; all if not set.
DRIVERS_VARIABLE = "NN_STRETCH_DRIVERS"

_TARGET = re.compile(r"(?P<delegate>[A-Za-z][A-Za-z_:]*?)(?P<cores>\d+(?:\+\d+)*)?")


def parse_mapping(entries: Sequence[str]) -> dict[str, str]:
    """Return a mapping from its form on the command line, ``gpu=cpu1`` or ``gpu=cpu1,dsp=cpu1``."""
    mapping: dict[str, str] = {}
    for entry in (part.strip() for text in entries for part in text.split(",")):
        processor, equals, target = (part.strip() for part in entry.partition("="))
        if not (processor and equals and target):
            raise UsageError(f"`{entry}` is no mapping", "write it as gpu=cpu1: the processor, `=`, a delegate and its core")
        if processor in mapping:
            raise UsageError(f"processor `{processor}` is mapped twice")
        mapping[processor] = target
    return mapping


def place_processors(
    processors: Sequence[str],
    mapping: Mapping[str, str] | None = None,
    cores: Sequence[int] | None = None,
    precisions: Mapping[str, Collection[str]] | None = None,
    little_cores: Sequence[int] = (),
    planned: Mapping[str, str] | None = None,
) -> dict[str, Placement]:
    """Return the placement of each processor of a bundle on this machine.

    By default the first CPU runs on the calling thread and gets as many cores as
    its core set has, such as 4 for ``cpu[1large3med]``; a CPU without a named core
    set gets all cores that no other processor needs, or one core if cores replace
    other processors. Every other processor gets one core: for its replacement,
    for its own thread, or for the thread that feeds it. If there are too few cores,
    the last one is shared, one subgraph at a time. A processor with a delegate runs
    on that delegate if the delegate is available and supports the precisions of the
    subgraphs; the delegate of the plan has priority.

    Args:
        mapping: Target of some processors, such as ``{"gpu": "cpu1"}``: a
            delegate's name, followed by cores as ``0`` or ``0+1``, or by nothing.
        cores: Cores to use; those of this process if None.
        precisions: Precisions of each processor's subgraphs; fp32 by default.
        planned: Delegates that measured the processors for the plan.
    """
    cores = tuple(available_cores() if cores is None else cores)
    mapping = dict(mapping or {})
    for name in mapping:
        if name not in processors:
            raise UsageError(f"processor `{name}` is mapped, but the bundle does not use it", f"the bundle uses {', '.join(processors)}")
    host = host_among(processors)
    targets = {processor: _target(processor, text, cores) for processor, text in mapping.items()}
    core_pool = _CorePool(cores, {core for _, chosen in targets.values() for core in chosen}, host is not None)
    precisions_of = {name: (precisions or {}).get(name, ("fp32",)) for name in processors}
    drivers_of = {name: _driver(name, precisions_of[name], (planned or {}).get(name)) for name in processors if name not in targets}
    placed: dict[str, Placement] = {}
    for processor in sorted(processors, key=lambda p: p != host):
        if processor in targets:
            placed[processor] = _placement(processor, *targets[processor], f"mapped to {mapping[processor]}")
        elif processor == host:
            asynchronous_count = sum(not chosen for _, chosen in targets.values())
            others = [name for name in processors if name != host and name not in targets]
            stand_in = any(_computes_on_core(drivers_of[name][0]) for name in others)
            placed[processor] = _host_placement(processor, core_pool, asynchronous_count + len(others), stand_in, *drivers_of[processor])
        else:
            placed[processor] = _default_placement(processor, core_pool, *drivers_of[processor], little_cores)
    placed = _set_dispatch(placed, host)
    return {processor: placed[processor] for processor in processors}


def target_placement(processor: str, target: str, queues: Mapping[str, Dispatch]) -> Placement:
    """Return the placement for a target, with the dispatch of an existing queue if it uses one."""
    place = _placement(processor, *_target(processor, target, available_cores()), f"mapped to {target}")
    return replace(place, dispatch=queues.get(place.queue, place.dispatch))


class _CorePool:
    """Unassigned cores, assigned one by one; the last one is shared when no more are left.

    Args:
        mapped: Cores that a mapping names.
    """

    def __init__(self, cores: Sequence[int], mapped: Collection[int], has_host: bool) -> None:
        self.free = [core for core in cores if core not in mapped]
        if not has_host and len(self.free) > 1:
            self.free.pop(0)  # reserved for the calling thread
        self._shared = self.free[0] if self.free else cores[-1]

    def take(self) -> int:
        if self.free:
            self._shared = self.free.pop(0)
        return self._shared


def _host_placement(processor: str, core_pool: _CorePool, needed: int, stand_in: bool, driver: str | None, refusal: str) -> Placement:
    """Return the placement of an unmapped CPU; `needed` cores remain for other processors, some of which a core may replace."""
    free, available = len(core_pool.free), max(1, len(core_pool.free) - needed)
    count = sum(map(int, re.findall(r"\d+", processor.partition("[")[2]))) or (1 if stand_in else available)
    cores = tuple(core_pool.take() for _ in range(min(count, available)))
    reason = f"the CPU of this machine, {len(cores)} of {max(free, 1)} cores"
    return _placement(processor, driver or "cpu", cores, reason + (f"; {refusal}" if refusal else ""))


def _computes_on_core(driver: str | None) -> bool:
    """Return whether a processor with this driver, or with none, computes on a CPU core."""
    return driver is None or get_delegate(driver).needs_core()


def _default_placement(processor: str, core_pool: _CorePool, driver: str | None, refusal: str, little_cores: Sequence[int]) -> Placement:
    """Return the placement of an unmapped processor."""
    if driver and _computes_on_core(driver):
        if core_pool.free:
            reason = f"the {driver} delegate on a CPU core: this machine has no {processor} that the delegate supports"
            return replace(_placement(processor, driver, (core_pool.free.pop(0),), reason), stand_in=True)
        driver, refusal = None, f"no core is left for the {driver} delegate"
    if driver:
        simulated = get_delegate(driver).simulated()
        reason = f"the simulator of a {processor}: its results count, its times do not" if simulated else f"the {processor} of this machine"
        return replace(_placement(processor, driver, (), reason), stand_in=simulated, waits_on=little_core(little_cores))
    reason = "the CPU of this machine" if is_host(processor) else f"{refusal}; a CPU core replaces it"
    return _placement(processor, "cpu", (core_pool.take(),), reason)


def bundle_precisions(manifest: Manifest) -> dict[str, set[str]]:
    """Return the precisions of the subgraphs of each processor."""
    precisions: dict[str, set[str]] = {}
    for entry in manifest.subgraphs:
        precisions.setdefault(entry.processor, set()).add(entry.precision)
    return precisions


def _driver(processor: str, precisions: Collection[str], planned: str | None = None) -> tuple[str | None, str]:
    """Return the delegate that drives a processor, the plan's first, or None with the reason."""
    reasons = ["" if is_host(processor) else f"no delegate here drives a {processor}"]
    if planned in delegates:
        reason = _refusal(processor, str(planned), get_delegate(str(planned)), precisions)
        if not reason:
            return planned, ""
        reasons.append(f"the plan was measured on `{planned}`: {reason}")

    def available() -> Iterator[str]:
        for name, delegate in drivers(processor):
            if reason := _refusal(processor, name, delegate, precisions):
                reasons.append(reason)
            else:
                yield name

    return first_driver(available()), reasons[-1]


def _refusal(processor: str, name: str, delegate: type[Delegate], precisions: Collection[str]) -> str:
    """Return the reason why a delegate does not drive a processor here, or an empty string."""
    if name not in os.environ.get(DRIVERS_VARIABLE, name).split(","):
        return f"no delegate here drives a {processor}: {DRIVERS_VARIABLE} leaves out `{name}`"
    unsupported = sorted(set(precisions) - set(delegate.precisions))
    if unsupported:
        supported = ", ".join(delegate.precisions)
        return f"the `{name}` delegate runs {supported} alone, and subgraphs of the {processor} are {', '.join(unsupported)}"
    try:
        problem = delegate.unavailable()
    except Exception as error:
        if origin(name) is None:
            raise
        problem = f"the `{name}` delegate ({origin(name)}) raised {type(error).__name__}: {error}"
    return f"no delegate here drives a {processor}: {problem}" if problem else ""


def _target(processor: str, text: str, cores: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    match = _TARGET.fullmatch(text)
    if match is None:
        raise UsageError(f"`{text}`, the target of `{processor}`, is not a delegate and its cores", "write cpu1, cpu0+1 or reference")
    get_delegate(match["delegate"])
    if match["cores"] is None:
        return match["delegate"], ()
    chosen = tuple(sorted({int(core) for core in match["cores"].split("+")}))
    for core in chosen:
        if core not in cores:
            raise UsageError(
                f"`{processor}` is mapped to core {core}, which this process may not use", f"cores: {', '.join(map(str, sorted(cores)))}"
            )
    return match["delegate"], chosen


def _placement(processor: str, name: str, cores: tuple[int, ...], reason: str) -> Placement:
    delegate = get_delegate(name)
    if problem := delegate.unavailable():
        raise MissingBackendError(
            f"processor `{processor}` would run on the `{name}` delegate: {problem}", "install it, or choose another delegate with --map"
        )
    own_queue = delegate.asynchronous or not cores
    queue = f"{name}:{processor}" if own_queue else f"cpu{'+'.join(map(str, cores))}"
    dispatch: Dispatch = "async" if delegate.asynchronous else "blocking"
    return Placement(processor, name, cores, queue, dispatch, not is_host(processor), reason, delegate.simulated())


def _set_dispatch(placed: Mapping[str, Placement], host: str | None) -> dict[str, Placement]:
    """Return the placements with inline dispatch for the queue of the calling thread."""
    if host is not None:
        inline = placed[host].queue
    else:
        # If all processors share one core, a second thread would only cost switches.
        queues = {p.queue for p in placed.values()}
        inline = queues.pop() if len(queues) == 1 and len(placed) > 1 else ""
    return {name: replace(p, dispatch="inline") if p.queue == inline and p.dispatch == "blocking" else p for name, p in placed.items()}


def mapping_of_used(
    mapping: Mapping[str, str], manifest: Manifest, used: Sequence[str], processors: Sequence[str] | None
) -> dict[str, str]:
    """Return the mapping without processors that have no subgraphs left.

    Args:
        manifest: Manifest of the bundle, with the design's processors.
        processors: Processors that may be used; None for all.
    """
    designed = {entry.processor for entry in manifest.subgraphs}
    idle = [name for name in mapping if name in designed and name not in used]
    for name in idle:
        if processors and name not in processors:
            raise UsageError(f"processor `{name}` is mapped, but --processors leaves it out")
    return {name: target for name, target in mapping.items() if name not in idle}


Priority = Literal["latency", "energy"]


def choose_processors(manifest: Manifest, allowed: Sequence[str] | None = None, priority: Priority | None = None) -> Manifest:
    """Return the manifest with each subgraph on the processor that should run it.

    Without a priority the design is kept as far as `allowed` permits. ``latency``
    assigns the branches of each segment so that the busiest processor finishes
    earliest, and keeps the planned processors of portions, which wait for each other;
    ``energy`` gives each subgraph the processor with the lowest energy for it.
    Both use the bundle's predictions for the device.

    Args:
        allowed: Processors that may be used; None for all.
        priority: Objective; None to keep the design.
    """
    used = list(dict.fromkeys(entry.processor for entry in manifest.subgraphs))
    for name in allowed or ():
        if name not in used:
            raise UsageError(f"the bundle does not use processor `{name}`", f"the bundle uses {', '.join(used)}")
    usable = list(dict.fromkeys(allowed)) if allowed else used
    if priority is not None:
        _check_predictions(manifest, usable, priority)
    segments: dict[str, list[SubgraphEntry]] = {}
    for entry in manifest.subgraphs:
        segments.setdefault(entry.segment, []).append(entry)
    chosen: dict[str, str] = {}
    for entries in segments.values():
        chosen |= _segment(entries, usable, priority)
    moved = tuple(entry if chosen[entry.name] == entry.processor else _move(entry, chosen[entry.name]) for entry in manifest.subgraphs)
    return msgspec.structs.replace(manifest, subgraphs=moved)


def _segment(entries: Sequence[SubgraphEntry], usable: Sequence[str], priority: Priority | None) -> dict[str, str]:
    """Return the processor of each branch of a segment."""
    unchanged = {entry.name: entry.processor for entry in entries if entry.processor in usable}
    if priority is None and len(unchanged) == len(entries):
        return unchanged
    options = [
        [unchanged[entry.name]] if priority is None and entry.name in unchanged else _capable_processors(entry, usable) for entry in entries
    ]
    if any(name not in entry.alternatives for entry, names in zip(entries, options, strict=True) for name in names):
        # Without predicted times, use the first allowed processor in the user's order.
        return {entry.name: unchanged.get(entry.name, usable[0]) for entry in entries}
    if _is_chained(entries):
        # There are too many dependent portions to try all assignments; each gets its cheapest processor, or stays.
        return {
            entry.name: entry.processor
            if priority == "latency" and entry.processor in names
            else min(names, key=lambda name: _cost([entry], [name], priority))
            for entry, names in zip(entries, options, strict=True)
        }
    assignments = product(*options)
    best = min(
        assignments,
        key=lambda names: (*_cost(entries, names, priority), sum(a != e.processor for a, e in zip(names, entries, strict=True))),
    )
    return {entry.name: name for entry, name in zip(entries, best, strict=True)}


def _is_chained(entries: Sequence[SubgraphEntry]) -> bool:
    """Return whether subgraphs of a segment read tensors that others of the segment write."""
    outputs = {name for entry in entries for name in entry.outputs}
    return any(name in outputs for entry in entries for name in entry.inputs)


def _capable_processors(entry: SubgraphEntry, usable: Sequence[str]) -> list[str]:
    # A float subgraph is not moved to a processor without floating point.
    capable = [name for name in usable if name == entry.processor or entry.precision == "int8" or not is_integer_only(name)]
    return capable or list(usable)


def _cost(entries: Sequence[SubgraphEntry], names: Sequence[str], priority: Priority | None) -> tuple[float, float]:
    """Return the sort key of an assignment: busy time of the busiest processor and energy, in the order of the priority."""
    busy: dict[str, float] = {}
    energy = 0.0
    for entry, name in zip(entries, names, strict=True):
        prediction = entry.alternatives[name]
        busy[name] = busy.get(name, 0.0) + prediction.ms
        energy += prediction.mj or 0.0
    slowest = max(busy.values())
    return (energy, slowest) if priority == "energy" else (slowest, energy)


def _check_predictions(manifest: Manifest, usable: Sequence[str], priority: Priority) -> None:
    for entry in manifest.subgraphs:
        for name in _capable_processors(entry, usable):
            prediction = entry.alternatives.get(name)
            if prediction is None or (priority == "energy" and prediction.mj is None):
                quantity = "energy" if prediction is not None else "time"
                raise UsageError(
                    f"--priority {priority} needs the predicted {quantity} of subgraph `{entry.name}` on `{name}`, which the bundle does not carry",
                    "write it again with `stretch branch`"
                    if prediction is None
                    else f"state power_w of `{name}` in the profile of {manifest.device}, then write the bundle again with `stretch branch`",
                )


def _move(entry: SubgraphEntry, processor: str) -> SubgraphEntry:
    alternatives: Mapping[str, object] = entry.alternatives
    ms = entry.alternatives[processor].ms if processor in alternatives else None
    return msgspec.structs.replace(entry, processor=processor, predicted_ms=ms)
