"""A plan: a design, its predicted run, and its baselines on the same device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product, zip_longest
from typing import Any, Literal

import msgspec
import numpy as np

from predictors.devices import ITEM_BYTES, DeviceProfile
from predictors.energy import EnergyModel, EnergyPart
from predictors.graph import OpGraph, SharedWeight, shared_weights
from predictors.joins import JoinKind
from predictors.models.roofline import MEASURED, Origin
from predictors.predictor import Estimate, LatencyPredictor, origin_of
from predictors.structs import to_builtins
from stretch.planning.config import ADDITIVE_UNITS, PlanConfig
from stretch.planning.cost import compare
from stretch.planning.cost.accuracy import PredictedAccuracy
from stretch.planning.cost.branch import BranchCost, Costs
from stretch.planning.cost.makespan import BranchTime, SegmentTime, Timeline, Timelines, busy_ms, run_mj, timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, SideDesign
from stretch.planning.design.scale import legal_widths, remaining_shared_weights, scaled_graph
from stretch.planning.network.segments import Segment, backbone_of, join_kinds
from stretch.planning.search.exact import search_exact
from stretch.planning.search.layers import TIE, Layer, shortest_path
from stretch.planning.search.parts import PartSpace, merge_neighbours
from stretch.planning.search.space import DesignSpace, Rules, Totals

#: Largest width ratio of the sequential control: fewer, wider blocks.
MAX_WIDTH_RATIO = 1.5
#: Maximum slowness of a processor to try: rescaling gains up to about a third, so a slower one cannot catch up.
MAX_CATCH_UP = 1.35


def variants(costs: Costs, processors: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs of core set and precision for controls, at least as precise as the plan, so that no control wins by lower accuracy."""
    device = costs.predictor.device
    least = min(ITEM_BYTES[costs.precision[p]] for p in processors)
    of_family = [(device.processor(name).family, device.processor(variant)) for name in processors for variant in device.variants]
    core_sets = [core_set for family, core_set in of_family if core_set.family == family]
    return [(core_set.name, at) for core_set in core_sets for at in core_set.precisions if ITEM_BYTES[at] >= least]


def ranked_singles(graph: OpGraph, costs: Costs, processors: Sequence[str]) -> list[Estimate]:
    """Return the estimates of a network on each single processor (all `variants`), the fastest first."""
    return sorted((costs.predictor.predict(graph, name, at) for name, at in variants(costs, processors)), key=lambda single: single.ms)


@dataclass(frozen=True)
class SequentialControl:
    """The sequential model scaled to the same multiply-accumulates."""

    design: BranchDesign  # One branch per segment, all on one processor; `scaled_graph` builds it.
    single: Estimate  # Fastest run on one processor.
    macs: int  # Multiply-accumulates.


def sequential_same_macs(
    graph: OpGraph, segments: Sequence[Segment], costs: Costs, singles: Sequence[Estimate], rules: Rules, totals: Totals
) -> SequentialControl | None:
    """Return the fastest sequential model with rescaled segments under the same floors; rules on communication do not apply.

    Depths range down to the floor, widths from the floor to `MAX_WIDTH_RATIO`. Dynamic programming over the input width of each segment.
    """
    fast_enough = [single for single in singles if single.ms <= MAX_CATCH_UP * singles[0].ms]
    each = [(costs.replace_precision(single.processor, single.precision), single) for single in fast_enough]
    rescaled = [_scale_to_macs(graph, segments, known, single, rules, totals) for known, single in each]
    return min((control for control in rescaled if control is not None), key=lambda control: control.single.ms, default=None)


def _scale_to_macs(
    graph: OpGraph, segments: Sequence[Segment], costs: Costs, original: Estimate, rules: Rules, totals: Totals
) -> SequentialControl | None:
    processor, least = original.processor, rules.values["segment_macs"]
    align = costs.align(processor)
    arriving = [{segments[0].in_width: 0}]
    layers: list[Layer] = []
    choices: list[list[BranchCost]] = []
    for segment, following in zip_longest(segments, segments[1:]):
        free = segment.branchable and following is not None and "concat" in join_kinds(segment, following)
        leaving: dict[int, int] = {}
        depths = rules.depths(segment) if segment.branchable else [segment.depth]
        offered = _widths(segment, align, rules) if free else [segment.width]
        rewritten = costs.rewritten(segment, processor) if segment.branchable else segment
        costs.prepare(rewritten, processor, offered, arriving[-1])
        fewest = least * segment.graph.macs if segment.branchable else 0
        candidates: list[BranchCost] = []
        rows: list[tuple[int, int, int, float]] = []
        for channels, state in arriving[-1].items():
            for width in [segment.width] if segment.passes_input and channels != segment.in_width else offered:
                for depth in depths:
                    cost = costs.branch(rewritten, processor, depth, width, channels)
                    if cost.macs >= fewest:
                        candidates.append(cost)
                        rows.append((state, leaving.setdefault(width, len(leaving)), cost.macs, cost.ms))
        if not candidates:
            return None
        source, target, counts, times = (np.array(column) for column in zip(*rows, strict=True))
        numbers = np.arange(len(candidates))
        layers.append(Layer(source, target, counts, times, numbers, loss=np.zeros(len(numbers)), span=np.ones_like(numbers)))
        choices.append(candidates)
        arriving.append(leaving)
    states = max(len(a) for a in arriving)
    path = shortest_path(layers, 0, np.zeros(states), totals.low, totals.high)
    if path is None:
        return None
    parts = []
    for segment, candidates, option in zip(segments, choices, path.options, strict=True):
        cost = candidates[option]
        branch = BranchScale(processor, cost.depth, cost.width, cost.entry, 0, align, rewrites=cost.rewrites)
        join: JoinKind = "none" if cost.width == segment.width else "concat"
        parts.append(SegmentDesign(segment.name, segment.start, segment.end, (branch,), join))
    design = BranchDesign(graph.name, costs.predictor.device.id, tuple(parts), sides=sides_on(graph, processor))
    scaled = scaled_graph(graph, design)
    return SequentialControl(design, costs.predictor.predict(scaled, processor, original.precision), scaled.macs)


def _widths(segment: Segment, align: int, rules: Rules) -> list[int]:
    """Return up to 25 widths from the floor to `MAX_WIDTH_RATIO`, the original included."""
    legal = [w for w in legal_widths(segment, align, ceiling=MAX_WIDTH_RATIO) if rules.offers(segment, "width", w)]
    if len(legal) <= 25:
        return legal
    targets = np.linspace(legal[0], legal[-1], 25)
    return sorted({min(legal, key=lambda w: abs(w - t)) for t in targets} | {segment.width})


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the original that a plan's branches and the shortened network keep, by one measure."""

    #: ``measured``, or predicted by the ``sensitivity``: the share of images with the original's class;
    #: ``error``: 1 minus the measured error of outputs other than classes;
    #: ``blocks``: the share of the worth of its blocks; a block is worth the original's loss without it on images.
    basis: Literal["measured", "error", "sensitivity", "blocks"]
    branched: float  # Share of the branched network.
    shortened: float  # Share of the shortened network.
    images: int | None = None  # Number of compared images; None if unknown.


class Shortened(msgspec.Struct, frozen=True, kw_only=True):
    """The original without its least important blocks on the best single processor, as fast as the branches or as requested."""

    processor: str  # Name of the processor.
    precision: str  # Precision.
    ms: float  # Predicted time.
    macs_ratio: float  # Multiply-accumulates over the original's.
    dropped: dict[str, list[int]]  # Numbers of the missing blocks, by segment of the design.
    blocks: int  # Number of blocks of the original.
    kept: Kept | None  # Shares that it and the branches keep; None without measured losses, where blocks are dropped evenly.
    design: BranchDesign  # Content of its design file.

    @property
    def summary(self) -> str:
        """Number of missing blocks and the processor that is then as fast, as part of a sentence."""
        missing = sum(map(len, self.dropped.values()))
        return f"without {missing} of {self.blocks} blocks the {self.processor} alone is as fast"


def operator_split(graph: OpGraph, stages: Sequence[Segment], costs: Costs, processors: Sequence[str]) -> Timeline:
    """Return the fastest run of the original with each kernel-sized part on one processor or its rows over several, without any rules.

    CoDL divides every operator among the processors, which meet after it. The equivalent design is the original in its smallest parts:
    between two cut points that no kernel spans. A residual block without such a cut point inside is one part.
    """
    whole = DesignSpace.of(stages, processors, costs, Rules({}), kept=[stage.name for stage in stages])
    backbone = backbone_of(graph).graph
    search_result = search_exact(PartSpace(backbone, whole, single=True).mixed(), Totals(0, backbone.macs, 0))
    assert search_result is not None  # every part may stay whole
    design = BranchDesign(graph.name, costs.predictor.device.id, merge_neighbours(backbone, stages, search_result.segments(costs)))
    divided = timeline(graph, place_sides(graph, design, costs, processors), costs)
    # a single processor has its hand-over instead of the transfers in the search
    single = min((costs.predictor.predict(graph, name, costs.precision.get(name)) for name in processors), key=lambda single: single.ms)
    if single.ms >= divided.makespan_ms:
        return divided
    alone, align = single.processor, costs.align(single.processor)
    parts = (SegmentDesign(part.name, part.start, part.end, (BranchScale(alone, part.depth, part.width, align=align),)) for part in stages)
    return timeline(graph, BranchDesign(graph.name, costs.predictor.device.id, tuple(parts), sides=sides_on(graph, alone)), costs)


# Placement of the sides, which minimises the makespan.

#: Maximum rounds; each round tries to move every side once.
SIDE_ROUNDS = 4


def sides_on(graph: OpGraph, processor: str) -> tuple[SideDesign, ...]:
    """Return every side of a network on one processor."""
    return tuple(SideDesign(side.name, processor) for side in backbone_of(graph).sides)


def place_sides(graph: OpGraph, design: BranchDesign, costs: Costs, processors: Sequence[str]) -> BranchDesign:
    """Return the design with sides placed for a short predicted makespan, by local search.

    The start has all sides on the best single processor. Then one side after the other, the largest first, moves to the processor with the
    shortest makespan, as long as this improves it.
    """
    sides = backbone_of(graph).sides
    if not sides:
        return design
    times, order = Timelines(graph, design, costs), sorted(range(len(sides)), key=lambda i: -sides[i].macs)
    best = min((sides_on(graph, processor) for processor in processors), key=lambda item: times.timeline(item).makespan_ms)
    best_ms = times.timeline(best).makespan_ms
    for _ in range(SIDE_ROUNDS):
        before = best_ms
        for i, processor in product(order, processors):
            moved = (*best[:i], SideDesign(best[i].name, processor), *best[i + 1 :])
            if (ms := times.timeline(moved).makespan_ms) < best_ms - TIE:
                best, best_ms = moved, ms
        if best_ms >= before - TIE:
            break
    return replace(design, sides=best)


# The plan.


class Predicted(compare.Certainty, frozen=True, kw_only=True):
    """Times of a design and of its controls, ms, with their uncertainty; a missing control is None."""

    makespan_ms: float  # Time of the branched network.
    best_single_ms: float  # Time of the original on the best single processor.
    best_single_processor: str  # Name of that processor.
    best_single_precision: str  # Precision on the best single processor.
    sequential_same_macs_ms: float | None  # Time of the sequential model scaled to the same multiply-accumulates.
    sequential_same_macs_processor: str | None  # Processor of the sequential model.
    sequential_same_macs_ratio: float | None  # Multiply-accumulates of the sequential model over the original's.
    shortened: Shortened | None  # The original without some blocks, as fast on one processor.
    speedup: float  # Best single processor over the makespan.
    whole_graph_ms: float  # Time of the branched network as one graph on one processor.
    whole_graph_processor: str  # Name of that processor.
    #: Time of the original with every kernel-sized part on one processor or its rows over several, whichever is faster: the design
    #: `operator_split_design`.
    operator_split_ms: float
    ideal_split_ms: float  # Time of the original divided without loss.
    ideal_fraction: float  # Time of the ideal split over the makespan.
    efficiency: float  # Time of serial parts and slowest branches without contention, over the makespan.
    communication_ms: float  # Time of transfers and joins.
    optimal: bool | None  # Whether no design of the space is better in the objective; None without a search.
    gap: float | None  # Largest possible excess over the best design, as a fraction; None if unknown.
    #: Controls that are compared but not recommended by time: the shortened network, and for an exact design controls that need training.
    reference: list[str] = msgspec.field(name="told")
    #: The best single processor if not even a division without loss would be faster, also at the ends of the intervals; None
    #: otherwise.
    far_ahead: str | None
    #: Minimum factor by which all others must be faster so that a division without loss, with one meeting point, takes no longer
    #: than this processor alone; None if they already are, or never would be.
    crossover_divided: float | None
    #: Energy of its processors while they compute, and while they wait or have no work if the profile states this power; None if it
    #: lacks the power of a processor that computes.
    energy_mj: float | None
    best_single_energy_mj: float | None  # Energy of the best single processor.
    sequential_same_macs_energy_mj: float | None  # Energy of the sequential model; also None without such a model.
    energy: tuple[EnergyPart, ...]  # Parts of `energy_mj`, by processor and state, with the source of each power.
    source: str = "predicted"  # Source of the numbers.


class ObjectiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Objective of a design."""

    requested: str = msgspec.field(name="asked")  # Objective as the request writes it.
    value: float | None  # Value of the design; None if the profile lacks a necessary number, such as a power.
    unit: str  # Unit of the value; empty for a weighted sum and for a share.
    strategy: str  # Search strategy.


class UnusedProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """A processor that a design leaves without work."""

    processor: str  # Name of the processor.
    ms: float | None  # Time of the fastest design within the constraints that uses it, ms; None if none exists or none was searched.
    best_ms: float  # Time of the chosen design, ms.
    rule: str | None  # Text on the rule that no branch on it meets, with the best value; None if some branch meets all rules.
    reason: str  # Reason as a sentence.


@dataclass(frozen=True)
class PlanResult:
    """A design with its prediction and its baselines; `to_json` has the keys of `stretch branch --json`."""

    graph: OpGraph  # The original network.
    costs: Costs  # Costs on the device, with cached times.
    config: PlanConfig  # The request, with defaults filled in.
    design: BranchDesign  # The design.
    stages: tuple[Segment, ...]  # The network's segments between its default or requested meeting points.
    run: Timeline  # Predicted timeline.
    best_single: Estimate  # The original on the best single processor.
    sequential: SequentialControl | None  # The sequential model scaled to the same multiply-accumulates; None without such a model.
    whole_graph: Estimate  # The branched network as one graph on the best single processor.
    ideal_split_ms: float  # Time of the original divided without loss.
    optimal: bool | None  # Whether no design of the space is better in the objective; None without a search.
    gap: float | None  # Largest possible excess over the best design, as a fraction; None if unknown.
    evaluated: int  # Number of options whose cost was computed.
    space_log10: float | None  # Decimal logarithm of the number of designs.
    accuracy: PredictedAccuracy | None = None  # Predicted accuracy; None without a predictor.
    shortened: Shortened | None = None  # The original without some blocks, as fast on one processor; None without such a network.
    #: Processors of the request without work, with the reasons; empty without a search.
    unused: tuple[UnusedProcessor, ...] = ()
    warnings: tuple[str, ...] = field(default=())  # Warnings for the user.

    def __repr__(self) -> str:
        """Return the plan in a few lines."""
        predicted, used = self.predicted, ", ".join(self.design.processors)
        single = f"{predicted.speedup:.2f}x against {self.best_single.processor} alone ({self.best_single.ms:.2f} ms)"
        lines = [
            f"{self.graph.name} on {self.device.id}: {self.design.n_meet} meeting points, on {used}",
            f"predicted: {self.run.makespan_ms:.2f} ms ({predicted.makespan_low_ms:.2f} to {predicted.makespan_high_ms:.2f}), {single}",
            f"multiply-accumulates: {self.macs_ratio:.3f} of the original's; computes "
            + ("what the original computes" if self.exact else "another network"),
            f"recommended: {self.recommended}",
        ]
        return "\n".join([*lines, f"warnings: {len(self.warnings)}, see `warnings`"] if self.warnings else lines)

    @property
    def predictor(self) -> LatencyPredictor:
        """Latency predictor of the device."""
        return self.costs.predictor

    @cached_property
    def operator_split(self) -> Timeline:
        """The original with every kernel-sized part on one processor, or its rows over several; searched at first access."""
        return operator_split(self.graph, self.stages, self.costs, self.config.processors)

    @property
    def device(self) -> DeviceProfile:
        """Profile of the device."""
        return self.predictor.device

    @property
    def macs_ratio(self) -> float:
        """Multiply-accumulates over the original's, including repeated ones."""
        return self.run.macs / self.graph.macs if self.graph.macs else 1.0

    def stages_of(self, segment: Segment) -> list[Segment]:
        """Return the stages within a segment; more than one if stages are merged."""
        position = backbone_of(self.graph).graph.position
        inside = range(position[segment.start], position[segment.end] + 1)
        return [s for s in self.stages if position[s.start] in inside and position[s.end] in inside]

    @property
    def calibrated(self) -> bool:
        """Whether the times of every planned processor were fitted to measurements on the device."""
        return all(origin in MEASURED for origin in self.origins.values())

    @property
    def origins(self) -> dict[tuple[str, str], Origin]:
        """Sources of times, by processor and planned precision."""
        return {(name, at): origin_of(self.device.processor(name), at) for name, at in self.config.precision.items()}

    @property
    def exact(self) -> bool:
        """Whether the design computes exactly the original's output: no scaled branches, and no missing blocks or channels."""
        return all(row.kind != "stretch" for row in self.run.segments)

    @property
    def rounding(self) -> list[str]:
        """Planned precisions of its processors below fp32."""
        return sorted({self.config.precision.get(name, "fp32") for name in self.design.processors} - {"fp32"}, reverse=True)

    @property
    def speedup(self) -> float:
        """Best single processor over the makespan."""
        return self.best_single.ms / self.run.makespan_ms

    @property
    def fastest(self) -> str:
        """Recommendation by time: ``branched``, the baseline that is predicted to be faster, or `NO_CLEAR_WINNER`.

        If one processor is far ahead, branches that are too close to call are not worth their effort.
        """
        result, (far_ahead, _) = self.recommendation.recommended, self.lead
        return f"single:{self.best_single.processor}" if result == compare.NO_CLEAR_WINNER and far_ahead else result

    @cached_property
    def recommended(self) -> str:
        """Recommendation by time, or the shortened network if it keeps as much of the original as branches that no baseline beats."""
        shortened = self.shortened
        if shortened is None or shortened.kept is None or self.fastest not in (compare.BRANCHED, compare.NO_CLEAR_WINNER):
            return self.fastest
        # prefer one processor if both keep the same, because it is easier to build and maintain
        return f"shortened:{shortened.processor}" if shortened.kept.shortened >= shortened.kept.branched else self.fastest

    @cached_property
    def lead(self) -> tuple[bool, float | None]:
        """Whether the best single processor is far ahead of the others, and the factor from which they would help (`processor_lead`)."""
        best = self.best_single
        return compare.processor_lead(self.graph, self.predictor, self.config.precision, (best.processor, best.precision))

    @cached_property
    def recommendation(self) -> compare.Recommendation:
        """Comparison of the branched run with its baselines, with the intervals of their ratios."""
        # An exact design needs no training, but the sequential model does, so it is compared and not recommended.
        untrained = self.config.exact or (self.exact and self.design.n_meet > 0)
        controls, reference = dict(self._controls), ["sequential_same_macs"] if untrained else []
        if (shortened := self.shortened) is not None:
            reference.append(f"shortened:{shortened.processor}")
            alone = self.predictor.predict(scaled_graph(self.graph, shortened.design), shortened.processor, shortened.precision)
            controls[reference[-1]] = compare.single_run(alone, self.device)
        return compare.recommend(self.predicted_run, controls, reference)

    @cached_property
    def certainty(self) -> compare.Certainty:
        """Uncertainty of the prediction, and the numbers that the recommendation depends on."""
        single, split = f"single:{self.best_single.processor}", {"operator_split": self._uncertain_run(self.operator_split)}
        return compare.certainty(self.recommendation, self.predicted_run, self._controls, single, split)

    def at_links(self, factor: float) -> compare.LinkFigure:
        """Return the prediction if every transfer took `factor` times its time in the profile."""
        return compare.at_links(self.predicted_run, self._controls[f"single:{self.best_single.processor}"], lambda _: factor)

    @cached_property
    def objective(self) -> ObjectiveAnswer:
        """Objective of the design, with its value."""
        text, weights, value = self.config.objective.strip(), self.config.parsed_objective, None
        energy, accuracy = weights.get("energy", 0.0), self.accuracy
        if weights and (not energy or self.energy_mj is not None):
            value = weights.get("latency", 0.0) * self.run.makespan_ms + energy * (self.energy_mj or 0.0)
        elif not weights and accuracy is not None:
            value = accuracy.top1 if accuracy.agreement is None else accuracy.agreement
        return ObjectiveAnswer(requested=text, value=value, unit=ADDITIVE_UNITS.get(text, ""), strategy=self.config.strategy)

    @cached_property
    def predicted_run(self) -> compare.PredictedRun:
        """The timeline with uncertain times."""
        return self._uncertain_run(self.run)

    def _uncertain_run(self, run: Timeline) -> compare.PredictedRun:
        return compare.uncertain_run(run.steps, self.device, run.output, run.handover)

    @cached_property
    def _controls(self) -> dict[str, compare.PredictedRun]:
        single, whole, same = self.best_single, self.whole_graph, self.sequential
        controls = {f"single:{single.processor}": single, f"whole_graph:{whole.processor}": whole}
        controls |= {"sequential_same_macs": same.single} if same else {}
        return {name: compare.single_run(alone, self.device) for name, alone in controls.items()}

    @cached_property
    def shared(self) -> list[SharedWeight]:
        """Weights that operators of the branched network share, as in the original."""
        return remaining_shared_weights(self.graph, self.design)

    @property
    def sharing(self) -> list[str]:
        """Note on shared weights; empty if the original has none."""
        total, kept = (sum(weight.copies for weight in weights) for weights in (shared_weights([self.graph]), self.shared))
        if total > kept:
            consequence = f"each has a copy of its own in this design, {total - kept:,} numbers of its {self.run.params - kept:,}, which training may change"
            return [f"operators of {self.graph.name} share weights, and {consequence}"]
        consequence = "the branched module and its training share them too, each file of a bundle that computes with them has them"
        return [f"operators of {self.graph.name} share weights, {total:,} numbers: {consequence}"] if total else []

    @property
    def energy_mj(self) -> float | None:
        """Energy of the processors over the run, mJ; None if the profile lacks a processor's power."""
        return run_mj(self.run, self.device)

    @cached_property
    def predicted(self) -> Predicted:
        """Times of the design and of its controls."""
        run, single, sequential = self.run, self.best_single, self.sequential
        far_ahead, crossover = self.lead
        same_macs, ratio = (sequential.single, self._over_original(sequential.macs)) if sequential else (None, None)
        return Predicted(
            **msgspec.structs.asdict(self.certainty),
            **control_fields(single, same_macs, ratio),
            **run_fields(self.device, run.makespan_ms, busy_ms(run), single, same_macs),
            shortened=self.shortened,
            whole_graph_ms=self.whole_graph.ms,
            whole_graph_processor=self.whole_graph.processor,
            operator_split_ms=self.operator_split.makespan_ms,
            ideal_split_ms=self.ideal_split_ms,
            ideal_fraction=self.ideal_split_ms / run.makespan_ms,
            efficiency=run.efficiency,
            communication_ms=run.communication_ms,
            optimal=self.optimal,
            gap=self.gap,
            reference=sorted(self.recommendation.reference),
            far_ahead=single.processor if far_ahead else None,
            crossover_divided=crossover,
        )

    @cached_property
    def params(self) -> int:
        """Number of parameters; shared ones count once."""
        return self.run.params - sum(weight.copies for weight in self.shared)

    @property
    def params_ratio(self) -> float | None:
        """Parameters over the original's; None if the original has none."""
        original = self.graph.params - sum(weight.copies for weight in shared_weights([self.graph]))
        return self.params / original if original else None

    @property
    def repeated(self) -> float:
        """Multiply-accumulates that bands of rows and branches of channels repeat, over the original's."""
        return self._over_original(self.run.repeated_macs)

    def _over_original(self, macs: int) -> float:
        """Return multiply-accumulates over the original's; the denominator is at least 1."""
        return macs / (self.graph.macs or 1)

    def to_json(self) -> dict[str, Any]:
        """Return the planner's keys of `stretch branch --json`."""
        return to_builtins(
            {
                "model": self.graph.name,
                "device": self.device.id,
                "calibrated": self.calibrated,
                "macs": self.run.macs,  # multiply-accumulates, including repeated ones
                "params": self.params,  # number of parameters
                "exact": self.exact,  # in fp32; `rounding` lists planned precisions below it
                "rounding": self.rounding,
                "halo": self._over_original(self.run.halo_macs),  # MACs that bands of rows repeat, over the original's
                "halo_ms": self.run.halo_ms,  # time of these MACs, summed over processors
                "repeated": self.repeated,  # MACs that bands of rows and branches of channels repeat, over the original's
                "macs_ratio": self.macs_ratio,
                "params_ratio": self.params_ratio,
                "n_meet": self.design.n_meet,  # number of meeting points
                "segments": [self._segment(row) for row in self.run.segments],
                "sides": [_side(graph, time) for graph, time in self.run.sides],
                "design": self.design,
                "predicted": self.predicted,
                "objective": self.objective,
                "accuracy": self.accuracy,
                "recommended": self.recommended,
                "comparisons": self.recommendation.compared,  # each control, with the interval of its ratio
                "unused": self.unused,
                "sequential_design": self.sequential.design if self.sequential else None,
                "operator_split_design": self.operator_split.design,
                "evaluated": self.evaluated,  # number of options whose cost was computed
                "space_log10": self.space_log10,  # decimal logarithm of the number of designs
                "precision": self.config.precision,
                "warnings": self.warnings,
            }
        )

    def _segment(self, row: SegmentTime) -> dict[str, Any]:
        segment, macs = row.segment, row.segment.graph.macs
        return {
            "name": segment.name,
            "start": segment.start,
            "end": segment.end,
            "stages": [stage.name for stage in self.stages_of(segment)],
            "shape": row.shape,
            "depth": segment.depth,  # `depth`, `width` and `macs` are the original segment's
            "width": segment.width,
            "macs": macs,
            "kind": row.kind,
            "halo": row.halo_macs / macs if row.halo_macs else 0.0,
            "halo_ms": row.halo_ms,
            "repeated": row.repeated_macs / macs if row.repeated_macs else 0.0,
            "join": row.design.join,
            "join_ms": row.join_ms,
            "predicted_ms": row.ms,  # from its input to its output
            "start_ms": row.start_ms,
            "branches": [
                {"name": name, "join": row.design.join, **vars(branch.scale), **_times(branch)}
                | {"params": branch.params, "contention_ms": branch.contention_ms}
                for name, branch in zip(row.design.names, row.branches, strict=True)
            ],
        }


def _times(part: BranchTime) -> dict[str, float]:
    return {"macs": part.macs, "start_ms": part.start_ms, "predicted_ms": part.ms, "in_ms": part.in_ms, "out_ms": part.out_ms}


def _side(graph: OpGraph, time: BranchTime) -> dict[str, Any]:
    reads, operators = [op.name for op in graph.inputs], sum(op.kind != "input" for op in graph.ops)
    placed = {"name": graph.name, "processor": time.scale.processor, "reads": reads, "writes": graph.outputs}
    return placed | {"operators": operators, **_times(time)}


def control_fields(single: Estimate | None, same_macs: Estimate | None, same_macs_ratio: float | None) -> dict[str, Any]:
    """Return the answer's fields for the best single processor and the sequential model with the same multiply-accumulates; None for missing ones."""
    return {
        "best_single_ms": single.ms if single else None,
        "best_single_processor": single.processor if single else None,
        "best_single_precision": single.precision if single else None,
        "sequential_same_macs_ms": same_macs.ms if same_macs else None,
        "sequential_same_macs_processor": same_macs.processor if same_macs else None,
        "sequential_same_macs_ratio": same_macs_ratio,
    }


def run_fields(
    device: DeviceProfile, makespan_ms: float, busy: Mapping[str, float], single: Estimate | None, same_macs: Estimate | None
) -> dict[str, Any]:
    """Return the answer's fields for makespan, speed-up and energy of a run; `busy` is the compute time by processor, ms."""
    model = EnergyModel(device)
    alone = [model.plan_mj({e.processor: e.ms}, e.ms) if e else None for e in (single, same_macs)]
    return {
        "makespan_ms": makespan_ms,
        "speedup": single.ms / makespan_ms if single else None,
        "energy_mj": model.plan_mj(busy, makespan_ms),
        "best_single_energy_mj": alone[0],
        "sequential_same_macs_energy_mj": alone[1],
        "energy": model.parts(busy, makespan_ms),
    }
