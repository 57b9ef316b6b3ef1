"""Predicted timeline of a design: branches overlap, meeting points wait, transfers cost.

Algorithm 1 of paper 003 as arithmetic. A segment takes

    max over branches (transfer in + computation × contention + transfer to the host) + join,

a whole segment its transfer in and its computation; the model's input and
output are in the host's memory. Of what arrives and leaves, a band of rows moves
the rows that it reads and writes; a branch of channels reads all that arrives.
Portions of a segment run as
`stretch.planning.cost.schedule` has it: each fetches what it reads, and what the
last one writes stays where it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.predictor import Estimate, LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.halo import TimedBand, halo_ms
from stretch.planning.cost.handover import cuts_itself, handed
from stretch.planning.cost.schedule import Job, schedule
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import design_segments, join_width, scale_branch, scaled_branches
from stretch.planning.network.segments import Segment


@dataclass(frozen=True)
class BranchTime:
    """One branch on the timeline.

    Args:
        scale: The branch.
        macs: Multiply-accumulates, its part of the join included.
        params: Learned numbers.
        in_ms: Transfer of its input.
        links: Its transfers in and out, ms by processor at the far end of the link.
        ms: Computation, running alone.
        contention_ms: What it takes longer beside the other branches.
        out_ms: Transfer of its output to where it is needed.
        estimate: What `ms` is made of.
        start_ms: When it starts, from the start of its segment.
        waits: Numbers of the branches of its segment that it waits for; none where branches start together.
    """

    scale: BranchScale
    macs: int
    params: int
    in_ms: float
    links: Mapping[str, float]
    ms: float
    contention_ms: float
    out_ms: float
    estimate: Estimate
    start_ms: float = 0.0
    waits: tuple[int, ...] = ()

    @property
    def contention(self) -> float:
        """Factor on its computation beside the other branches."""
        return 1 + self.contention_ms / self.ms if self.ms else 1.0

    @property
    def total_ms(self) -> float:
        """From its start until its output has arrived."""
        return self.in_ms + self.ms + self.contention_ms + self.out_ms


@dataclass(frozen=True)
class SegmentTime:
    """One segment on the timeline.

    Args:
        segment: The original segment.
        design: Its design.
        branches: Its branches.
        join_ms: Time of the join.
        start_ms: When it starts.
        repeated_macs: Multiply-accumulates that bands of rows or branches of channels do beyond those of the segment in one piece: what
            several of them compute.
        shared_params: Learned numbers that all branches have in common, or parts of; None where each has its own.
        halo_ms: Time that all bands together spend on rows that the segment in one piece computes once
            (`stretch.planning.cost.halo`).
    """

    segment: Segment
    design: SegmentDesign
    branches: tuple[BranchTime, ...]
    join_ms: float
    start_ms: float
    repeated_macs: int = 0
    shared_params: int | None = None
    halo_ms: float = 0.0

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those that are repeated included."""
        return sum(b.macs for b in self.branches)

    @property
    def params(self) -> int:
        """Learned numbers; those that bands of rows or branches of channels share count once."""
        return sum(b.params for b in self.branches) if self.shared_params is None else self.shared_params

    @property
    def halo_macs(self) -> int:
        """Multiply-accumulates that bands of rows repeat."""
        return self.repeated_macs if join_of(self.design.join).bands else 0

    @property
    def ms(self) -> float:
        """From its start to its end."""
        return max(b.start_ms + b.total_ms for b in self.branches) + self.join_ms

    @property
    def computing_ms(self) -> float:
        """Computation of the processor that computes longest, each branch alone."""
        return self._longest(lambda b: b.ms)

    @property
    def communication_ms(self) -> float:
        """Time beside the computation of the processor that computes longest."""
        return self.ms - self._longest(lambda b: b.ms + b.contention_ms)

    def _longest(self, ms: Callable[[BranchTime], float]) -> float:
        found: dict[str, float] = {}
        for branch in self.branches:
            found[branch.scale.processor] = found.get(branch.scale.processor, 0.0) + ms(branch)
        return max(found.values())


@dataclass(frozen=True)
class Timeline:
    """The predicted run of a design.

    Args:
        design: The design.
        segments: In order.
        output: Transfer of the result to the host, ms by processor at the far end of the link.
    """

    design: BranchDesign
    segments: tuple[SegmentTime, ...]
    output: Mapping[str, float]

    @property
    def output_ms(self) -> float:
        """Transfer of the result to the host."""
        return sum(self.output.values())

    @property
    def makespan_ms(self) -> float:
        """Time from input ready to output ready."""
        return sum(s.ms for s in self.segments) + self.output_ms

    @property
    def computing_ms(self) -> float:
        """Serial parts plus the slowest branch of each segment, each alone."""
        return sum(s.computing_ms for s in self.segments)

    @property
    def communication_ms(self) -> float:
        """Transfers and joins on the critical path."""
        return sum(s.communication_ms for s in self.segments) + self.output_ms

    @property
    def efficiency(self) -> float:
        """`computing_ms` over the makespan: 1 where nothing is lost to communication or contention."""
        return self.computing_ms / self.makespan_ms

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the design, those that are repeated included."""
        return sum(s.macs for s in self.segments)

    @property
    def halo_macs(self) -> int:
        """Multiply-accumulates that bands of rows repeat."""
        return sum(s.halo_macs for s in self.segments)

    @property
    def halo_ms(self) -> float:
        """Time that bands of rows spend on what they do twice, summed over processors: more than the makespan would lose without it."""
        return sum(s.halo_ms for s in self.segments)

    @property
    def repeated_macs(self) -> int:
        """Multiply-accumulates that bands of rows and branches of channels repeat."""
        return sum(s.repeated_macs for s in self.segments)

    @property
    def params(self) -> int:
        """Learned numbers of the design."""
        return sum(s.params for s in self.segments)


def timeline(graph: OpGraph, design: BranchDesign, costs: Costs) -> Timeline:
    """Predict the run of a design from the very operators it consists of.

    Args:
        graph: The original network.
        design: A complete design.
        costs: Costs on the device.

    Raises:
        StretchError: If the design does not fit the network.
        UnknownNameError: If the device lacks one of its processors.
    """
    originals = design_segments(graph, design)
    holder, at, channels = costs.host, 0.0, graph.input.shape[1]
    rows: list[SegmentTime] = []
    for segment, part, scaled in zip(originals, design.segments, scaled_branches(graph, design), strict=True):
        shape = segment.graph.input.shape
        elements = shape[0] * channels * prod(shape[2:])
        joined = len(part.branches) > 1
        if join_of(part.join).placed:
            times = portion_times(part.branches, [made.graph for made in scaled], {part.start: holder}, costs)
        else:
            times = tuple(
                _branch(scale, made.graph, holder, elements, joined, costs) for scale, made in zip(part.branches, scaled, strict=True)
            )
        repeated, params, twice_ms = 0, None, 0.0
        if join_of(part.join).shares:
            once = _undivided(segment, part, channels)
            repeated, params = sum(b.macs for b in times) - once.macs, once.params
        if join_of(part.join).bands:
            bands = [TimedBand(made.graph, time.estimate, time.contention) for made, time in zip(scaled, times, strict=True)]
            twice_ms = halo_ms(segment.graph, bands)
        channels = join_width(segment, part)
        join_ms = costs.join(segment, part.join, channels, len(times))
        rows.append(SegmentTime(segment, part, times, join_ms, at, repeated, params, twice_ms))
        at += rows[-1].ms
        holder = costs.host if join_of(part.join).meets is not None and joined else part.branches[-1].processor
    return Timeline(design, tuple(rows), costs.moves(holder, costs.host, prod(graph.by_name[graph.output].shape)))


def _branch(scale: BranchScale, graph: OpGraph, holder: str, elements: int, joined: bool, costs: Costs) -> BranchTime:
    """One branch, from what arrives until its output is on the host where branches meet."""
    if scale.rows is not None and not cuts_itself(holder, scale.processor, costs.predictor):
        graph = handed(graph)
        elements = prod(graph.input.shape)
    estimate = costs.predictor.predict(graph, scale.processor, costs.precision.get(scale.processor))
    leaving = costs.moves(scale.processor, costs.host, prod(graph.by_name[graph.output].shape)) if joined else {}
    slowed = estimate.contended_ms - estimate.computing_ms if joined else 0.0
    entering = costs.moves(holder, scale.processor, elements)
    links = {far: entering.get(far, 0.0) + leaving.get(far, 0.0) for far in (*entering, *leaving)}
    into, out, alone = sum(entering.values()), sum(leaving.values()), estimate.computing_ms
    return BranchTime(scale, graph.macs, graph.params, into, links, alone, slowed, out, estimate)


def portion_times(
    scales: Sequence[BranchScale], graphs: Sequence[OpGraph], arriving: Mapping[str, str], costs: Costs
) -> tuple[BranchTime, ...]:
    """Portions of a segment on the timeline: each waits for what it reads, and fetches what is on another processor.

    Args:
        scales: The portions.
        graphs: Their graphs.
        arriving: Processor that holds what arrives at the segment, by tensor.
        costs: Costs on the device.
    """
    holders = dict(arriving)
    writers: dict[str, int] = {}
    times, jobs = [], []
    for number, (scale, graph) in enumerate(zip(scales, graphs, strict=True)):
        estimate = costs.predictor.predict(graph, scale.processor, costs.precision.get(scale.processor))
        links: dict[str, float] = {}
        for source in graph.inputs:
            for far, ms in costs.moves(holders[source.name], scale.processor, prod(source.shape)).items():
                links[far] = links.get(far, 0.0) + ms
        alone, slowed = estimate.computing_ms, estimate.contended_ms - estimate.computing_ms
        times.append(BranchTime(scale, graph.macs, graph.params, sum(links.values()), links, alone, slowed, 0.0, estimate))
        reads = dict.fromkeys(writers[source.name] for source in graph.inputs if source.name in writers)
        jobs.append(Job(scale.processor, times[-1].total_ms, tuple(reads)))
        holders.update(dict.fromkeys(graph.outputs, scale.processor))
        writers.update(dict.fromkeys(graph.outputs, number))
    found = schedule(jobs)
    return tuple(replace(time, start_ms=start, waits=waits) for time, start, waits in zip(times, found.starts, found.waits, strict=True))


def _undivided(segment: Segment, part: SegmentDesign, channels: int) -> OpGraph:
    """A segment in one piece, where so many channels arrive."""
    if channels == segment.in_width:
        return segment.graph
    whole = SegmentDesign(part.name, part.start, part.end, (replace(part.branches[0], rows=None, channels=None),))
    return scale_branch(segment, whole, 0, channels).graph


def single_ms(graph: OpGraph, processor: str, precision: str | None, costs: Costs) -> float:
    """A whole network on one processor, its input and output in the host's memory, ms."""
    alone = costs.at(processor, precision)
    moving = alone.transfer(costs.host, processor, prod(graph.input.shape)) + alone.transfer(
        processor, costs.host, prod(graph.by_name[graph.output].shape)
    )
    return costs.predictor.predict(graph, processor, precision).computing_ms + moving


def ideal_split_ms(graph: OpGraph, processors: Sequence[str], predictor: LatencyPredictor, precision: dict[str, str]) -> float:
    """The original divided over the processors without any loss: 1 / Σ 1/t, ms."""
    return 1 / sum(1 / predictor.predict(graph, p, precision.get(p)).computing_ms for p in processors)
