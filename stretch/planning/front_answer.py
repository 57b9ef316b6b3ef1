"""What a front tells, as plain data: JSON, the terminal's table and the picture all read this struct, whose fields are the JSON's keys."""

from typing import Any

import msgspec
from msgspec.structs import replace

from stretch.planning.answer import plain
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.energy import run_mj
from stretch.planning.cost.makespan import timeline
from stretch.planning.cost.sensitivity import MeasuredOn, Sensitivity
from stretch.planning.design.branch_design import BranchDesign, SegmentDesign
from stretch.planning.pareto import Front, FrontDesign
from stretch.planning.search.controls import ranked_singles, sequential_same_macs
from stretch.planning.search.rules import Rules
from stretch.planning.several import Several


class FrontDesignAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One design of a front."""

    name: str  # By which the table and the files call it.
    predicted_ms: float  # Its makespan.
    speedup: float  # Best single processor over the makespan.
    #: The sequential model of the same multiply-accumulates over the makespan; None where there is none.
    speedup_over_sequential: float | None
    macs: int  # Multiply-accumulates, those that are repeated included.
    macs_ratio: float  # Over the original's.
    params: int  # Learned numbers.
    n_meet: int  # Meeting points.
    #: Whether it computes exactly what the original computes, in fp32; `rounding` of the answer says what planned precisions change.
    exact: bool
    branches: list[str]  # What becomes of each segment that branches, in words.
    accuracy: PredictedAccuracy | None  # What is predicted of its accuracy; None where nothing predicts it.
    energy_mj: float | None  # Energy of its processors; None if the profile states no power of one.
    peak_bytes: int  # Activation bytes alive at one time, by the planner's estimate.
    optimal: bool  # Whether no design within the constraints is better in all of what is weighed; false where three things are.
    value: float | None = None  # In what designs were to be best in, where that was asked for.
    design: BranchDesign  # The design, as a design file has it.
    file: str | None = None  # Its design file, where it was written.


class FrontAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A front and what stands beside it."""

    model: str  # The network.
    device: str  # The device.
    processors: list[str]  # That branches may use.
    pareto: list[str]  # What is weighed; nothing where the best design and others that differ were asked for.
    objective: str | None  # What designs were to be best in; None for a front.
    within: float | None  # How many times the best one's value the others may have, at most; None for a front.
    optimal: bool  # Whether the first design is the best one, or all of a front are as they are said to be.
    gap: float | None  # How much better than the first design one might be, as a fraction; None where that is not known, and for a front.
    precision: dict[str, str]  # Planned, of each processor.
    rounding: list[str]  # Of these, the ones that round beyond fp32: ``int8``, ``fp16``.
    designs: list[FrontDesignAnswer]  # From the slowest to the fastest.
    best_single_ms: float  # The original on the best single processor.
    best_single_processor: str  # Which.
    best_single_precision: str  # In which precision.
    #: The sequential model scaled to multiply-accumulates in the range that was asked for; None where there is none.
    sequential_same_macs_ms: float | None
    sequential_same_macs_processor: str | None  # Where.
    sequential_same_macs_ratio: float | None  # Its multiply-accumulates over the original's.
    evaluated: int  # Ways whose cost was computed.
    space_log10: float  # Decimal logarithm of the number of designs.
    seconds: dict[str, float]  # Wall time by what it went into.
    sensitivity: MeasuredOn | None  # On what sensitivity was measured, where designs were weighed by it.
    sensitivity_file: str | None = None  # Where it was written.
    source: str = "predicted"  # Where the numbers come from.
    warnings: list[str] = []  # What a person should know.

    def to_json(self) -> dict[str, Any]:
        """The object that `stretch search --json` prints."""
        return plain(self)


def front_answer(front: Front | Several, seconds: dict[str, float]) -> FrontAnswer:
    """A front, or designs that differ, beside their controls."""
    values = front.values if isinstance(front, Several) else [None] * len(front.designs)
    asked, config = front.asked, front.asked.config
    singles = ranked_singles(asked.graph, asked.costs, config.processors)
    single, sequential = singles[0], sequential_same_macs(asked.graph, asked.stages, asked.costs, singles, Rules.of(config), asked.macs)
    rows = [
        replace(_row(f"{number:02}", front, each, single.ms, None if sequential is None else sequential.single.ms), value=value)
        for number, (each, value) in enumerate(zip(front.designs, values, strict=True), 1)
    ]
    source = asked.accuracy_source
    return FrontAnswer(
        model=asked.graph.name,
        device=asked.device.id,
        processors=list(config.processors),
        pareto=[] if isinstance(front, Several) else list(front.weighed),
        objective=config.objective if isinstance(front, Several) else None,
        within=front.within if isinstance(front, Several) else None,
        optimal=front.optimal if isinstance(front, Several) else all(each.optimal for each in front.designs),
        gap=front.gap if isinstance(front, Several) else None,
        precision=dict(config.precision),
        rounding=sorted(set(config.precision.values()) - {"fp32"}, reverse=True),
        designs=rows,
        best_single_ms=single.ms,
        best_single_processor=single.processor,
        best_single_precision=single.precision,
        sequential_same_macs_ms=sequential.single.ms if sequential else None,
        sequential_same_macs_processor=sequential.single.processor if sequential else None,
        sequential_same_macs_ratio=sequential.macs / asked.graph.macs if sequential else None,
        evaluated=front.evaluated,
        space_log10=front.space_log10,
        seconds=seconds,
        sensitivity=source.on if isinstance(source, Sensitivity) else None,
    )


def _row(name: str, front: Front | Several, found: FrontDesign, single_ms: float, sequential_ms: float | None) -> FrontDesignAnswer:
    asked, source = front.asked, front.asked.accuracy_source
    run = timeline(asked.graph, found.design, asked.costs)
    return FrontDesignAnswer(
        name=name,
        predicted_ms=run.makespan_ms,
        speedup=single_ms / run.makespan_ms,
        speedup_over_sequential=None if sequential_ms is None else sequential_ms / run.makespan_ms,
        macs=run.macs,
        macs_ratio=run.macs / asked.graph.macs,
        params=run.params,
        n_meet=found.n_meet,
        exact=found.exact,
        branches=[words_of(part) for part in found.design.segments if not part.whole],
        accuracy=None if source is None or found.loss is None else source.told(found.loss),
        energy_mj=run_mj(run, asked.device),
        peak_bytes=found.peak_bytes,
        optimal=found.optimal,
        design=found.design,
    )


def words_of(part: SegmentDesign) -> str:
    """A branched segment in a few words."""

    def share(branch: Any) -> str:
        for what in ("rows", "channels", "paths"):
            if (span := getattr(branch, what)) is not None:
                return f"{what} {span[0]}:{span[1]}"
        return "" if branch.ends is not None else f"{branch.depth}×{branch.width}"

    return f"{part.name}: " + " | ".join(f"{branch.processor} {share(branch)}".rstrip() for branch in part.branches)
