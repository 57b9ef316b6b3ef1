"""What the planner answers, as plain data: JSON, tables and reports all read these structs, whose fields are the JSON's keys."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from predictors.energy import EnergyPart
from predictors.joins import JoinKind
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.compare import LinkFigure, Rival
from stretch.planning.cost.deciding import Change
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.segments import EntryKind

#: What became of a segment.
SegmentKind = Literal["whole", "stretch", "rows", "channels", "graph"]


class BranchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One branch of one segment.

    Args:
        name: Its name in its segment, as its subgraph has it: that of its processor, and a number if that has several.
        processor: Where it runs.
        depth: Blocks kept.
        width: Channels of its trunk.
        entry: How it begins.
        join: How it meets the others.
        partition: Channels that it contributes to the joined tensor.
        align: Inner channel counts are multiples of it.
        rows: First row of the segment's output that it computes, and the one behind its last; None for all.
        paths: First path of the segment's own that it computes, and the one behind its last; None for all.
        channels: First channel of the segment's output, or with the join ``partial_sums`` of its hidden tensor, that it computes, and the
            one behind its last; None for all.
        ends: Tensors that it hands on where it is a portion of the segment's operators; None else.
        rewrites: What it has instead of operators of the original, as ``silu=relu6``.
        macs: Multiply-accumulates, its part of the join included, and of a band of rows those of its halo.
        params: Learned numbers.
        start_ms: When it starts, from the start of its segment.
        predicted_ms: Time alone on its processor.
        contention_ms: What the others' memory traffic adds.
        in_ms: Until it has its input.
        out_ms: Until the host has its output.
    """

    name: str
    processor: str
    depth: int
    width: int
    entry: EntryKind
    join: JoinKind
    partition: int
    align: int
    rows: list[int] | None
    paths: list[int] | None
    channels: list[int] | None
    ends: list[str] | None
    rewrites: list[str]
    macs: int
    params: int
    start_ms: float
    predicted_ms: float
    contention_ms: float
    in_ms: float
    out_ms: float


class SegmentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One segment.

    Args:
        name: Its name.
        start: Tensor that it reads.
        end: Tensor that it writes.
        stages: Stages of the network that lie in it.
        shape: Of the tensor that it writes.
        depth: Blocks of the original.
        width: Channels of the original.
        macs: Multiply-accumulates of the original.
        kind: ``whole``, ``stretch`` for scaled copies, which are another network, or ``rows`` for bands of rows,
            ``channels`` for some channels each and ``graph`` for its own parallel paths and portions, which are not.
        halo: Multiply-accumulates that bands of rows do twice, over the original's.
        halo_ms: Time that its bands together spend on rows that two of them compute, ms: of each kernel's time the share
            of its rows, over all bands, beyond those of the segment in one piece.
        repeated: Those, and what branches of channels do twice, over the original's.
        join: How its branches meet.
        join_ms: What joining takes.
        predicted_ms: From its input to its output.
        start_ms: When it begins.
        branches: Its branches.
    """

    name: str
    start: str
    end: str
    stages: list[str]
    shape: list[int]
    depth: int
    width: int
    macs: int
    kind: SegmentKind
    halo: float
    halo_ms: float
    repeated: float
    join: JoinKind
    join_ms: float
    predicted_ms: float
    start_ms: float
    branches: list[BranchAnswer]


class SideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a network with several inputs or outputs that lies beside its trunk, and runs whole.

    Args:
        name: ``side1``, ``side2``, …
        processor: Where it runs.
        reads: Tensors that it reads.
        writes: Tensors that it writes.
        operators: How many it has.
        macs: Multiply-accumulates.
        start_ms: When it begins.
        predicted_ms: Its computation.
        in_ms: Transfers of what it reads.
        out_ms: Transfers of what the network returns.
    """

    name: str
    processor: str
    reads: list[str]
    writes: list[str]
    operators: int
    macs: int
    start_ms: float
    predicted_ms: float
    in_ms: float
    out_ms: float


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a design and of its controls, ms; a control that does not exist is None.

    Args:
        makespan_ms: Of the branched network.
        best_single_ms: Of the original on the best single processor.
        best_single_processor: Which.
        best_single_precision: In which precision.
        speedup: Best single processor over the makespan.
        sequential_same_macs_ms: Of the sequential model scaled to the same multiply-accumulates.
        sequential_same_macs_processor: Where.
        sequential_same_macs_ratio: Its multiply-accumulates over the original's.
        whole_graph_ms: Of the branched network as one graph on one processor.
        whole_graph_processor: Which.
        operator_split_ms: Of the original with every kernel-sized part on one processor or its rows over several, whichever is
            faster: the design `operator_split_design`.
        ideal_split_ms: Of the original divided without loss.
        ideal_fraction: Ideal split over the makespan.
        efficiency: Serial parts and slowest branches alone, over the makespan.
        communication_ms: Of transfers and joins.
        optimal: Whether no design of the space is better in the objective; None where that was not asked.
        gap: How much better one might be, as a fraction; None where not known.
        expected_ms: The mean of the makespan over what its numbers may be.
        makespan_low_ms: Lower end of the 90 % interval around the makespan.
        makespan_high_ms: Upper end.
        probability_faster: That the branched run is faster than each control, and than ``all`` of them.
        told: Controls that are told and not recommended: beside an exact design those that would have to be trained.
        measure_next: The number of the profile that decides most; None if nothing is uncertain.
        links: The design with links of half, the stated and twice the time.
        changes: The design, and what would be recommended, with other numbers that hang together at half and at twice.
        crossover: How many times as fast all processors but the best single one would have to be for the same branches to take
            no longer than that one alone; None if they do already, or never would.
        far_ahead: The best single processor, where not even a division without loss would be faster, also at the ends of their
            intervals; None elsewhere.
        crossover_divided: How many times as fast all others would have to be for a division without loss, which meets once in the
            middle, to take no longer than that processor computes alone; None if they are, or never would be.
        energy_mj: Energy of its processors while they compute, and while they wait or have no work where the profile states that
            power; None if it states no power of one that computes.
        best_single_energy_mj: The same of the best single processor.
        sequential_same_macs_energy_mj: The same of the sequential network; None too where there is none.
        energy: What `energy_mj` is made of, by processor and state, with the source of each power.
        source: Where the numbers come from.
    """

    makespan_ms: float
    best_single_ms: float
    best_single_processor: str
    best_single_precision: str
    speedup: float
    sequential_same_macs_ms: float | None
    sequential_same_macs_processor: str | None
    sequential_same_macs_ratio: float | None
    whole_graph_ms: float
    whole_graph_processor: str
    operator_split_ms: float
    ideal_split_ms: float
    ideal_fraction: float
    efficiency: float
    communication_ms: float
    optimal: bool | None
    gap: float | None
    expected_ms: float
    makespan_low_ms: float
    makespan_high_ms: float
    probability_faster: dict[str, float]
    told: list[str]
    measure_next: str | None
    links: tuple[LinkFigure, ...]
    changes: tuple[Change, ...]
    crossover: float | None
    far_ahead: str | None
    crossover_divided: float | None
    energy_mj: float | None
    best_single_energy_mj: float | None
    sequential_same_macs_energy_mj: float | None
    energy: tuple[EnergyPart, ...]
    source: str = "predicted"

    def to_json(self) -> dict[str, Any]:
        """The `predicted` object of the command line's JSON."""
        return plain(self)


class ObjectiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a design was to be best in.

    Args:
        asked: As it was asked for.
        value: Of the design; None where the profile lacks what it takes, as for a design made elsewhere.
        unit: Of the value; empty for a mixture of several and for a share.
        strategy: How designs were searched.
    """

    asked: str
    value: float | None
    unit: str
    strategy: str


class UnusedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor that a design leaves without work.

    Args:
        processor: Which.
        ms: The fastest design within the constraints that uses it, ms; None if there is none, or it was not searched for.
        best_ms: The design that was chosen, ms.
        rule: The rule that no branch on it meets, with the nearest any comes to it; None if some branch meets them all.
        reason: Why, for people.
    """

    processor: str
    ms: float | None
    best_ms: float
    rule: str | None
    reason: str


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design with its prediction and what it was compared with.

    Args:
        model: The network.
        device: The device.
        calibrated: Whether its profile was fitted to measurements.
        macs: Multiply-accumulates, those that are repeated included.
        params: Learned numbers.
        exact: Whether it computes exactly what the original computes, in fp32; `rounding` says what planned precisions change.
        rounding: Planned precisions of its work that round beyond fp32: ``int8``, ``fp16``.
        halo: Multiply-accumulates that bands of rows do twice, over the original's.
        halo_ms: Time that all bands spend on them, summed over processors, ms.
        repeated: Those, and what branches of channels do twice, over the original's.
        macs_ratio: Over the original's.
        params_ratio: Over the original's; None where that has none.
        n_meet: Meeting points.
        segments: The segments.
        sides: The parts beside the trunk of a network with several inputs or outputs.
        design: The design, as a design file has it.
        predicted: Its times and those of its controls.
        objective: What it was to be best in.
        accuracy: Predicted accuracy, where a predictor was given.
        recommended: What to run.
        comparisons: Each control beside the design, with the interval of their ratio.
        unused: Processors without work, and why.
        sequential_design: Of the sequential control.
        operator_split_design: Of the control whose operators are split.
        evaluated: Ways whose cost was computed.
        space_log10: Decimal logarithm of the number of designs.
        precision: Of each processor.
        warnings: What a person should know.
    """

    model: str
    device: str
    calibrated: bool
    macs: int
    params: int
    exact: bool
    rounding: list[str]
    halo: float
    halo_ms: float
    repeated: float
    macs_ratio: float
    params_ratio: float | None
    n_meet: int
    segments: list[SegmentAnswer]
    sides: list[SideAnswer]
    design: BranchDesign
    predicted: Predicted
    objective: ObjectiveAnswer
    accuracy: PredictedAccuracy | None
    recommended: str
    comparisons: list[Rival]
    unused: list[UnusedProcessor]
    sequential_design: BranchDesign | None
    operator_split_design: BranchDesign
    evaluated: int
    space_log10: float | None
    precision: dict[str, str]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """The planner's keys of `stretch branch --json`."""
        return plain(self)


def exact_words(rounding: Sequence[str]) -> str:
    """In which precision an exact design is the original, and what rounds.

    Args:
        rounding: Planned precisions that round beyond fp32.
    """
    return "exact in fp32" + (f"; {' and '.join(rounding)} {'round' if len(rounding) > 1 else 'rounds'}" if rounding else "")


def plain(struct: msgspec.Struct) -> dict[str, Any]:
    """A struct as dictionaries, lists and numbers."""
    found: dict[str, Any] = msgspec.to_builtins(struct, enc_hook=lambda value: value.item())
    return found
