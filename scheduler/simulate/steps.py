"""A table of steps as a network of a simulation, so that a timeline from elsewhere can be replayed.

A step waits for those that it needs and for its processor, which takes the first
of the table that is ready; no step is interrupted. Without a device, transfers
are steps of the table like any other. With one, a result that another processor
needs moves over the device's links: what is read back from a GPU or a DSP goes
through that processor's own queue, right behind the step, so it waits for what
runs there and holds up what comes next; what is handed over is part of the step
that reads it. Times of the table are those of each step alone then: processors
that compute at the same time are slower by the profile's contention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

import msgspec

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.errors import StretchError
from predictors.faults import nearest
from predictors.host import kind_of
from predictors.measurements.tables import MAX_MS, numbered_rows
from predictors.predictor import LinkModel
from scheduler.placement.place import Placement
from scheduler.runtime.plan import PlannedSubgraph, plan_of
from scheduler.simulate.networks import Network
from scheduler.simulate.times import Doing, StepTime

#: Steps of a table, at most.
MOST_STEPS = 10_000

#: The tensor that steps read which need no other.
_INPUT = "(input)"

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class TableStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a table of steps; the fields are its columns."""

    name: _Name  # Unique in the table.
    processor: _Name  # What it occupies, such as ``gpu`` or ``cpu[1large]``.
    ms: Annotated[float, msgspec.Meta(gt=0, le=MAX_MS)]  # How long.
    needs: str = ""  # Names of the steps that end before it starts, separated by spaces or ``;``.
    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None  # Size of its result, for transfers to other processors.

    @property
    def needed(self) -> tuple[str, ...]:
        """The steps that it waits for."""
        return tuple(dict.fromkeys(self.needs.replace(";", " ").split()))


@dataclass(frozen=True)
class StepTable:
    """A table of steps, checked."""

    path: Path  # Its file.
    steps: tuple[TableStep, ...]  # In the order of the file.

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of the processors, in the order in which they come."""
        return tuple(dict.fromkeys(step.processor for step in self.steps))


def read_steps(path: Path) -> StepTable:
    """A table of steps.

    Args:
        path: A CSV file with the columns `name`, `processor`, `ms`, and perhaps `needs` and `bytes`.

    Raises:
        StretchError: If it cannot be read or makes no sense, with the line.
    """
    steps: list[TableStep] = []
    lines: dict[str, int] = {}
    for line, step in numbered_rows(path, TableStep):
        if ";" in step.name or len(step.name.split()) != 1:
            raise StretchError(f"{path}, line {line}: the name `{step.name}` has a space or a `;`, which separate names", "write `_` there")
        if step.name in lines:
            raise StretchError(f"{path}, line {line}: the step `{step.name}` stands in line {lines[step.name]} already", "rename one")
        if len(steps) == MOST_STEPS:
            raise StretchError(f"{path} has more than {MOST_STEPS} steps", "merge steps that follow each other on one processor")
        lines[step.name] = line
        steps.append(step)
    if not steps:
        raise StretchError(f"{path} has a header and no step")
    for step in steps:
        for name in step.needed:
            if name not in lines:
                what = f"{path}, line {lines[step.name]}: `{step.name}` needs `{name}`, which is no step of the table"
                raise StretchError(what, nearest(name, lines))
    try:
        TopologicalSorter({step.name: step.needed for step in steps}).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        first = min(range(len(circle) - 1), key=lambda i: lines[circle[i]])
        words = " needs ".join(f"`{name}`" for name in (*circle[first:-1], *circle[: first + 1]))
        raise StretchError(
            f"{path}, line {lines[circle[first]]}: steps wait for each other: {words}", "take one of these needs out"
        ) from error
    return StepTable(path, tuple(steps))


def without_bytes(table: StepTable) -> tuple[str, ...]:
    """Names of steps whose result another kind of processor needs, and whose size the table does not state."""
    kinds = {step.name: kind_of(step.processor) for step in table.steps}
    unsized = {step.name for step in table.steps if step.bytes is None}
    crossing = {name for step in table.steps for name in step.needed if kinds[name] != kinds[step.name]}
    return tuple(name for name in kinds if name in unsized & crossing)


def network_of_steps(table: StepTable, device: DeviceProfile | None) -> Network:
    """The table as a simulation sees it.

    Args:
        device: Whose links, contention and power count; None for the times of the table alone.

    Raises:
        UnknownNameError: If the device has no processor of a name in the table.
    """
    plan = plan_of((_INPUT,), _results(table.steps), [_planned(step) for step in table.steps], ())
    places = {name: Placement(name, "table", (), name, "blocking", False, "stated by the table") for name in table.processors}
    times = {step.name: StepTime(step.processor, (("subgraph", step.ms),)) for step in table.steps}
    watts = {}
    if device is not None:
        times = _on_device(table, device)
        powers = {name: EnergyModel(device).mj(name, 1.0) for name in table.processors}
        watts = {name: power for name, power in powers.items() if power is not None}
    return Network(table.path.stem, plan, {step.name: places[step.processor] for step in table.steps}, times, watts)


def _planned(step: TableStep) -> PlannedSubgraph:
    return PlannedSubgraph(step.name, step.name, "", step.processor, step.needed or (_INPUT,), (step.name,))


def _results(steps: Sequence[TableStep]) -> tuple[str, ...]:
    """Names of the steps that no other needs."""
    needed = {name for step in steps for name in step.needed}
    return tuple(step.name for step in steps if step.name not in needed)


def _on_device(table: StepTable, device: DeviceProfile) -> dict[str, StepTime]:
    """What each step fetches, computes and hands back, by the links and the contention of a device."""
    links, by_name = LinkModel(device), {step.name: step for step in table.steps}
    families = {step.name: device.processor(step.processor).family for step in table.steps}
    readers: dict[str, set[str]] = {}
    for step in table.steps:
        for name in step.needed:
            readers.setdefault(name, set()).add(families[step.name])
    times = {}
    for step in table.steps:
        family, profile = families[step.name], device.processor(step.processor).profile
        into = back = 0.0
        for name in step.needed:
            moved = links.parts_of_bytes(families[name], family, by_name[name].bytes or 0)
            into += sum(ms for end, ms in moved.items() if end != families[name])
        for reader in readers.get(step.name, ()):
            # read back once, whoever reads it
            back = max(back, links.parts_of_bytes(family, reader, step.bytes or 0).get(family, 0.0))
        doing: tuple[tuple[Doing, float], ...] = (("in", into), ("subgraph", step.ms), ("out", back))
        parts = tuple(part for part in doing if part[1])
        times[step.name] = StepTime(step.processor, parts, profile.contention.value, within=True, feeder=device.feeder(step.processor))
    return times
