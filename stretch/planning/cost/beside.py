"""When the trunk of a network and the parts beside it run: one schedule of all.

Each branch of a segment, each join and each side is a job (`stretch.planning.cost.schedule`);
where several could start on a processor, the trunk comes before the sides that do not feed it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from predictors.graph import OpGraph
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.schedule import Job, Schedule, schedule
from stretch.planning.cost.times import BranchTime, SegmentTime, SideTime
from stretch.planning.design.branch_design import BranchScale
from stretch.planning.network.trunk import Trunk


@dataclass(frozen=True)
class Whole:
    """Everything on one timeline."""

    segments: tuple[SegmentTime, ...]  # Of the trunk, each with when it starts.
    sides: tuple[SideTime, ...]  # Beside it.
    #: For each branch, join that takes time and side, in the order of `segments` with the sides that feed the trunk first and the others
    #: last, the numbers of those that end before it starts.
    waits: tuple[tuple[int, ...], ...]


def side_time(graph: OpGraph, processor: str, holders: Mapping[str, str], returned: Sequence[str], costs: Costs) -> BranchTime:
    """A side on a processor."""
    estimate = costs.predictor.predict(graph, processor, costs.precision.get(processor))
    into = [costs.moves(holders[source.name], processor, prod(source.shape)) for source in graph.inputs]
    out = [costs.moves(processor, costs.host, prod(graph.by_name[name].shape)) for name in graph.outputs if name in returned]
    links: dict[str, float] = {}
    for moved in (*into, *out):
        for far, ms in moved.items():
            links[far] = links.get(far, 0.0) + ms
    in_ms, out_ms = (sum(ms for moved in each for ms in moved.values()) for each in (into, out))
    scale = BranchScale(processor, 0, 0)
    return BranchTime(scale, graph.macs, graph.params, in_ms, links, estimate.computing_ms, 0.0, out_ms, estimate)


def beside(trunk: Trunk, segments: Sequence[SegmentTime], times: Mapping[str, BranchTime]) -> Whole:
    """The trunk and its sides on one timeline."""
    jobs: list[Job] = []
    writers: dict[str, int] = {}
    numbers: dict[str, int] = {}

    def add_side(graph: OpGraph) -> None:
        reads = tuple(dict.fromkeys(writers[source.name] for source in graph.inputs if source.name in writers))
        numbers[graph.name] = len(jobs)
        writers.update(dict.fromkeys(graph.outputs, len(jobs)))
        jobs.append(Job(times[graph.name].scale.processor, times[graph.name].total_ms, reads))

    for side in trunk.before:
        add_side(side)
    spans: list[tuple[int, int]] = []
    for row in segments:
        first = len(jobs)
        arrives = (writers[row.design.start],) if row.design.start in writers else ()
        for branch in row.branches:
            reads = tuple(first + each for each in branch.waits) or arrives
            jobs.append(Job(branch.scale.processor, branch.total_ms, reads))
        spans.append((first, len(jobs)))
        if row.join_ms:
            # no processor waits for a join: whoever is done with its branch goes on
            jobs.append(Job(f"join of {row.design.name}", row.join_ms, tuple(range(first, len(jobs)))))
        writers[row.design.end] = len(jobs) - 1
    for side in trunk.after:
        add_side(side)
    found = schedule(jobs)
    rows, at = [], found.starts[spans[0][0]] if spans else 0.0
    for row, (first, behind) in zip(segments, spans, strict=True):
        branches = tuple(
            replace(branch, start_ms=start - at) for branch, start in zip(row.branches, found.starts[first:behind], strict=True)
        )
        rows.append(replace(row, branches=branches, start_ms=at))
        at = found.ends[behind] if row.join_ms else found.ends[behind - 1]
    sides = tuple(_started(side, times[side.name], found, numbers[side.name]) for side in trunk.sides)
    return Whole(tuple(rows), sides, found.waits)


def _started(side: OpGraph, time: BranchTime, found: Schedule, number: int) -> SideTime:
    return SideTime(side.name, side, replace(time, start_ms=found.starts[number], waits=found.waits[number]))
