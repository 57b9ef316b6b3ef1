"""Which of the device's processors runs each subgraph: the design's advice, or another where priority or availability asks for it.

Paper 003, section 6.2: the scheduler follows the processor that an operator
carries as an attribute, unless that processor is not available or the user
puts energy first.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal

import msgspec

from predictors.errors import UsageError
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.placement.processors import is_integer_only

Priority = Literal["latency", "energy"]


def choose_processors(manifest: Manifest, allowed: Sequence[str] | None = None, priority: Priority | None = None) -> Manifest:
    """The manifest with each subgraph on the processor that is to run it.

    Without a priority the design stands as far as `allowed` goes. ``latency``
    distributes the branches of each segment so that the busiest processor is
    done first, and leaves portions, which wait for each other, where they were
    planned; ``energy`` gives each subgraph the processor that takes least
    energy for it. Both go by the predictions for the device that the bundle carries.

    Args:
        allowed: Processors that may be used; None for all.
        priority: What matters most; None for the design.
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
    moved = tuple(entry if chosen[entry.name] == entry.processor else _moved(entry, chosen[entry.name]) for entry in manifest.subgraphs)
    return msgspec.structs.replace(manifest, subgraphs=moved)


def _segment(entries: Sequence[SubgraphEntry], usable: Sequence[str], priority: Priority | None) -> dict[str, str]:
    """Processor of each branch of a segment."""
    stays = {entry.name: entry.processor for entry in entries if entry.processor in usable}
    if priority is None and len(stays) == len(entries):
        return stays
    options = [[stays[entry.name]] if priority is None and entry.name in stays else _able(entry, usable) for entry in entries]
    if any(name not in entry.alternatives for entry, names in zip(entries, options, strict=True) for name in names):
        # Nothing is known of the times: the first allowed processor, as the user wrote them.
        return {entry.name: stays.get(entry.name, usable[0]) for entry in entries}
    if _handing_on(entries):
        # Portions that wait for each other are far too many to try all ways; each goes where it is cheapest, or stays.
        return {
            entry.name: entry.processor
            if priority == "latency" and entry.processor in names
            else min(names, key=lambda name: _cost([entry], [name], priority))
            for entry, names in zip(entries, options, strict=True)
        }
    ways = product(*options)
    best = min(
        ways, key=lambda names: (*_cost(entries, names, priority), sum(a != e.processor for a, e in zip(names, entries, strict=True)))
    )
    return {entry.name: name for entry, name in zip(entries, best, strict=True)}


def _handing_on(entries: Sequence[SubgraphEntry]) -> bool:
    """Whether subgraphs of a segment read what others of it write."""
    written = {name for entry in entries for name in entry.outputs}
    return any(name in written for entry in entries for name in entry.inputs)


def _able(entry: SubgraphEntry, usable: Sequence[str]) -> list[str]:
    # A float subgraph is not moved to where there is no floating point.
    able = [name for name in usable if name == entry.processor or entry.precision == "int8" or not is_integer_only(name)]
    return able or list(usable)


def _cost(entries: Sequence[SubgraphEntry], names: Sequence[str], priority: Priority | None) -> tuple[float, float]:
    """What is compared first and second: time of the busiest processor and energy, or the other way round."""
    busy: dict[str, float] = {}
    energy = 0.0
    for entry, name in zip(entries, names, strict=True):
        way = entry.alternatives[name]
        busy[name] = busy.get(name, 0.0) + way.ms
        energy += way.mj or 0.0
    slowest = max(busy.values())
    return (energy, slowest) if priority == "energy" else (slowest, energy)


def _check_predictions(manifest: Manifest, usable: Sequence[str], priority: Priority) -> None:
    for entry in manifest.subgraphs:
        for name in _able(entry, usable):
            way = entry.alternatives.get(name)
            if way is None or (priority == "energy" and way.mj is None):
                what = "energy" if way is not None else "time"
                raise UsageError(
                    f"--priority {priority} needs the predicted {what} of subgraph `{entry.name}` on `{name}`, which the bundle does not carry",
                    "write it again with `stretch branch`"
                    if way is None
                    else f"state power_w of `{name}` in the profile of {manifest.device}, then write the bundle again with `stretch branch`",
                )


def _moved(entry: SubgraphEntry, processor: str) -> SubgraphEntry:
    known: Mapping[str, object] = entry.alternatives
    ms = entry.alternatives[processor].ms if processor in known else None
    return msgspec.structs.replace(entry, processor=processor, predicted_ms=ms)
