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
    """One branch of one segment."""

    name: str  # Its name in its segment, as its subgraph has it: that of its processor, and a number if that has several.
    processor: str  # Where it runs.
    depth: int  # Blocks kept.
    width: int  # Channels of its backbone.
    entry: EntryKind  # How it begins.
    join: JoinKind  # How it meets the others.
    partition: int  # Channels that it contributes to the joined tensor.
    align: int  # Inner channel counts are multiples of it.
    rows: list[int] | None  # First row of the segment's output that it computes, and the one behind its last; None for all.
    paths: list[int] | None  # First path of the segment's own that it computes, and the one behind its last; None for all.
    #: First channel of the segment's output, or with the join ``partial_sums`` of its hidden tensor, that it computes, and the one behind
    #: its last; None for all.
    channels: list[int] | None
    ends: list[str] | None  # Tensors that it hands on where it is a portion of the segment's operators; None else.
    rewrites: list[str]  # What it has instead of operators of the original, as ``silu=relu6``.
    macs: int  # Multiply-accumulates, its part of the join included, and of a band of rows those of its halo.
    params: int  # Learned numbers.
    start_ms: float  # When it starts, from the start of its segment.
    predicted_ms: float  # Time alone on its processor.
    contention_ms: float  # What the others' memory traffic adds.
    in_ms: float  # Until it has its input.
    out_ms: float  # Until the host has its output.


class SegmentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One segment."""

    name: str  # Its name.
    start: str  # Tensor that it reads.
    end: str  # Tensor that it writes.
    stages: list[str]  # Stages of the network that lie in it.
    shape: list[int]  # Of the tensor that it writes.
    depth: int  # Blocks of the original.
    width: int  # Channels of the original.
    macs: int  # Multiply-accumulates of the original.
    #: ``whole``, ``stretch`` for scaled copies, which are another network, or ``rows`` for bands of rows, ``channels`` for some channels
    #: each and ``graph`` for its own parallel paths and portions, which are not.
    kind: SegmentKind
    halo: float  # Multiply-accumulates that bands of rows do twice, over the original's.
    #: Time that its bands together spend on rows that two of them compute, ms: of each kernel's time the share of its rows, over all bands,
    #: beyond those of the segment in one piece.
    halo_ms: float
    repeated: float  # Those, and what branches of channels do twice, over the original's.
    join: JoinKind  # How its branches meet.
    join_ms: float  # What joining takes.
    predicted_ms: float  # From its input to its output.
    start_ms: float  # When it begins.
    branches: list[BranchAnswer]  # Its branches.


class SideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a network with several inputs or outputs that lies beside its backbone, and runs whole."""

    name: str  # ``side1``, ``side2``, …
    processor: str  # Where it runs.
    reads: list[str]  # Tensors that it reads.
    writes: list[str]  # Tensors that it writes.
    operators: int  # How many it has.
    macs: int  # Multiply-accumulates.
    start_ms: float  # When it begins.
    predicted_ms: float  # Its computation.
    in_ms: float  # Transfers of what it reads.
    out_ms: float  # Transfers of what the network returns.


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a design and of its controls, ms; a control that does not exist is None."""

    makespan_ms: float  # Of the branched network.
    best_single_ms: float  # Of the original on the best single processor.
    best_single_processor: str  # Which.
    best_single_precision: str  # In which precision.
    speedup: float  # Best single processor over the makespan.
    sequential_same_macs_ms: float | None  # Of the sequential model scaled to the same multiply-accumulates.
    sequential_same_macs_processor: str | None  # Where.
    sequential_same_macs_ratio: float | None  # Its multiply-accumulates over the original's.
    whole_graph_ms: float  # Of the branched network as one graph on one processor.
    whole_graph_processor: str  # Which.
    #: Of the original with every kernel-sized part on one processor or its rows over several, whichever is faster: the design
    #: `operator_split_design`.
    operator_split_ms: float
    ideal_split_ms: float  # Of the original divided without loss.
    ideal_fraction: float  # Ideal split over the makespan.
    efficiency: float  # Serial parts and slowest branches alone, over the makespan.
    communication_ms: float  # Of transfers and joins.
    optimal: bool | None  # Whether no design of the space is better in the objective; None where that was not asked.
    gap: float | None  # How much better one might be, as a fraction; None where not known.
    expected_ms: float  # The mean of the makespan over what its numbers may be.
    makespan_low_ms: float  # Lower end of the 90 % interval around the makespan.
    makespan_high_ms: float  # Upper end.
    probability_faster: dict[str, float]  # That the branched run is faster than each control, and than ``all`` of them.
    told: list[str]  # Controls that are told and not recommended: beside an exact design those that would have to be trained.
    measure_next: str | None  # The number of the profile that decides most; None if nothing is uncertain.
    links: tuple[LinkFigure, ...]  # The design at the lower ends of the links' intervals, as stated, and at the upper ends.
    changes: tuple[Change, ...]  # The design, and what would be recommended, with other numbers that hang together at half and at twice.
    #: How many times as fast all processors but the best single one would have to be for the same branches to take no longer than that one
    #: alone; None if they do already, or never would.
    crossover: float | None
    #: The best single processor, where not even a division without loss would be faster, also at the ends of their intervals; None
    #: elsewhere.
    far_ahead: str | None
    #: How many times as fast all others would have to be for a division without loss, which meets once in the middle, to take no longer
    #: than that processor computes alone; None if they are, or never would be.
    crossover_divided: float | None
    #: Energy of its processors while they compute, and while they wait or have no work where the profile states that power; None if it
    #: states no power of one that computes.
    energy_mj: float | None
    best_single_energy_mj: float | None  # The same of the best single processor.
    sequential_same_macs_energy_mj: float | None  # The same of the sequential network; None too where there is none.
    energy: tuple[EnergyPart, ...]  # What `energy_mj` is made of, by processor and state, with the source of each power.
    source: str = "predicted"  # Where the numbers come from.

    def to_json(self) -> dict[str, Any]:
        """The `predicted` object of the command line's JSON."""
        return plain(self)


class ObjectiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a design was to be best in."""

    asked: str  # As it was asked for.
    value: float | None  # Of the design; None where the profile lacks what it takes, as for a design made elsewhere.
    unit: str  # Of the value; empty for a mixture of several and for a share.
    strategy: str  # How designs were searched.


class UnusedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor that a design leaves without work."""

    processor: str  # Which.
    ms: float | None  # The fastest design within the constraints that uses it, ms; None if there is none, or it was not searched for.
    best_ms: float  # The design that was chosen, ms.
    rule: str | None  # The rule that no branch on it meets, with the nearest any comes to it; None if some branch meets them all.
    reason: str  # Why, for people.


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A design with its prediction and what it was compared with."""

    model: str  # The network.
    device: str  # The device.
    calibrated: bool  # Whether its profile was fitted to measurements.
    macs: int  # Multiply-accumulates, those that are repeated included.
    params: int  # Learned numbers.
    exact: bool  # Whether it computes exactly what the original computes, in fp32; `rounding` says what planned precisions change.
    rounding: list[str]  # Planned precisions of its work that round beyond fp32: ``int8``, ``fp16``.
    halo: float  # Multiply-accumulates that bands of rows do twice, over the original's.
    halo_ms: float  # Time that all bands spend on them, summed over processors, ms.
    repeated: float  # Those, and what branches of channels do twice, over the original's.
    macs_ratio: float  # Over the original's.
    params_ratio: float | None  # Over the original's; None where that has none.
    n_meet: int  # Meeting points.
    segments: list[SegmentAnswer]  # The segments.
    sides: list[SideAnswer]  # The parts beside the backbone of a network with several inputs or outputs.
    design: BranchDesign  # The design, as a design file has it.
    predicted: Predicted  # Its times and those of its controls.
    objective: ObjectiveAnswer  # What it was to be best in.
    accuracy: PredictedAccuracy | None  # Predicted accuracy, where a predictor was given.
    recommended: str  # What to run.
    comparisons: list[Rival]  # Each control beside the design, with the interval of their ratio.
    unused: list[UnusedProcessor]  # Processors without work, and why.
    sequential_design: BranchDesign | None  # Of the sequential control.
    operator_split_design: BranchDesign  # Of the control whose operators are split.
    evaluated: int  # Ways whose cost was computed.
    space_log10: float | None  # Decimal logarithm of the number of designs.
    precision: dict[str, str]  # Of each processor.
    warnings: list[str]  # What a person should know.

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
