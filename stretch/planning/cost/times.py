"""What a predicted run consists of: branches, segments, and the parts beside the backbone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from predictors.graph import OpGraph
from predictors.joins import join_of
from predictors.predictor import Estimate
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.network.segments import Segment


def added_up(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums by name, in the order in which names come."""
    result: dict[str, float] = {}
    for name, ms in pairs:
        result[name] = result.get(name, 0.0) + ms
    return result


@dataclass(frozen=True)
class BranchTime:
    """One branch on the timeline."""

    scale: BranchScale  # The branch.
    macs: int  # Multiply-accumulates, its part of the join included.
    params: int  # Learned numbers.
    in_ms: float  # Transfer of its input.
    links: Mapping[str, float]  # Its transfers in and out, ms by processor at the far end of the link.
    ms: float  # Computation, running alone.
    contention_ms: float  # What it takes longer beside the other branches.
    out_ms: float  # Transfer of its output to where it is needed.
    estimate: Estimate  # What `ms` is made of.
    start_ms: float = 0.0  # When it starts, from the start of its segment.
    waits: tuple[int, ...] = ()  # Numbers of the branches of its segment that it waits for; none where branches start together.

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
    """One segment on the timeline."""

    segment: Segment  # The original segment.
    design: SegmentDesign  # Its design.
    branches: tuple[BranchTime, ...]  # Its branches.
    join_ms: float  # Time of the join.
    start_ms: float  # When it starts.
    #: Multiply-accumulates that bands of rows or branches of channels do beyond those of the segment in one piece: what several of them
    #: compute.
    repeated_macs: int = 0
    shared_params: int | None = None  # Learned numbers that all branches have in common, or parts of; None where each has its own.
    #: Time that all bands together spend on rows that the segment in one piece computes once (`stretch.planning.cost.makespan`).
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
        division = self.design.division
        return self.repeated_macs if division is not None and division.halo else 0

    @property
    def ms(self) -> float:
        """From its start to its end."""
        return max(b.start_ms + b.total_ms for b in self.branches) + self.join_ms

    @property
    def computing_ms(self) -> float:
        """Computation of the processor that computes longest, each branch alone."""
        return max(added_up((b.scale.processor, b.ms) for b in self.branches).values())

    @property
    def communication_ms(self) -> float:
        """Time beside the computation of the processor that computes longest."""
        return self.ms - max(added_up((b.scale.processor, b.ms + b.contention_ms) for b in self.branches).values())


def computed(branches: Iterable[BranchTime]) -> dict[str, float]:
    """How long each processor computes some branches beside each other, ms."""
    return added_up((branch.scale.processor, ms) for branch in branches for ms in (branch.ms, branch.contention_ms))


@dataclass(frozen=True)
class SideTime:
    """A part beside the backbone on the timeline."""

    name: str  # Of the side.
    graph: OpGraph  # Its operators.
    time: BranchTime  # As of a branch; it starts `time.start_ms` after the input is there.

    @property
    def end_ms(self) -> float:
        """When its output has arrived."""
        return self.time.start_ms + self.time.total_ms


@dataclass(frozen=True)
class Timeline:
    """The predicted run of a design."""

    design: BranchDesign  # The design.
    segments: tuple[SegmentTime, ...]  # In order.
    #: Transfer of the result to the host, ms by processor at the far end of the link; of several results each is moved by who computes it.
    output: Mapping[str, float]
    sides: tuple[
        SideTime, ...
    ] = ()  # The parts beside the backbone; where there are some, segments start when the schedule of all lets them.
    waits: tuple[tuple[int, ...], ...] = ()  # With sides, what waits for what (`stretch.planning.cost.makespan.beside`).

    @property
    def output_ms(self) -> float:
        """Transfer of the result to the host."""
        return sum(self.output.values())

    @property
    def makespan_ms(self) -> float:
        """Time from input ready to output ready."""
        if self.sides:
            return max([s.start_ms + s.ms for s in self.segments] + [side.end_ms for side in self.sides])
        return sum(s.ms for s in self.segments) + self.output_ms

    @property
    def computing_ms(self) -> float:
        """Serial parts plus the slowest branch of each segment, each alone; with sides, what runs beyond the backbone's segments counts too."""
        computing = sum(s.computing_ms for s in self.segments)
        return computing + self.makespan_ms - sum(s.ms for s in self.segments) if self.sides else computing

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
        return sum(s.macs for s in self.segments) + sum(side.time.macs for side in self.sides)

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
        return sum(s.params for s in self.segments) + sum(side.time.params for side in self.sides)


# Energy of a predicted run (paper 003, section 7.3).


def run_mj(run: Timeline, device: DeviceProfile) -> float | None:
    """Energy of the processors that have work, mJ: while they compute, and while they wait where that power is known."""
    return EnergyModel(device).plan_mj(busy_ms(run), run.makespan_ms)


def busy_ms(run: Timeline) -> dict[str, float]:
    """How long each processor computes in a run, ms."""
    return computed([*(branch for row in run.segments for branch in row.branches), *(side.time for side in run.sides)])


# How often a design can run where many inferences are in flight: as often as its busiest processor can.
#
# Then no processor waits for another, so that only what occupies each of them counts: transfers,
# computing beside others, and the joins of whoever joins.


def occupied_ms(segments: Iterable[SegmentTime], host: str, sides: Iterable[SideTime] = ()) -> dict[str, float]:
    """How long an inference occupies each processor, ms."""
    pairs = []
    for row in segments:
        pairs += [(branch.scale.processor, branch.total_ms) for branch in row.branches] + ([(host, row.join_ms)] if row.join_ms else [])
    return added_up([*pairs, *((side.time.scale.processor, side.time.total_ms) for side in sides)])


def most_occupied_ms(occupied: Mapping[str, float]) -> float:
    """Of the busiest processor."""
    return max(occupied.values(), default=0.0)


def busiest_ms(run: Timeline, host: str) -> float:
    """How long an inference occupies the busiest processor, ms: between two results, with many in flight."""
    occupied = occupied_ms(run.segments, host, run.sides)
    last = last_holder(run, host)
    return most_occupied_ms({**occupied, last: occupied.get(last, 0.0) + run.output_ms})


def last_holder(run: Timeline, host: str) -> str:
    """The processor that holds what the backbone of a run ends with."""
    part = run.segments[-1].design
    meets = join_of(part.join).meets is not None and len(part.branches) > 1
    return host if meets else part.branches[-1].processor
