"""Decide a design: search, controls, recommendation (paper 003, section 4)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

import msgspec

from predictors.devices import DeviceProfile
from predictors.graph import OpGraph
from predictors.joins import JoinKind
from predictors.predictor import LatencyPredictor
from stretch.planning.answer import BranchAnswer, PlanAnswer, Predicted, SegmentAnswer
from stretch.planning.choose import choose, macs_range
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracyPredictor, accuracy_json, load_accuracy
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER, Branch, PredictedRun, Recommendation, recommend, single_run
from stretch.planning.cost.makespan import BranchTime, SegmentTime, Timeline, ideal_split_ms, timeline
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import Segment, split_segments
from stretch.planning.search.controls import Sequential, Single, best_single, operator_split_ms, sequential_same_macs
from stretch.planning.search.rules import Rules
from stretch.planning.sentences import Spelling, as_argument, respelled, spelled
from stretch.planning.unused import Unused, unused_processors


@dataclass(frozen=True)
class PlanResult:
    """A design with its prediction and what it was compared with.

    Args:
        graph: The original network.
        device: The device's profile.
        config: The request, with defaults filled in.
        design: The design.
        stages: The network's segments between its own meeting points, or those asked for.
        run: Its predicted timeline.
        best_single: The original on the best single processor.
        sequential: The sequential model scaled to the same multiply-accumulates; None if there is none.
        whole_graph: The branched net as one graph on the best single processor.
        operator_split_ms: Every operator split over the processors, where that pays.
        ideal_split_ms: The original divided without loss.
        optimal: Whether no design of the space is faster; None for a design that was not searched for.
        gap: How much faster one might be, as a fraction; None where not known.
        evaluated: Options whose cost was computed.
        space_log10: Decimal logarithm of the number of designs.
        accuracy: Predicted accuracy with what is known of the predictor, where one was given.
        unused: Processors of the request without work, and why; empty for a design that was not searched for.
        warnings: What a person should know.
    """

    graph: OpGraph
    device: DeviceProfile
    config: PlanConfig
    design: BranchDesign
    stages: tuple[Segment, ...]
    run: Timeline
    best_single: Single
    sequential: Sequential | None
    whole_graph: Single
    operator_split_ms: float
    ideal_split_ms: float
    optimal: bool | None
    gap: float | None
    evaluated: int
    space_log10: float | None
    accuracy: dict[str, Any] | None = None
    unused: tuple[Unused, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def macs_ratio(self) -> float:
        """Multiply-accumulates over the original's."""
        return self.run.macs / self.graph.macs

    def stages_of(self, segment: Segment) -> list[Segment]:
        """The stages that lie in a segment; more than one where stages are merged."""
        position = {op.name: i for i, op in enumerate(self.graph.ops)}
        start, end = position[segment.start], position[segment.end]
        return [s for s in self.stages if start <= position[s.start] and position[s.end] <= end]

    @property
    def changes_network(self) -> bool:
        """Whether the design computes something else than the original: branches, or blocks or channels gone."""
        return any(
            len(row.branches) > 1 or (b.scale.depth, b.scale.width) != (row.segment.depth, row.segment.width)
            for row in self.run.segments
            for b in row.branches
        )

    @property
    def speedup(self) -> float:
        """Best single processor over the makespan."""
        return self.best_single.ms / self.run.makespan_ms

    @property
    def recommended(self) -> str:
        """What to run: ``branched``, the control that is predicted to be faster, or that the uncertainty leaves it open."""
        return self.recommendation.choice

    @cached_property
    def recommendation(self) -> Recommendation:
        """The branched run beside its controls, with the intervals of their ratios."""
        return recommend(self._run(), self._controls(), self.device)

    def _run(self) -> PredictedRun:
        """The timeline in parts that are uncertain."""
        segments = [
            [Branch.of(branch.estimate, branch.in_ms + branch.out_ms, 1 + branch.contention_ms / branch.ms) for branch in row.branches]
            for row in self.run.segments
        ]
        return PredictedRun(segments, sum(row.join_ms for row in self.run.segments) + self.run.output_ms)

    def _controls(self) -> dict[str, PredictedRun]:
        found = [
            (f"single:{self.best_single.processor}", self.graph, self.best_single),
            (f"whole_graph:{self.whole_graph.processor}", scaled_graph(self.graph, self.design), self.whole_graph),
        ]
        if self.sequential is not None:
            found.append(("sequential_same_macs", scaled_graph(self.graph, self.sequential.design), self.sequential.single))
        predictor = LatencyPredictor(self.device)
        return {name: single_run(graph, one.processor, one.precision, one.ms, predictor) for name, graph, one in found}

    @property
    def predicted(self) -> Predicted:
        """Its times and those of its controls."""
        makespan, sequential = self.run.makespan_ms, self.sequential
        return Predicted(
            makespan_ms=makespan,
            best_single_ms=self.best_single.ms,
            best_single_processor=self.best_single.processor,
            best_single_precision=self.best_single.precision,
            speedup=self.speedup,
            sequential_same_macs_ms=sequential.single.ms if sequential else None,
            sequential_same_macs_processor=sequential.single.processor if sequential else None,
            sequential_same_macs_ratio=sequential.macs / self.graph.macs if sequential else None,
            whole_graph_ms=self.whole_graph.ms,
            whole_graph_processor=self.whole_graph.processor,
            operator_split_ms=self.operator_split_ms,
            ideal_split_ms=self.ideal_split_ms,
            ideal_fraction=self.ideal_split_ms / makespan,
            efficiency=self.run.efficiency,
            communication_ms=self.run.communication_ms,
            optimal=self.optimal,
            gap=self.gap,
        )

    def answer(self, spelling: Spelling | None = None) -> PlanAnswer:
        """The result as plain data.

        Args:
            spelling: How its sentences write options; as arguments of Python if None.
        """
        params, words = self.graph.params, spelling or as_argument
        return PlanAnswer(
            model=self.graph.name,
            device=self.device.id,
            calibrated=self.device.calibrated,
            macs=self.run.macs,
            params=self.run.params,
            macs_ratio=self.macs_ratio,
            params_ratio=self.run.params / params if params else None,
            n_meet=self.design.n_meet,
            segments=[self._segment(row) for row in self.run.segments],
            design=self.design,
            predicted=self.predicted,
            accuracy=self.accuracy,
            recommended=self.recommended,
            comparisons=[rival.to_json() for rival in self.recommendation.rivals],
            unused=respelled([each.to_json() for each in self.unused], words),
            sequential_design=self.sequential.design if self.sequential else None,
            evaluated=self.evaluated,
            space_log10=self.space_log10,
            precision=dict(self.config.precision),
            warnings=[spelled(each, words) for each in self.warnings],
        )

    def _segment(self, row: SegmentTime) -> SegmentAnswer:
        return SegmentAnswer(
            name=row.design.name,
            start=row.design.start,
            end=row.design.end,
            stages=[stage.name for stage in self.stages_of(row.segment)],
            shape=list(row.segment.graph.by_name[row.segment.end].shape),
            depth=row.segment.depth,
            width=row.segment.width,
            macs=row.segment.graph.macs,
            join=row.design.join,
            join_ms=row.join_ms,
            predicted_ms=row.ms,
            start_ms=row.start_ms,
            branches=[_branch(run, row.design.join) for run in row.branches],
        )

    def to_json(self, spelling: Spelling | None = None) -> dict[str, Any]:
        """The planner's keys of `stretch branch --json`.

        Args:
            spelling: As of `answer`.
        """
        return self.answer(spelling).to_json()


def _branch(run: BranchTime, join: JoinKind) -> BranchAnswer:
    scale = run.scale
    return BranchAnswer(
        processor=scale.processor,
        depth=scale.depth,
        width=scale.width,
        entry=scale.entry,
        join=join,
        partition=scale.partition,
        align=scale.align,
        macs=run.macs,
        params=run.params,
        predicted_ms=run.ms,
        contention_ms=run.contention_ms,
        in_ms=run.in_ms,
        out_ms=run.out_ms,
    )


def plan(graph: OpGraph, device: DeviceProfile, config: PlanConfig | None = None) -> PlanResult:
    """The fastest design that meets the constraints, and its controls.

    Args:
        graph: The original network.
        device: The device's profile.
        config: What is asked for; defaults if None.

    Raises:
        UsageError: If the request makes no sense.
        InfeasibleError: If no design meets the constraints; names the tightest
            rule and the nearest value with a design.
        UnknownNameError: If a processor or meeting point does not exist.
    """
    asked = _Asked.of(graph, device, config or PlanConfig())
    choice = choose(graph, asked.config, asked.costs, asked.stages, asked.predictor)
    found = choice.found
    design = BranchDesign(graph.name, device.id, found.segments(asked.costs))
    search = _Search(found.optimal, None if isnan(found.gap) else found.gap, found.evaluated, choice.space.size_log10)
    result = _compare(asked, design, search)
    unused = unused_processors(graph, asked.config, choice, design.processors)
    return replace(result, unused=unused, warnings=(*result.warnings, *(each.sentence for each in unused)))


def evaluate(graph: OpGraph, device: DeviceProfile, design: BranchDesign, config: PlanConfig | None = None) -> PlanResult:
    """The prediction and controls of a design made elsewhere, such as by hand.

    Constraints are not enforced: what the design breaks stands in `warnings`.

    Args:
        graph: The original network.
        device: The device's profile.
        design: A complete design.
        config: Precisions, floors and ranges for the controls; defaults if None.

    Raises:
        StretchError: If the design does not fit the network.
        UnknownNameError: If the device lacks one of its processors.
    """
    request = config or PlanConfig()
    if not request.processors:
        # A design may keep to one processor; its controls are then found among all of them.
        several = len({device.processor(p).family for p in design.processors}) > 1
        request = msgspec.structs.replace(request, processors=design.processors if several else tuple(device.processors))
    return _compare(_Asked.of(graph, device, request), design, _Search())


@dataclass(frozen=True)
class _Asked:
    """A request with what it is answered from.

    Args:
        graph: The original network.
        device: The device's profile.
        config: The request, checked.
        stages: The network's segments between its own meeting points, or those asked for.
        costs: On the device, in the planned precisions.
        predictor: Of accuracy, where the request names one.
    """

    graph: OpGraph
    device: DeviceProfile
    config: PlanConfig
    stages: tuple[Segment, ...]
    costs: Costs
    predictor: AccuracyPredictor | None

    @classmethod
    def of(cls, graph: OpGraph, device: DeviceProfile, config: PlanConfig) -> "_Asked":
        checked = config.checked(device)
        predictor = load_accuracy(Path(checked.accuracy), graph.name) if checked.accuracy else None
        costs = Costs(LatencyPredictor(device), checked.precision)
        return cls(graph, device, checked, tuple(split_segments(graph, checked.meet or None)), costs, predictor)


@dataclass(frozen=True)
class _Search:
    """What is known of how a design was found; by default that it was not searched for."""

    optimal: bool | None = None
    gap: float | None = None
    evaluated: int = 1
    space_log10: float | None = None


def _compare(asked: _Asked, design: BranchDesign, search: _Search) -> PlanResult:
    """A design beside its controls."""
    graph, config, costs, predictor = asked.graph, asked.config, asked.costs, asked.predictor
    low, high = macs_range(graph, config)
    result = PlanResult(
        graph,
        asked.device,
        config,
        design,
        asked.stages,
        timeline(graph, design, costs),
        best_single(graph, costs, config.processors),
        sequential_same_macs(graph, asked.stages, costs, config.processors, Rules.of(config), (low, high)),
        best_single(scaled_graph(graph, design), costs, config.processors),
        operator_split_ms(graph, costs, config.processors),
        ideal_split_ms(graph, config.processors, costs.predictor, config.precision),
        search.optimal,
        search.gap,
        search.evaluated,
        search.space_log10,
        accuracy_json(predictor, predictor.predict(graph, design)) if predictor is not None else None,
    )
    return replace(result, warnings=_warnings(result, low, high))


def _warnings(result: PlanResult, low: int, high: int) -> tuple[str, ...]:
    warnings = []
    if not result.device.calibrated:
        warnings.append(
            f"the profile {result.device.id} is derived from specifications, not fitted to measurements: treat predicted times as estimates"
        )
    if not low <= result.run.macs <= high:
        warnings.append(
            f"the design has {result.macs_ratio:.3f} of the original's multiply-accumulates, outside {result.config.macs[0]:g} to {result.config.macs[1]:g}"
        )
    merged = [result.stages_of(row.segment) for row in result.run.segments if len(row.branches) > 1]
    names = [f"{stages[0].name} to {stages[-1].name}" for stages in merged if len(stages) > 1]
    if names:
        warnings.append(
            f"stages are merged ({', '.join(names)}), so branches meet less often: fewer meeting points lower the accuracy "
            "(paper 003, table 3), by how much is known less well than for branches that meet after every stage"
        )
    if result.design.n_meet == 0:
        warnings.append("no segment of the design has more than one branch: nothing runs side by side")
    if result.recommended == NO_CLEAR_WINNER:
        near = min(result.recommendation.rivals, key=lambda rival: rival.low)
        warnings.append(
            f"{NO_CLEAR_WINNER}: `{near.name}` is predicted to take {near.ms:.2f} ms, the branched model {result.run.makespan_ms:.2f} ms, "
            f"and their ratio lies between {near.low:.2f} and {near.high:.2f} by the profile's uncertainty"
        )
    elif result.recommended != BRANCHED:
        warnings.append(f"`{result.recommended}` is predicted to be faster than the branched model")
    return tuple(warnings)
