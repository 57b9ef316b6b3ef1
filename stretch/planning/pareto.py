"""Pareto fronts of a network's designs on a device, and sets of a best design with other, different designs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, isnan
from typing import Any

import msgspec
import numpy as np

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, UnknownNameError, UsageError
from predictors.graph import OpGraph
from predictors.structs import Answer
from stretch.planning.blocks import Losses, keep_blocks
from stretch.planning.config import PlanConfig, read_objective
from stretch.planning.cost.accuracy import AccuracySource, MeasuredOn, PredictedAccuracy, Sensitivity
from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.cost.makespan import run_mj, timeline
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, shares_of
from stretch.planning.messages import format_value
from stretch.planning.network.segments import backbone_of
from stretch.planning.plan import Choice, PlanningProblem, choose, design_of, predict, search_request
from stretch.planning.result import control_fields, ranked_singles, sequential_same_macs
from stretch.planning.search import exact
from stretch.planning.search.goal import loss_of, search_best
from stretch.planning.search.layers import TIE
from stretch.planning.search.parts import without_stretched
from stretch.planning.search.space import DesignSpace, Rules, Totals, evenly_spaced

#: Criteria in search order: the search minimises the first requested criterion and bounds the second.
CRITERIA = ("latency", "energy", "macs", "agreement", "accuracy")


def signature(options: SegmentOptions) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the identity of segment options without sizes: start, end, join, and processors of a branched segment."""
    return options.segment.start, options.segment.end, options.join, options.processors if options.branched else ()


def diverse_designs(
    space: DesignSpace, totals: Totals, goal: exact.Measure, best: exact.SearchResult, count: int, factor: float
) -> list[exact.SearchResult]:
    """Return designs that differ in branched segments, processors or kinds of segments, the best first.

    Each design differs from all earlier designs in at least one segment. Among all such designs that are good enough it
    shares the fewest segments with them. Both searches for it are exact, because the number of shared segments adds up.
    """
    result, max_value = [best], factor * goal.value(space, best.picks)
    seen = dict.fromkeys((signature(options) for options, _ in best.picks), 1)

    def is_new(options: SegmentOptions) -> bool:
        return signature(options) not in seen

    shared = exact.Measure(lambda options: np.full(len(options.macs), float(seen.get(signature(options), 0) * options.span)))
    while len(result) < count:
        good = search_best(space, totals, shared, (goal, max_value), is_new)
        if good is None:
            break
        loss_bound = shared, shared.value(space, good.picks)
        result.append(search_best(space, totals, goal, loss_bound, is_new) or good)
        for options, _ in result[-1].picks:
            seen[signature(options)] = seen.get(signature(options), 0) + 1
    return result


def non_dominated(search_results: Sequence[exact.SearchResult], values: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the Pareto-optimal designs, sorted by value; the first of equal designs."""
    kept: list[int] = []
    for candidate in sorted(range(len(search_results)), key=lambda i: (*values[i], i)):
        if not any(all(b <= a + TIE for a, b in zip(values[candidate], values[other], strict=True)) for other in kept):
            kept.append(candidate)
    return kept


@dataclass(frozen=True)
class Criteria:
    """Searches for designs of a space that are best in one criterion within a bound on another; these designs form a front.

    Latency, energy and loss add up over the segments of a design, and the exact search may bound one of them.
    Every search bounds multiply-accumulates.
    """

    space: DesignSpace  # The designs.
    totals: Totals  # Limits on a whole design.
    #: Measures by name: ``latency``, ``macs``, and if requested ``energy`` and ``loss``.
    goals: Mapping[str, exact.Measure]
    source: AccuracySource | None = None  # Source that converts loss to accuracy; None for evenly spaced bounds on the loss.

    def value(self, name: str, search_result: exact.SearchResult) -> float:
        """Return the value of a design in one criterion."""
        known = {"macs": search_result.macs, "latency": search_result.ms}
        return float(known[name]) if name in known else self.goals[name].value(self.space, search_result.picks)

    def minimize(self, name: str, bounds: Mapping[str, float]) -> tuple[exact.SearchResult | None, DesignSpace]:
        """Return the design with the minimum of a criterion within bounds, and a space that holds all equally good designs."""
        totals, within = self.totals, None
        for bounded, most in bounds.items():
            if bounded == "macs":
                totals = totals._replace(high=min(totals.high, floor(most + TIE)))
            else:
                within = self.goals[bounded], most
        if totals.high < totals.low:
            return None, self.space
        if name == "latency" and within is None:
            return exact.search_pruned(self.space, totals)
        return search_best(self.space, totals, self.goals[name], within), self.space

    def minimize_weighted(self, names: Sequence[str], bounds: Mapping[str, float]) -> exact.SearchResult | None:
        """Return the design with the minimum of the first criterion, and among equal designs the minimum of the second."""
        first, space = self.minimize(names[0], bounds)
        if first is None:
            return None
        # designs of equal latency are frequent: the size of a branch that is not on the critical path does not matter
        second, _ = replace(self, space=space).minimize(names[1], {names[0]: self.value(names[0], first)})
        if second is None or self.value(names[1], second) > self.value(names[1], first):
            return first
        return replace(second, optimal=first.optimal and second.optimal)

    def trace(self, names: Sequence[str], count: int) -> list[exact.SearchResult]:
        """Return the designs of a front of two criteria: both ends, and between them the minimum of the first within bounds."""
        first, second = names
        best = self.minimize_weighted((first, second), {})
        if best is None:
            return []
        if count == 1:
            return [best]
        end = self._end(second, first)
        bounds = self._bounds(second, self.value(second, end), self.value(second, best), count)
        between = [self.minimize_weighted((first, second), {second: most}) for most in bounds]
        return [end, *(item for item in between if item is not None), best]

    def _end(self, name: str, then: str) -> exact.SearchResult:
        """Return the design with the minimum of a criterion; for the loss, the best exact design, which need not branch."""
        if name == "loss":
            result, _ = replace(self, space=without_stretched(self.space), totals=self.totals._replace(n_meet=0)).minimize(then, {})
            if result is not None:
                return result
        least = self.minimize_weighted((name, then), {})
        assert least is not None, "there is a design, or this is not asked"
        if name == "macs" and not least.optimal:
            # a design without proof of the minimum may still be proved to be the best among designs with no more MACs
            return self.minimize_weighted((then, name), {name: self.value(name, least)}) or least
        return least

    def _bounds(self, name: str, least: float, most: float, count: int) -> list[float]:
        """Return bounds between two ends, evenly spaced; for losses with a source, evenly spaced in accuracy."""
        if most <= least or count < 3:
            return []
        if self.source is None or name != "loss":
            return [float(x) for x in np.linspace(least, most, count)[1:-1]]
        ends = self.source.value(least), self.source.value(most)
        return [self.source.max_loss(float(value)) for value in np.linspace(*ends, count)[1:-1]]


class FrontDesign(msgspec.Struct, frozen=True, kw_only=True):
    """One design of a front."""

    name: str  # Name in the table and in file names.
    predicted_ms: float  # Predicted makespan.
    speedup: float  # Best single processor over the makespan.
    #: Time of the sequential model with the same multiply-accumulates over the makespan; None without such a model.
    speedup_over_sequential: float | None
    macs: int  # Multiply-accumulates, including repeated ones.
    macs_ratio: float  # Multiply-accumulates over the original's.
    params: int  # Number of parameters.
    n_meet: int  # Number of meeting points.
    #: Whether it computes exactly the original's output in fp32; the answer's `rounding` lists precisions that change it.
    exact: bool
    branches: list[str]  # Description of each branched segment.
    accuracy: PredictedAccuracy | None  # Predicted accuracy; None without a source.
    energy_mj: float | None  # Energy of its processors; None if the profile lacks a processor's power.
    peak_bytes: int  # Activation bytes alive at one time, by the planner's estimate.
    optimal: bool  # Whether no design within the constraints is better in both criteria.
    value: float | None = None  # Value of the objective; None for a front.
    design: BranchDesign  # Content of its design file.
    file: str | None = None  # Path of its design file, if written.


class FrontAnswer(Answer, frozen=True, kw_only=True):
    """A front and its baselines."""

    model: str  # Name of the network.
    device: str  # Id of the device's profile.
    processors: list[str]  # Processors that branches may use.
    pareto: list[str] = msgspec.field(default_factory=list)  # Criteria of a front; empty for a best design and different ones.
    objective: str | None = None  # Objective of the designs; None for a front.
    within: float | None = None  # Maximum value of other designs relative to the best design's; None for a front.
    optimal: bool  # Whether the first design, or every design of a front, is proved to be optimal.
    #: Fraction by which a design might be better than the first; None if unknown, and for a front.
    gap: float | None = None
    precision: dict[str, str]  # Planned precision of each processor.
    rounding: list[str]  # Planned precisions below fp32: ``int8``, ``fp16``.
    designs: list[FrontDesign]  # From the slowest to the fastest.
    best_single_ms: float  # Time of the original on the best single processor.
    best_single_processor: str  # Name of that processor.
    best_single_precision: str  # Precision on the best single processor.
    sequential_same_macs_ms: float | None  # Time of the sequential model scaled to the range of MACs; None without such a model.
    sequential_same_macs_processor: str | None  # Processor of the sequential model.
    sequential_same_macs_ratio: float | None  # Multiply-accumulates of the sequential model over the original's.
    evaluated: int  # Number of options whose cost was computed.
    space_log10: float  # Decimal logarithm of the number of designs.
    seconds: dict[str, float] = msgspec.field(default_factory=dict)  # Wall time by phase.
    sensitivity: MeasuredOn | None  # Subject of the measured sensitivity that predicted losses; None without it.
    sensitivity_file: str | None = None  # Path of the sensitivity file.
    source: str = "predicted"  # Source of the numbers.
    warnings: list[str] = msgspec.field(default_factory=list)  # Warnings for the user.


def front(
    graph: OpGraph,
    device: DeviceProfile,
    config: PlanConfig,
    weighed: Sequence[str],
    count: int,
    accuracy_source: AccuracySource | None = None,
    losses: Losses | None = None,
) -> FrontAnswer:
    """Return the Pareto front of designs in two criteria.

    The exact search minimises one criterion within bounds on the other; the bounds are evenly spaced between the ends. A design
    without loss need not branch: if a single processor is fastest, it is the end of the front.

    Args:
        weighed: Names of two `CRITERIA`.
        count: Maximum number of designs.
        accuracy_source: Source of the accuracy of designs; the file that `config` names if None.
        losses: Losses without single blocks: designs then keep the most important blocks, as in `plan`.
    """
    problem = PlanningProblem.of(graph, device, config, accuracy_source)
    best, evaluated, size = trace_front(problem, weighed, count)
    optimal = all(item.optimal for item in best)
    return _answer(problem, best, losses=losses, pareto=list(weighed), optimal=optimal, evaluated=evaluated, space_log10=size)


def trace_front(problem: PlanningProblem, weighed: Sequence[str], count: int) -> tuple[list[exact.SearchResult], int, float]:
    """Return the designs of `front`, the number of evaluated options, and the decimal logarithm of the number of designs."""
    names, source, checked = check_criteria(weighed), problem.accuracy_source, problem.config
    for name, option, measure in (("agreement", "min_agreement", "agreement"), ("accuracy", "min_accuracy", "top-1")):
        if name in names and (source is None or source.option != option):
            hint = "give `images` or `accuracy`, or ask for `pareto=latency,macs`"
            raise UsageError(f"nothing predicts the {measure} of designs", hint)
    if checked.strategy != "exact" or checked.widens or checked.params is not None:
        reason = "fronts are searched by the exact search, without bounds on parameters and without joins that widen the backbone"
        raise UsageError(reason, "leave out `strategy`, `join` and `params`")
    goals = {"latency": exact.LATENCY, "macs": exact.MACS} | ({} if source is None else {"loss": exact.Measure(source.losses)})
    if "energy" in names:
        goals["energy"] = exact.measure_of(read_objective("energy"), problem.device, checked.processors)
    current = tuple("loss" if name in ("agreement", "accuracy") else name for name in CRITERIA if name in names)
    unbounded = problem.with_options(min_accuracy=None, min_agreement=None, objective="latency", latency_budget=None)
    parts = search_request(unbounded)
    result, values = [], []
    for space, totals, found in parts:
        if found is not None:
            criteria = Criteria(space, totals, goals, source)
            traced = criteria.trace(current, count)
            result += traced
            values += [[criteria.value(name, item) for name in current] for item in traced]
    if not result:
        # the planner's error names the tightest rule
        choose(unbounded)
        raise InfeasibleError(f"no design of `{problem.graph.name}` meets the constraints")
    kept = evenly_spaced(non_dominated(result, values), count)
    best = sorted((result[i] for i in kept), key=lambda item: (item.ms, item.macs), reverse=True)
    return best, max(item.evaluated for item in result), parts[0][0].size_log10


def check_criteria(names: Sequence[str]) -> tuple[str, ...]:
    """Return the two criteria; refuse unknown or equal ones."""
    for name in names:
        if name not in CRITERIA:
            raise UnknownNameError.among("objective", name, CRITERIA)
    if not len(set(names)) == len(names) == 2:
        reason = f"`pareto={','.join(names)}` does not name two different things to weigh"
        raise UsageError(reason, "write it as `pareto=latency,agreement`")
    return tuple(names)


def trace_diverse(problem: PlanningProblem, count: int, within: float) -> tuple[Choice, list[exact.SearchResult]]:
    """Return the best design of a request, and a list of it and different designs with up to `within` times its value."""
    if not 1 <= within < float("inf"):
        raise UsageError(f"`within={within:g}` is not a factor from 1 up", "write it as `within=1.2`")
    config = problem.config
    not_additive = not config.parsed_objective
    unfit = {"objective": not_additive, "strategy": config.strategy != "exact", "join": config.widens, "params": config.params is not None}
    for name in (name for name, refused in unfit.items() if refused):
        reason = f"several designs that differ are not searched for with `{name}={format_value(getattr(config, name))}`"
        raise UsageError(reason, f"leave it out, or plan one design with `{name}`")
    choice = choose(problem)
    return choice, diverse_designs(choice.space, choice.totals, problem.goal, choice.result, count, within)


def diverse_front(
    graph: OpGraph,
    device: DeviceProfile,
    config: PlanConfig,
    count: int,
    within: float,
    accuracy_source: AccuracySource | None = None,
    losses: Losses | None = None,
) -> FrontAnswer:
    """Return the best design and others that differ from it in branched segments, processors, or kinds of segments."""
    problem = PlanningProblem.of(graph, device, config, accuracy_source)
    choice, result = trace_diverse(problem, count, within)
    space, best = choice.space, choice.result
    proof: dict[str, Any] = {"optimal": best.optimal, "gap": None if isnan(best.gap) else best.gap, "evaluated": best.evaluated}
    values, objective = [problem.goal.value(space, item.picks) for item in result], problem.config.objective
    return _answer(problem, result, values, losses, objective=objective, within=within, space_log10=space.size_log10, **proof)


def _answer(
    problem: PlanningProblem,
    results: Sequence[exact.SearchResult],
    values: Sequence[float] | None = None,
    losses: Losses | None = None,
    **facts: Any,
) -> FrontAnswer:
    """Return the answer for some designs, with their baselines; `values` are values of the objective, if any."""
    config, source, graph, costs = problem.config, problem.accuracy_source, problem.graph, problem.costs
    singles, rows = ranked_singles(graph, costs, config.processors), []
    sequential = sequential_same_macs(graph, problem.stages, costs, singles, Rules.of(config), problem.totals)
    for number, result in enumerate(results):
        design, accuracy = design_of(problem, result), None if source is None else source.prediction(loss_of(result, source))
        if losses is not None:
            # keep the most important blocks, unless this lowers the predicted accuracy
            changed, _ = keep_blocks(predict(problem, design, trained=False), losses)
            if changed != design and (source is None or source.loss(graph, changed) <= source.loss(graph, design)):
                design, accuracy = changed, None if source is None else source.prediction(source.loss(graph, changed))
        run = timeline(graph, design, costs)
        rows.append(
            FrontDesign(
                name=f"{number + 1:02}",
                predicted_ms=run.makespan_ms,
                speedup=singles[0].ms / run.makespan_ms,
                speedup_over_sequential=None if sequential is None else sequential.single.ms / run.makespan_ms,
                macs=run.macs,
                macs_ratio=run.macs / graph.macs,
                params=run.params,
                n_meet=design.n_meet,
                exact=all(o.same for o, _ in result.picks),
                branches=[describe_segment(part) for part in design.segments if not part.whole],
                accuracy=accuracy,
                energy_mj=run_mj(run, problem.device),
                peak_bytes=max(int(options.peak_bytes[index]) for options, index in result.picks),
                optimal=result.optimal,
                value=values[number] if values else None,
                design=design,
            )
        )
    if backbone_of(graph).sides:
        # sides are placed after the search, so nothing is proved
        facts |= {"optimal": False, "gap": None}
    return FrontAnswer(
        **control_fields(singles[0], *((sequential.single, sequential.macs / graph.macs) if sequential else (None, None))),
        **facts,
        model=graph.name,
        device=problem.device.id,
        processors=list(config.processors),
        precision=dict(config.precision),
        rounding=sorted(set(config.precision.values()) - {"fp32"}, reverse=True),
        designs=rows,
        sensitivity=source.on if isinstance(source, Sensitivity) else None,
    )


def describe_segment(part: SegmentDesign) -> str:
    """Return a short description of a branched segment."""
    division = part.division

    def share(branch: BranchScale) -> str:
        return f"{branch.depth}×{branch.width}" if division is None else division.text(shares_of(branch)[division.word])

    return f"{part.name}: " + " | ".join(f"{branch.processor} {share(branch)}".rstrip() for branch in part.branches)
