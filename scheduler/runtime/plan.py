"""The plan: subgraphs and joins in order, and the tensors that they read and write; placements are not part of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError

from predictors.errors import StretchError
from predictors.order import stable_order
from scheduler.bundle.manifest import JoinEntry, Manifest, TflitePlan
from scheduler.bundle.rows import Rows


@dataclass(frozen=True)
class PlannedSubgraph:
    """A subgraph and its tensors."""

    name: str  # Unique in the plan.
    segment: str  # Segment in which it is a branch, or a part of a branch.
    file: str  # File of the subgraph, for messages.
    processor: str  # Processor of the device for which it was planned.
    inputs: tuple[str, ...]  # Tensors that it reads, at least one.
    outputs: tuple[str, ...]  # Tensors that it writes, at least one.
    #: First row and end of the rows read, for tensors that are not read in full.
    rows: dict[str, Rows] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionPlan:
    """The work for the state machine, without files and threads."""

    inputs: tuple[str, ...]  # Tensors that the caller provides.
    outputs: tuple[str, ...]  # Tensors that the caller receives.
    subgraphs: Mapping[str, PlannedSubgraph]  # By name, in topological order.
    joins: Mapping[str, JoinEntry]  # By name, in topological order.
    readers: Mapping[str, tuple[str, ...]]  # Subgraphs and joins that read each tensor.
    writers: Mapping[str, str]  # Subgraph or join that writes each tensor.
    missing: Mapping[str, int]  # Number of tensors that each subgraph or join reads.
    order: Mapping[str, int]  # Position of each subgraph and join in the topological order.

    def predecessors(self, name: str) -> tuple[str, ...]:
        """Return the steps whose tensors the step `name` reads."""
        return tuple(dict.fromkeys(self.writers[tensor] for tensor in self.step(name).inputs if tensor in self.writers))

    def step(self, name: str) -> PlannedSubgraph | JoinEntry:
        """Return the subgraph or join `name`."""
        return self.subgraphs.get(name) or self.joins[name]


def make_plan(manifest: Manifest | TflitePlan) -> ExecutionPlan:
    """Return the plan of a bundle.

    Args:
        manifest: Manifest of the bundle, or the plan in its TFLite file; steps may be in any order.
    """
    return build_plan(
        manifest.inputs,
        manifest.outputs,
        [PlannedSubgraph(s.name, s.segment, s.file, s.processor, s.inputs, s.outputs, s.rows) for s in manifest.subgraphs],
        manifest.joins,
    )


def build_plan(
    inputs: Iterable[str], outputs: Iterable[str], subgraphs: Iterable[PlannedSubgraph], joins: Iterable[JoinEntry]
) -> ExecutionPlan:
    """Return the plan of subgraphs and joins given in any order."""
    inputs = tuple(inputs)
    subgraphs_by_name, joins_by_name = {s.name: s for s in subgraphs}, {j.name: j for j in joins}
    steps: dict[str, PlannedSubgraph | JoinEntry] = {**subgraphs_by_name, **joins_by_name}
    readers: dict[str, list[str]] = {}
    for name, step in steps.items():
        for tensor in dict.fromkeys(step.inputs):
            readers.setdefault(tensor, []).append(name)
    writers = {tensor: name for name, step in steps.items() for tensor in step.outputs}
    order = _topological_order(inputs, steps, writers)
    return ExecutionPlan(
        inputs=inputs,
        outputs=tuple(outputs),
        subgraphs={name: subgraphs_by_name[name] for name in order if name in subgraphs_by_name},
        joins={name: joins_by_name[name] for name in order if name in joins_by_name},
        readers={tensor: tuple(sorted(names, key=order.__getitem__)) for tensor, names in readers.items()},
        writers=writers,
        missing={name: len(set(step.inputs)) for name, step in steps.items()},
        order=order,
    )


def _topological_order(
    start: tuple[str, ...], steps: Mapping[str, PlannedSubgraph | JoinEntry], writers: Mapping[str, str]
) -> dict[str, int]:
    """Return the position of each step: the given order, with each step moved after the steps that it waits for."""
    try:
        # a step that reads a tensor without a writer waits for itself
        order = stable_order({name: {writers.get(x, name) for x in step.inputs if x not in start} for name, step in steps.items()})
    except CycleError as error:
        raise StretchError(f"`{error.args[1][0]}` waits for a tensor that nothing writes before it") from error
    return {name: position for position, name in enumerate(order)}
