"""Predicted timeline of a design: branches overlap, meeting points wait, transfers cost.

Algorithm 1 of paper 003 as arithmetic. A segment takes

    max over branches (transfer in + computation + contention + transfer to the host) + join,

where contention counts while another branch computes (`predictors.side_by_side`). A whole segment takes its transfer in and its
computation. The model's input and output are in the host's memory. Branches that pass tensors to each other fetch their inputs, and wait
as in the runtime (`scheduler.simulate.schedule`). An inference takes the host's measured constant once. If it runs completely on another
processor, it takes this processor's hand-over instead, and its time equals `LatencyPredictor.predict`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.graph import OpGraph
from predictors.host import kind_of
from predictors.joins import join_of
from predictors.predictor import Estimate, Handover
from predictors.rewrites import inexact_rewrites
from predictors.shapes import width
from predictors.side_by_side import ProcessorWork, contention_factors, end_times
from scheduler.simulate.schedule import Job, schedule
from stretch.planning.cost.branch import Costs
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, SideDesign
from stretch.planning.design.scale import ScaledBranch, check_sides, design_segments, join_width, run_graph, scaled_branches, whole_branch
from stretch.planning.network.segments import Segment, backbone_of, memoised


def sum_by_key(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sums by name, in the order of first occurrence."""
    result: dict[str, float] = {}
    for name, ms in pairs:
        result[name] = result.get(name, 0.0) + ms
    return result


@dataclass(frozen=True)
class BranchTime:
    """One branch on the timeline."""

    scale: BranchScale  # Design of the branch.
    macs: int  # Multiply-accumulates, its part of the join included.
    params: int  # Number of parameters.
    in_ms: float  # Transfer time of its input.
    links: Mapping[str, float]  # Transfers in and out, ms by processor at the far end of the link.
    ms: float  # Compute time, running alone.
    contention_ms: float  # Additional time while the other branches compute; negative if they speed the branch up.
    out_ms: float  # Transfer time of its output to the processor that needs it.
    estimate: Estimate  # Estimate behind `ms`, by kernel.
    start_ms: float = 0.0  # Start time, relative to the start of its segment.
    waits: tuple[int, ...] = ()  # Numbers of the branches of its segment that it waits for; empty if branches start together.
    together: Mapping[str, float] = field(default_factory=dict)  # Compute time in parallel with each other kind of processor, ms.

    @property
    def contention(self) -> float:
        """Factor on its compute time while other branches compute."""
        return 1 + self.contention_ms / self.ms if self.ms else 1.0

    @property
    def total_ms(self) -> float:
        """Time from its start until its output has arrived, ms."""
        return self.in_ms + self.ms + self.contention_ms + self.out_ms


@dataclass(frozen=True)
class SegmentTime:
    """One segment on the timeline."""

    segment: Segment  # The original segment.
    design: SegmentDesign  # Design of the segment.
    branches: tuple[BranchTime, ...]  # Times of its branches.
    join_ms: float  # Time of the join.
    start_ms: float  # Start time.
    #: Multiply-accumulates that bands of rows or branches of channels compute beyond the undivided segment's, because several of them
    #: repeat them.
    repeated_macs: int = 0
    shared_params: int | None = None  # Number of parameters that branches share, or have slices of; None if each has its own.
    #: Time of all bands together for rows that the undivided segment computes once.
    halo_ms: float = 0.0

    @property
    def kind(self) -> str:
        """``whole``; ``stretch`` for scaled copies, which are another network; or the kind of its exact division, such as ``rows``."""
        if self.design.division is not None:
            return self.design.division.kind
        size = self.segment.depth, self.segment.width
        same = all((b.scale.depth, b.scale.width) == size and not inexact_rewrites(b.scale.rewrites) for b in self.branches)
        return "whole" if self.design.whole and same else "stretch"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its output."""
        return self.segment.graph.by_name[self.segment.end].shape

    @property
    def macs(self) -> int:
        """Multiply-accumulates, including repeated ones."""
        return sum(b.macs for b in self.branches)

    @property
    def params(self) -> int:
        """Number of parameters; shared ones of bands of rows or branches of channels count once."""
        return sum(b.params for b in self.branches) if self.shared_params is None else self.shared_params

    @property
    def halo_macs(self) -> int:
        """Multiply-accumulates that bands of rows repeat."""
        division = self.design.division
        return self.repeated_macs if division is not None and division.halo else 0

    @property
    def ms(self) -> float:
        """Time from its start to its end, ms."""
        return max(b.start_ms + b.total_ms for b in self.branches) + self.join_ms

    @property
    def computing_ms(self) -> float:
        """Compute time of the busiest processor, without contention, ms."""
        return max(sum_by_key((b.scale.processor, b.ms) for b in self.branches).values())

    @property
    def communication_ms(self) -> float:
        """Time in addition to the busiest processor's compute time, ms."""
        return self.ms - max(sum_by_key((b.scale.processor, b.ms + b.contention_ms) for b in self.branches).values())


def computed_ms(branches: Iterable[BranchTime]) -> dict[str, float]:
    """Return the compute time of each processor for some branches, contention included, ms."""
    return sum_by_key((branch.scale.processor, ms) for branch in branches for ms in (branch.ms, branch.contention_ms))


class Step(NamedTuple):
    """A branch, a join or a side in the schedule of a run."""

    job: Job  # Processor, duration, and the numbers of the steps whose outputs the step reads.
    time: BranchTime | None  # Time of a branch or a side; None for a join.
    waits: tuple[int, ...]  # Numbers of the steps that it waits for: the steps that it reads from, and the previous step on its processor.


def segment_steps(row: SegmentTime, first: int, arrives: tuple[int, ...]) -> list[Step]:
    """Return the steps of a segment's branches, and of the join at the end if they meet.

    Args:
        first: Number of the first step.
        arrives: Numbers of the steps that write the segment's input.
    """
    steps = []
    for branch in row.branches:
        waits = tuple(first + wait for wait in branch.waits) or arrives
        steps.append(Step(Job(branch.scale.processor, branch.total_ms, waits), branch, waits))
    if join_of(row.design.join).meets is not None and not row.design.whole:
        # no processor waits for a join: each continues after its branch
        waits = tuple(range(first, first + len(steps)))
        steps.append(Step(Job(f"join of {row.design.name}", row.join_ms, waits), None, waits))
    return steps


@dataclass(frozen=True)
class Timeline:
    """The predicted run of a design."""

    design: BranchDesign  # The design.
    segments: tuple[SegmentTime, ...]  # Segments in order, with start times from the schedule of all steps.
    #: Transfer times of the result to the host, ms by processor at the far end of the link; empty if its producers transfer several results.
    output: Mapping[str, float]
    handover: Handover  # Constant time per inference: of the host, or of the only processor.
    #: Graph and time of each part outside the backbone, as for a branch; it starts `start_ms` after the network's input is ready.
    sides: tuple[tuple[OpGraph, BranchTime], ...]
    steps: tuple[Step, ...]  # The schedule: sides before the backbone, the backbone's branches and joins, then all other sides.

    @property
    def output_ms(self) -> float:
        """Transfer time of the result to the host, ms."""
        return sum(self.output.values())

    @property
    def makespan_ms(self) -> float:
        """Time from input ready to output ready, ms."""
        return self._computed_ms + self.output_ms + self.handover.ms

    @property
    def _computed_ms(self) -> float:
        """Time until all segments and sides have ended, ms."""
        return max([s.start_ms + s.ms for s in self.segments] + [time.start_ms + time.total_ms for _, time in self.sides])

    @property
    def communication_ms(self) -> float:
        """Time of transfers, joins and the hand-over on the critical path, ms."""
        return sum(s.communication_ms for s in self.segments) + self.output_ms + self.handover.ms

    @property
    def efficiency(self) -> float:
        """Time without contention and transfers over the makespan: serial parts, slowest branches, and sides beyond the segments."""
        return (self._computed_ms + sum(s.computing_ms - s.ms for s in self.segments)) / self.makespan_ms

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the design, including repeated ones."""
        return sum(s.macs for s in self.segments) + sum(time.macs for _, time in self.sides)

    @property
    def halo_macs(self) -> int:
        """Multiply-accumulates that bands of rows repeat."""
        return sum(s.halo_macs for s in self.segments)

    @property
    def halo_ms(self) -> float:
        """Time of bands for rows computed twice, summed over processors, ms: an upper bound on what they add to the makespan."""
        return sum(s.halo_ms for s in self.segments)

    @property
    def repeated_macs(self) -> int:
        """Multiply-accumulates that bands of rows and branches of channels repeat."""
        return sum(s.repeated_macs for s in self.segments)

    @property
    def params(self) -> int:
        """Number of parameters of the design."""
        return sum(s.params for s in self.segments) + sum(time.params for _, time in self.sides)


def run_mj(run: Timeline, device: DeviceProfile) -> float | None:
    """Return the energy of the processors with work, mJ (paper 003, section 7.3): while they compute, and while they wait if this power is known."""
    return EnergyModel(device).plan_mj(busy_ms(run), run.makespan_ms)


def busy_ms(run: Timeline) -> dict[str, float]:
    """Return the compute time of each processor in a run, ms."""
    return computed_ms([*(branch for row in run.segments for branch in row.branches), *(time for _, time in run.sides)])


#: Minimum overlap, as a share of a run's time; below it the gain does not come from parallel computation.
HANDOVER_SHARE = 0.02


def parallel_ms(spans: Iterable[tuple[str, float, float]]) -> float:
    """Return the time in which at least two processors compute at once, ms; a span is a processor, a start and an end, ms."""
    spans = list(spans)
    times = sorted({time for _, *ends in spans for time in ends})
    shared = (b - a for a, b in pairwise(times) if len({name for name, start, end in spans if start <= a and b <= end}) > 1)
    return sum(shared)


def computing_spans(run: Timeline) -> list[tuple[str, float, float]]:
    """Return the compute span of each branch and side of a run, for `parallel_ms`."""
    jobs = [(row.start_ms, branch) for row in run.segments for branch in row.branches] + [(0.0, time) for _, time in run.sides]
    begins = [(job, at + job.start_ms + job.in_ms) for at, job in jobs]
    return [(job.scale.processor, at, at + job.ms + job.contention_ms) for job, at in begins]


# One schedule of a network's backbone and its sides.
#
# If several steps could start on a processor, the backbone comes before the sides that do not feed it.


def _branch_time(
    scale: BranchScale, graph: OpGraph, into: Sequence[Mapping[str, float]], out: Sequence[Mapping[str, float]], costs: Costs
) -> BranchTime:
    """Return the time of a branch or side; `into` and `out` are its transfers, ms by processor at the far end of each link."""
    estimate = costs.predictor.predict(graph, scale.processor, costs.precision.get(scale.processor))
    in_ms, out_ms = (sum(sum_by_key(item for links in moved for item in links.items()).values()) for moved in (into, out))
    links = sum_by_key(item for links in (*into, *out) for item in links.items())
    return BranchTime(scale, graph.macs, graph.params, in_ms, links, estimate.computing_ms, 0.0, out_ms, estimate)


def timeline(graph: OpGraph, design: BranchDesign, costs: Costs) -> Timeline:
    """Predict the run of a design from its operators."""
    check_sides(backbone_of(graph), design)
    return Timelines(graph, design, costs).timeline(design.sides)


class Timelines:
    """Timelines of a design for different placements of its sides."""

    def __init__(self, graph: OpGraph, design: BranchDesign, costs: Costs) -> None:
        self._graph, self._design, self._costs, self._backbone = graph, design, costs, backbone_of(graph)

    def timeline(self, sides: Sequence[SideDesign]) -> Timeline:
        """Return the run of the design with its sides on these processors."""
        placed = {side.name: side.processor for side in sides}
        design, costs = replace(self._design, sides=tuple(sides)), self._costs
        # an inference begins and ends on the host, or on the only processor, whose hand-over includes the transfers
        home = design.processors[0] if len(design.processors) == 1 and not design.n_meet else costs.host
        handover = costs.handover(home, self._graph)
        holders = dict.fromkeys((op.name for op in self._graph.inputs), home)
        steps: list[Step] = []
        timed: list[tuple[OpGraph, BranchTime, int]] = []  # each side, its time and the number of its step
        writers: dict[str, int] = {}  # numbers of steps by the tensors that they write

        def add_sides(graphs: Sequence[OpGraph]) -> None:
            for side in graphs:
                processor = placed[side.name]
                time = self._side(side.name, processor, tuple(holders[source.name] for source in side.inputs), home)
                reads = tuple(dict.fromkeys(writers[source.name] for source in side.inputs if source.name in writers))
                timed.append((side, time, len(steps)))
                writers.update(dict.fromkeys(side.outputs, len(steps)))
                holders.update(dict.fromkeys(side.outputs, processor))
                steps.append(Step(Job(processor, time.total_ms, reads), time, reads))

        add_sides(self._backbone.before)
        segments, written = self._backbone_times(holders[self._backbone.graph.input.name], home)
        holders |= written
        ends = [len(steps)]
        for row in segments:
            arrives = (writers[row.design.start],) if row.design.start in writers else ()
            steps += segment_steps(row, len(steps), arrives)
            writers[row.design.end] = len(steps) - 1
            ends.append(len(steps))
        add_sides(self._backbone.after)
        scheduled = schedule([step.job for step in steps])
        rows, at = [], scheduled.starts[ends[0]] if segments else 0.0
        for row, (first, end) in zip(segments, pairwise(ends), strict=True):
            branches = (replace(branch, start_ms=scheduled.starts[first + i] - at) for i, branch in enumerate(row.branches))
            rows.append(replace(row, branches=tuple(branches), start_ms=at))
            at = scheduled.ends[end - 1]
        sides_timed = ((side, replace(time, start_ms=scheduled.starts[number])) for side, time, number in timed)
        output: Mapping[str, float] = {}
        if not timed and len(self._graph.outputs) == 1:
            # a single result is transferred at the end of the run; of several results, each by its producer
            [name] = self._graph.outputs
            output = costs.moves(holders[name], home, prod(self._graph.by_name[name].shape))
        steps = [step._replace(waits=waits) for step, waits in zip(steps, scheduled.waits, strict=True)]
        return Timeline(design, tuple(rows), output, handover, tuple(sides_timed), tuple(steps))

    @memoised
    def _backbone_times(self, holder: str, home: str) -> tuple[list[SegmentTime], dict[str, str]]:
        """Return the segments, and the processor that holds the end of each; `home` needs the network's results."""
        graph, design, costs, backbone = self._graph, self._design, self._costs, self._backbone
        returned = graph.outputs if len(graph.outputs) > 1 or backbone.sides else ()
        channels = width(backbone.graph.input.shape)
        rows: list[SegmentTime] = []
        holders: dict[str, str] = {}
        for segment, part, scaled in zip(design_segments(graph, design), design.segments, scaled_branches(graph, design), strict=True):
            row, holder = segment_time(segment, part, scaled, holder, channels, costs, home if part.end in returned else None)
            rows.append(row)
            channels = join_width(segment, part)
            holders[part.end] = holder
        return rows, holders

    @memoised
    def _side(self, name: str, processor: str, holders: tuple[str, ...], home: str) -> BranchTime:
        side = next(side for side in self._backbone.sides if side.name == name)
        costs, returned = self._costs, [name for name in side.outputs if name in self._graph.outputs]
        into = [costs.moves(holder, processor, prod(source.shape)) for holder, source in zip(holders, side.inputs, strict=True)]
        out = [costs.moves(processor, home, prod(side.by_name[name].shape)) for name in returned]
        return _branch_time(BranchScale(processor, 0, 0), side, into, out, costs)


def segment_time(
    segment: Segment,
    part: SegmentDesign,
    scaled: Sequence[ScaledBranch],
    holder: str,
    channels: int,
    costs: Costs,
    home: str | None = None,
) -> tuple[SegmentTime, str]:
    """Return the time of a segment that starts at 0, and the processor that holds its end; `home` needs the end if it is a result."""
    joined, division = len(part.branches) > 1, part.division
    graphs = [run_graph(built, scale) for built, scale in zip(scaled, part.branches, strict=True)]
    if join_of(part.join).hands_on:
        times = subgraph_times(part.branches, graphs, {part.start: holder}, costs)
    else:
        if division is not None:
            at = [scale.processor for scale in part.branches]
            graphs = [division.input_graph(graph, holder, name, costs.predictor) for graph, name in zip(graphs, at, strict=True)]
        branches = []
        for scale, graph in zip(part.branches, graphs, strict=True):
            # transfers include the output to the host if branches meet there
            into = costs.moves(holder, scale.processor, prod(graph.input.shape))
            leaving = costs.moves(scale.processor, costs.host, prod(graph.by_name[graph.output].shape)) if joined else {}
            branches.append(_branch_time(scale, graph, [into], [leaving], costs))
        times = side_by_side(branches, costs.predictor.device) if joined else tuple(branches)
    repeated, params, repeated_ms = 0, None, 0.0
    if division is not None and part.shares_weights:
        once = whole_branch(segment, part, channels).graph
        repeated, params = sum(b.macs for b in times) - once.macs, once.params
        pieces = [(built.graph, time.estimate, time.contention) for built, time in zip(scaled, times, strict=True)]
        repeated_ms = division.repeated_ms(segment.graph, pieces)
    meets = join_of(part.join).meets is not None and joined
    holder = costs.host if meets else part.branches[-1].processor
    if home is not None and not meets:
        # the last branch also transfers its output
        last, moved = times[-1], costs.moves(holder, home, prod(segment.graph.by_name[part.end].shape))
        links = sum_by_key([*last.links.items(), *moved.items()])
        times = (*times[:-1], replace(last, links=links, out_ms=last.out_ms + sum(moved.values())))
    join_ms = costs.join(segment, part.join, join_width(segment, part), len(times))
    return SegmentTime(segment, part, times, join_ms, 0.0, repeated, params, repeated_ms), holder


def side_by_side(branches: Sequence[BranchTime], device: DeviceProfile) -> tuple[BranchTime, ...]:
    """Return branches that start together, with the contention while the others compute."""
    works, names = [], [branch.scale.processor for branch in branches]
    for branch, processor in zip(branches, names, strict=True):
        contention = contention_factors(device, processor, branch.estimate.computing.shares, names)
        works.append(ProcessorWork(processor, branch.in_ms, branch.ms, contention, device.feeder(processor)))
    return tuple(
        replace(branch, contention_ms=end.ms - branch.in_ms - branch.ms, together=end.together)
        for branch, end in zip(branches, end_times(works), strict=True)
    )


def subgraph_times(
    scales: Sequence[BranchScale], graphs: Sequence[OpGraph], arriving: Mapping[str, str], costs: Costs
) -> tuple[BranchTime, ...]:
    """Return the schedule of a segment's portions: each waits for its inputs and fetches inputs from other processors."""
    holders = dict(arriving)
    writers: dict[str, int] = {}
    times, jobs = [], []
    for number, (scale, graph) in enumerate(zip(scales, graphs, strict=True)):
        into = [costs.moves(holders[op.name], scale.processor, prod(op.shape)) for op in graph.inputs]
        time, others = _branch_time(scale, graph, into, [], costs), {other.processor for other in scales} - {scale.processor}
        ms = time.estimate.computing.slowed(costs.slowing(scale.processor, others))
        times.append(replace(time, contention_ms=ms - time.ms, together=dict.fromkeys(map(kind_of, others), ms)))
        reads = dict.fromkeys(writers[source.name] for source in graph.inputs if source.name in writers)
        jobs.append(Job(scale.processor, times[-1].total_ms, tuple(reads)))
        holders.update(dict.fromkeys(graph.outputs, scale.processor))
        writers.update(dict.fromkeys(graph.outputs, number))
    scheduled = schedule(jobs)
    return tuple(
        replace(time, start_ms=start, waits=waits) for time, start, waits in zip(times, scheduled.starts, scheduled.waits, strict=True)
    )
