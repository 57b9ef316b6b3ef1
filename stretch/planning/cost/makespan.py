"""Predicted timeline of a design: branches overlap, meeting points wait, transfers cost.

Algorithm 1 of paper 003 as arithmetic. A segment takes

    max over branches (transfer in + computation + contention + transfer to the host) + join,

where contention counts while another branch computes (`predictors.side_by_side`); a whole segment its transfer in and its
computation; the model's input and output are in the host's memory. Branches that hand tensors to each other fetch what they read.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.side_by_side import ProcessorWork, ends
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.times import BranchTime, SegmentTime, SideTime, Timeline, added_up
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, SideDesign
from stretch.planning.design.scale import ScaledBranch, check_sides, design_segments, join_width, run_graph, scaled_branches, whole_branch
from stretch.planning.network.backbone import Backbone, backbone_of
from stretch.planning.network.segments import Segment

# When jobs run that wait for each other on several processors: the order of the runtime, as arithmetic.
#
# A processor that is free takes the first of its jobs, in the order of their list,
# that has all it reads; it never waits for an earlier one while a later one can
# start. The state machine (`scheduler.runtime.machine`) does the same with the
# subgraphs of a bundle.


@dataclass(frozen=True)
class Job:
    """Work that occupies one processor."""

    processor: str  # Which.
    ms: float  # How long, transfers of what it reads included.
    reads: tuple[int, ...] = ()  # Numbers of the jobs that write what it reads.


@dataclass(frozen=True)
class Schedule:
    """When each job runs."""

    starts: tuple[float, ...]  # Start of each, ms.
    ends: tuple[float, ...]  # End of each, ms.
    #: For each the jobs that it waits for: those that it reads from, and the one before it on its processor. It starts when the last of
    #: them has ended.
    waits: tuple[tuple[int, ...], ...]

    @property
    def ms(self) -> float:
        """From the start of the first job to the end of the last."""
        return max(self.ends, default=0.0)


def schedule(jobs: Sequence[Job]) -> Schedule:
    """The schedule of some jobs, each on its processor."""
    readers, missing = waiting([job.reads for job in jobs])
    places = sorted({job.processor for job in jobs})
    starts, ends, before = run([places.index(job.processor) for job in jobs], [job.ms for job in jobs], readers, missing, len(places))
    waits = tuple(
        tuple(dict.fromkeys((*job.reads, *(() if earlier is None else (earlier,))))) for job, earlier in zip(jobs, before, strict=True)
    )
    return Schedule(tuple(starts), tuple(ends), waits)


def waiting(reads: Sequence[Collection[int]]) -> tuple[list[list[int]], list[int]]:
    """The jobs that read from each job, and how many each reads from."""
    readers: list[list[int]] = [[] for _ in reads]
    missing = []
    for number, read in enumerate(reads):
        sources = set(read)
        missing.append(len(sources))
        for source in sources:
            readers[source].append(number)
    return readers, missing


def run(
    places: Sequence[int], ms: Sequence[float], readers: Sequence[Sequence[int]], missing: Sequence[int], processors: int
) -> tuple[list[float], list[float], list[int | None]]:
    """What `schedule` says, for whoever asks often: starts, ends, and the job before each on its processor. `readers` and `missing` are of `waiting`."""
    left = list(missing)
    ready: list[list[int]] = [[] for _ in range(processors)]
    for number, place in enumerate(places):
        if not left[number]:
            ready[place].append(number)  # in order, so it is a heap
    starts, ends = [0.0] * len(places), [0.0] * len(places)
    before: list[int | None] = [None] * len(places)
    last: list[int | None] = [None] * processors
    idle = [True] * processors
    running: list[tuple[float, int, int]] = []
    started, now = 0, 0.0
    touched: Iterable[int] = range(processors)
    while True:
        for place in touched:
            if idle[place] and ready[place]:
                number = heapq.heappop(ready[place])
                starts[number], ends[number] = now, now + ms[number]
                before[number], last[place] = last[place], number
                idle[place] = False
                heapq.heappush(running, (ends[number], started, number))
                started += 1
        if not running:
            break
        now, _, number = heapq.heappop(running)
        idle[places[number]] = True
        touched = {places[number]}
        for reader in readers[number]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready[places[reader]], reader)
                touched.add(places[reader])
    if started < len(places):
        raise ValueError("jobs wait for each other in a circle")
    return starts, ends, before


# When the backbone of a network and the parts beside it run: one schedule of all.
#
# Each branch of a segment, each join and each side is a job (`stretch.planning.cost.makespan`);
# where several could start on a processor, the backbone comes before the sides that do not feed it.


def _timed(
    scale: BranchScale, graph: OpGraph, into: Sequence[Mapping[str, float]], out: Sequence[Mapping[str, float]], costs: Costs
) -> BranchTime:
    """A branch, or a side, that moves what it reads and what it writes: ms by processor at the far end of each link."""
    estimate = costs.predictor.predict(graph, scale.processor, costs.precision.get(scale.processor))
    in_ms, out_ms = (sum(added_up(item for links in moved for item in links.items()).values()) for moved in (into, out))
    links = added_up(item for links in (*into, *out) for item in links.items())
    return BranchTime(scale, graph.macs, graph.params, in_ms, links, estimate.computing_ms, 0.0, out_ms, estimate)


def beside(backbone: Backbone, design: BranchDesign, segments: Sequence[SegmentTime], times: Mapping[str, BranchTime]) -> Timeline:
    """The backbone and its sides on one timeline."""
    jobs: list[Job] = []
    writers: dict[str, int] = {}
    numbers: dict[str, int] = {}

    def add_side(graph: OpGraph) -> None:
        reads = tuple(dict.fromkeys(writers[source.name] for source in graph.inputs if source.name in writers))
        numbers[graph.name] = len(jobs)
        writers.update(dict.fromkeys(graph.outputs, len(jobs)))
        jobs.append(Job(times[graph.name].scale.processor, times[graph.name].total_ms, reads))

    for side in backbone.before:
        add_side(side)
    spans: list[tuple[int, int]] = []
    for row in segments:
        first = len(jobs)
        arrives = (writers[row.design.start],) if row.design.start in writers else ()
        for branch in row.branches:
            reads = tuple(first + wait for wait in branch.waits) or arrives
            jobs.append(Job(branch.scale.processor, branch.total_ms, reads))
        spans.append((first, len(jobs)))
        if row.join_ms:
            # no processor waits for a join: whoever is done with its branch goes on
            jobs.append(Job(f"join of {row.design.name}", row.join_ms, tuple(range(first, len(jobs)))))
        writers[row.design.end] = len(jobs) - 1
    for side in backbone.after:
        add_side(side)
    scheduled = schedule(jobs)
    rows, at = [], scheduled.starts[spans[0][0]] if spans else 0.0
    for row, (first, behind) in zip(segments, spans, strict=True):
        branches = tuple(
            replace(branch, start_ms=start - at) for branch, start in zip(row.branches, scheduled.starts[first:behind], strict=True)
        )
        rows.append(replace(row, branches=branches, start_ms=at))
        at = scheduled.ends[behind] if row.join_ms else scheduled.ends[behind - 1]
    sides = []
    for side in backbone.sides:
        number = numbers[side.name]
        sides.append(SideTime(side.name, side, replace(times[side.name], start_ms=scheduled.starts[number], waits=scheduled.waits[number])))
    return Timeline(design, tuple(rows), {}, tuple(sides), scheduled.waits)


def timeline(graph: OpGraph, design: BranchDesign, costs: Costs) -> Timeline:
    """Predict the run of a design from the very operators it consists of."""
    backbone = backbone_of(graph)
    if not backbone.sides and len(graph.outputs) == 1:
        rows, holders = backbone_times(graph, design, costs, costs.host)
        return Timeline(design, tuple(rows), costs.moves(holders[graph.output], costs.host, prod(graph.by_name[graph.output].shape)))
    check_sides(backbone, design)
    return SidedTimes(graph, design, costs).timeline(design.sides)


class SidedTimes:
    """Timelines of a design of several results, or with sides, wherever these run."""

    def __init__(self, graph: OpGraph, design: BranchDesign, costs: Costs) -> None:
        self._graph, self._design, self._costs, self._backbone = graph, design, costs, backbone_of(graph)
        self._rows: dict[str, tuple[list[SegmentTime], dict[str, str]]] = {}
        self._sides: dict[tuple[str, str, tuple[str, ...]], BranchTime] = {}

    def timeline(self, sides: Sequence[SideDesign]) -> Timeline:
        """The run with the sides where they are placed."""
        placed = {side.name: side.processor for side in sides}
        holders = dict.fromkeys((op.name for op in self._graph.inputs), self._costs.host)
        times: dict[str, BranchTime] = {}
        self._add(self._backbone.before, placed, holders, times)
        start = holders[self._backbone.graph.input.name]
        if start not in self._rows:
            self._rows[start] = backbone_times(self._graph, self._design, self._costs, start)
        rows, written = self._rows[start]
        holders |= written
        self._add(self._backbone.after, placed, holders, times)
        design = replace(self._design, sides=tuple(sides))
        return beside(self._backbone, design, rows, times) if times else Timeline(design, tuple(rows), {})

    def _add(self, some: Sequence[OpGraph], placed: Mapping[str, str], holders: dict[str, str], times: dict[str, BranchTime]) -> None:
        """The times of some sides, and who holds what they write."""
        for side in some:
            processor = placed[side.name]
            key = side.name, processor, tuple(holders[source.name] for source in side.inputs)
            if key not in self._sides:
                costs, returned = self._costs, [name for name in side.outputs if name in self._graph.outputs]
                into = [costs.moves(holders[source.name], processor, prod(source.shape)) for source in side.inputs]
                out = [costs.moves(processor, costs.host, prod(side.by_name[name].shape)) for name in returned]
                self._sides[key] = _timed(BranchScale(processor, 0, 0), side, into, out, costs)
            times[side.name] = self._sides[key]
            holders.update(dict.fromkeys(side.outputs, processor))


def backbone_times(graph: OpGraph, design: BranchDesign, costs: Costs, holder: str) -> tuple[list[SegmentTime], dict[str, str]]:
    """The segments of a network's backbone on the timeline, one after the other, and the processor that holds the end of each."""
    # one result is moved at the end of the run; of several each by who computes it
    returned = graph.outputs if len(graph.outputs) > 1 or design.sides or backbone_of(graph).sides else ()
    at, channels = 0.0, backbone_of(graph).graph.input.shape[1]
    rows: list[SegmentTime] = []
    holders: dict[str, str] = {}
    for segment, part, scaled in zip(design_segments(graph, design), design.segments, scaled_branches(graph, design), strict=True):
        row, holder = segment_time(segment, part, scaled, holder, channels, costs, returned=part.end in returned)
        rows.append(replace(row, start_ms=at))
        at += row.ms
        channels = join_width(segment, part)
        holders[part.end] = holder
    return rows, holders


def segment_time(
    segment: Segment,
    part: SegmentDesign,
    scaled: Sequence[ScaledBranch],
    holder: str,
    channels: int,
    costs: Costs,
    *,
    returned: bool = False,
) -> tuple[SegmentTime, str]:
    """One segment as if it began at once, and the processor that holds its end."""
    joined, division = len(part.branches) > 1, part.division
    graphs = [run_graph(built, scale) for built, scale in zip(scaled, part.branches, strict=True)]
    if join_of(part.join).hands_on:
        times = subgraph_times(part.branches, graphs, {part.start: holder}, costs)
    else:
        if division is not None:
            at = [scale.processor for scale in part.branches]
            graphs = [division.arriving(graph, holder, name, costs.predictor) for graph, name in zip(graphs, at, strict=True)]
        times = tuple(_branch(scale, graph, holder, joined, costs) for scale, graph in zip(part.branches, graphs, strict=True))
        times = side_by_side(times, costs.predictor.device) if joined else times
    repeated, params, repeated_ms = 0, None, 0.0
    if division is not None and part.shares_weights:
        once = whole_branch(segment, part, channels).graph
        repeated, params = sum(b.macs for b in times) - once.macs, once.params
        pieces = ((built.graph, time.estimate, time.contention) for built, time in zip(scaled, times, strict=True))
        repeated_ms = division.repeated_ms(segment.graph, pieces)
    meets = join_of(part.join).meets is not None and joined
    holder = costs.host if meets else part.branches[-1].processor
    if returned and not meets:
        times = (*times[:-1], _handing_back(times[-1], costs.moves(holder, costs.host, prod(segment.graph.by_name[part.end].shape))))
    join_ms = costs.join(segment, part.join, join_width(segment, part), len(times))
    return SegmentTime(segment, part, times, join_ms, 0.0, repeated, params, repeated_ms), holder


def _handing_back(time: BranchTime, moved: Mapping[str, float]) -> BranchTime:
    """A branch that also moves what it writes to the host."""
    return replace(time, links=added_up([*time.links.items(), *moved.items()]), out_ms=time.out_ms + sum(moved.values()))


def _branch(scale: BranchScale, graph: OpGraph, holder: str, joined: bool, costs: Costs) -> BranchTime:
    """One branch, from what arrives until its output is on the host where branches meet."""
    leaving = costs.moves(scale.processor, costs.host, prod(graph.by_name[graph.output].shape)) if joined else {}
    return _timed(scale, graph, [costs.moves(holder, scale.processor, prod(graph.input.shape))], [leaving], costs)


def side_by_side(branches: Sequence[BranchTime], device: DeviceProfile) -> tuple[BranchTime, ...]:
    """Branches that begin together, each slower while another one computes."""
    works = []
    for branch in branches:
        processor, estimate = branch.scale.processor, branch.estimate
        works.append(ProcessorWork(processor, branch.in_ms, branch.ms, estimate.contention, device.feeder(processor)))
    return tuple(
        replace(branch, contention_ms=max(0.0, end - branch.in_ms - branch.ms)) for branch, end in zip(branches, ends(works), strict=True)
    )


def subgraph_times(
    scales: Sequence[BranchScale], graphs: Sequence[OpGraph], arriving: Mapping[str, str], costs: Costs
) -> tuple[BranchTime, ...]:
    """Portions of a segment on the timeline: each waits for what it reads, and fetches what is on another processor."""
    holders = dict(arriving)
    writers: dict[str, int] = {}
    times, jobs = [], []
    for number, (scale, graph) in enumerate(zip(scales, graphs, strict=True)):
        time = _timed(scale, graph, [costs.moves(holders[op.name], scale.processor, prod(op.shape)) for op in graph.inputs], [], costs)
        times.append(replace(time, contention_ms=time.estimate.contended_ms - time.ms))
        reads = dict.fromkeys(writers[source.name] for source in graph.inputs if source.name in writers)
        jobs.append(Job(scale.processor, times[-1].total_ms, tuple(reads)))
        holders.update(dict.fromkeys(graph.outputs, scale.processor))
        writers.update(dict.fromkeys(graph.outputs, number))
    scheduled = schedule(jobs)
    return tuple(
        replace(time, start_ms=start, waits=waits) for time, start, waits in zip(times, scheduled.starts, scheduled.waits, strict=True)
    )


def single_ms(graph: OpGraph, processor: str, precision: str | None, costs: Costs) -> float:
    """A whole network on one processor, its input and output in the host's memory, ms."""
    alone = costs.at(processor, precision)
    moving = sum(alone.transfer(costs.host, processor, prod(op.shape)) for op in graph.inputs)
    moving += sum(alone.transfer(processor, costs.host, prod(graph.by_name[name].shape)) for name in graph.outputs)
    return costs.predictor.predict(graph, processor, precision).computing_ms + moving
