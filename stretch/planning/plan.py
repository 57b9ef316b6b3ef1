"""Planning of a design: search, controls, recommendation (paper 003, section 4)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import ceil, isnan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, TightRule, UnknownNameError, UsageError
from predictors.graph import OpGraph
from predictors.joins import DEFAULT, JoinKind, join_of
from predictors.predictor import LatencyPredictor, not_measured
from predictors.rewrites import GROUPED, HALF_RESOLUTION, exact, inexact_rewrites, is_grouped
from stretch.planning.blocks import Losses, keep_blocks, kept_worth, shorten
from stretch.planning.config import GRID, STRETCH, PlanConfig, only_latency
from stretch.planning.cost.accuracy import AccuracyPredictor, AccuracySource, Sensitivity, load_accuracy
from stretch.planning.cost.branch import Costs, SegmentOptions
from stretch.planning.cost.compare import MIN_GAIN, ideal_split_ms, processor_lead
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, of_kinds
from stretch.planning.design.scale import scaled_graph
from stretch.planning.messages import format_value
from stretch.planning.network.segments import Segment, backbone_of, split_segments
from stretch.planning.result import (
    PlanResult,
    UnusedProcessor,
    place_sides,
    ranked_singles,
    sequential_same_macs,
)
from stretch.planning.search.exact import Measure, SearchResult, measure_of, search_coarse, search_concat, search_exact
from stretch.planning.search.goal import Bounds, best_result, explain_infeasible, infeasible_error, search_best, search_grid
from stretch.planning.search.parts import merge_neighbours, merge_stages, with_exact_kinds, without_stretched
from stretch.planning.search.space import DesignSpace, Rules, Totals

#: Numbers of meeting points to try, from the plan's up; their plans are compared by the blocks that they keep.
MORE_MEETINGS = 3
#: Maximum number of opaque operators' kinds in a warning.
MAX_NAMED = 6


#: Loosest rules: a transfer may take any share of a segment, and merged stages form one segment with the fewest transfers.
MERGED_OPTIONS = {"alpha": 100.0, "merge": "always"}


class Attempt(NamedTuple):
    """A request that is planned in place of the user's request."""

    options: Mapping[str, Any]  # Options that differ from the request; empty for the request itself.
    note: str = ""  # End of the warning, after the reason why the request itself has no design.
    must_gain: bool = False  # Whether its design counts only if it is faster than the best single processor.


def attempts(config: PlanConfig, default: PlanConfig) -> tuple[Attempt, ...]:
    """Return the request itself, then its replacements if it has no design: merged stages, exact branches, the undivided network.

    `default` is the checked request for the same processors without any option.
    """
    if config.kinds or config.lossless or config.accuracy or config.widens or config.strategy != default.strategy:
        return (Attempt({}),)
    options = ", ".join(f"`{name}={format_value(value)}`" for name, value in MERGED_OPTIONS.items())
    merged = f", so stages are merged and transfers may take any share ({options})"
    # an exact design always agrees with the original, so the bound on agreement is dropped
    exact = {"lossless": True, "min_agreement": None}
    divided = f": the network is divided exactly instead, as with `lossless` and `precision={format_value(config.precision)}`"
    result = Attempt({}), Attempt(MERGED_OPTIONS, merged, must_gain=True), Attempt(exact, divided)
    whole = Attempt({**exact, "n_meet": 0}, ", not even exactly: the network stays whole")
    return (*result, whole) if config.n_meet == default.n_meet else result


def stage_attempts(config: PlanConfig, *, loss_known: bool) -> tuple[tuple[bool, bool], ...]:
    """Return the spaces of stretched segments to search, one after the other, until one has a design.

    Merged stages lower the accuracy of a trained network, and more so with fewer meeting points (paper 003, table 3). So with
    ``merge = "auto"`` they are the last resort, unless their loss is known.

    Returns:
        For each space, whether neighbouring stages may be one segment, and whether designs with the most meeting points come first.
    """
    if config.merge != "auto" or config.meet or STRETCH not in config.planned_kinds:
        return ((config.merge == "always", False),)
    return ((True, False),) if loss_known else ((False, False), (True, True))


@dataclass(frozen=True)
class PlanningProblem:
    """A request with its network, costs and accuracy source."""

    graph: OpGraph  # The original network.
    device: DeviceProfile  # The device's profile.
    config: PlanConfig  # The request, checked.
    stages: tuple[Segment, ...]  # The network's segments between its default or requested meeting points.
    costs: Costs  # Costs on the device, in the planned precisions.
    accuracy_source: AccuracySource | None  # Source of the accuracy of designs; None without one.

    @cached_property
    def backbone(self) -> OpGraph:
        """The part to search a design for: the network, or its backbone if it has several inputs or outputs."""
        return backbone_of(self.graph).graph

    @property
    def one_processor_dominates(self) -> bool:
        """Whether one processor is so far ahead that no division can help."""
        predictor, precision = self.costs.predictor, self.config.precision
        best = min(precision.items(), key=lambda item: predictor.predict(self.graph, *item).ms)
        return processor_lead(self.graph, predictor, precision, best)[0]

    @property
    def totals(self) -> Totals:
        """Limits on a whole design of the backbone."""
        return Totals.of(self.config, self.backbone)

    @property
    def goal(self) -> Measure:
        """Measure that the exact search minimises."""
        return measure_of(self.config.parsed_objective, self.device, self.config.processors)

    def space(self, segments: Sequence[Segment], join: JoinKind, arriving: Sequence[int] | None = None) -> DesignSpace:
        """Return the designs of some segments; the arguments are as in `DesignSpace.of`."""
        config = self.config
        kept = config.keep if STRETCH in config.planned_kinds else [segment.name for segment in segments]
        return DesignSpace.of(segments, config.processors, self.costs, Rules.of(config), join, arriving, kept)

    def stage_space(self, *, merged: bool = False) -> DesignSpace:
        """Return the designs of its stages, with runs of stages if `merged`; a join that couples segments is replaced by the default."""
        space = self.space(self.stages, DEFAULT if self.config.widens else self.config.resolved_join)
        return merge_stages(self.backbone, space) if merged and STRETCH in self.config.planned_kinds else space

    def with_options(self, **options: Any) -> "PlanningProblem":
        """Return the problem with some options replaced and the same costs."""
        return replace(self, config=msgspec.structs.replace(self.config, **options))

    def attempted(self, attempt: Attempt) -> "PlanningProblem":
        """Return the problem of an attempt; an attempt with exact branches gets new precisions and a new accuracy source."""
        options = dict(attempt.options)
        if not options.get("lossless"):
            return self.with_options(**options)
        n_meet = options.pop("n_meet", self.config.n_meet)
        request = msgspec.structs.replace(self.config, **options)
        return PlanningProblem.of(self.graph, self.device, request).with_options(n_meet=n_meet)

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        device: DeviceProfile,
        config: PlanConfig,
        accuracy_source: AccuracySource | None = None,
        like: "PlanningProblem | None" = None,
    ) -> "PlanningProblem":
        """Check a request and return its problem; stages and caches come from `like`, a problem for the same network."""
        checked = config.resolve(device)
        if accuracy_source is None and checked.accuracy:
            accuracy_source = load_accuracy(Path(checked.accuracy), graph.name)
        checked.check_source(accuracy_source)
        settings = LatencyPredictor(device), checked.precision, checked.rewrites_on(checked.processors, device)
        if like is not None and like.config.meet == checked.meet:
            return cls(graph, device, checked, like.stages, like.costs.rebuild(*settings), accuracy_source)
        return cls(graph, device, checked, tuple(split_segments(graph, checked.meet or None)), Costs(*settings), accuracy_source)


#: All designs of a request, limits on a whole design, and the best design; None if none exists.
SearchedSpace = tuple[DesignSpace, Totals, SearchResult | None]


@dataclass(frozen=True)
class Choice:
    """The chosen design of a request."""

    space: DesignSpace  # All designs.
    totals: Totals  # Limits on a whole design.
    result: SearchResult  # The best design.
    problem: PlanningProblem  # Problem of the request.

    @cached_property
    def design(self) -> BranchDesign:
        """The design, with the sides placed."""
        return design_of(self.problem, self.result)

    @cached_property
    def makespan_ms(self) -> float:
        """Makespan of the whole network, ms."""
        return timeline(self.problem.graph, self.design, self.problem.costs).makespan_ms


def plan(
    graph: OpGraph,
    device: DeviceProfile,
    config: PlanConfig | None = None,
    accuracy_source: AccuracySource | None = None,
    losses: Losses | None = None,
) -> PlanResult:
    """Return the fastest design that meets the constraints, and its controls.

    Args:
        config: The request; defaults if None.
        accuracy_source: Source of the accuracy of designs; the file that `config` names if None.
        losses: Measures the loss without single blocks. The result is then the design that keeps most worth of blocks among designs with
            the same meeting points and a time up to the plan's or the latency budget.
    """
    request = config or PlanConfig()
    choice, note = _plan_attempts(PlanningProblem.of(graph, device, request, accuracy_source), request)
    notes = [note] if note else []
    result = predict(choice.problem, choice.design, choice, losses)
    if losses is not None and _stretched_blocks(result):
        choice, result = _choose_meeting_points(choice, result, losses)
    problem = choice.problem
    unused = unused_processors(choice, result.design.processors, result.run.makespan_ms)
    if problem.config.exact:
        faster = _int8_warning(problem, request) if result.design.n_meet else None
    else:
        faster = _merging_warning(choice, result.run.makespan_ms)
    warnings = (*([faster] if faster else []), *(item.reason for item in unused))
    return replace(result, unused=unused, warnings=(*notes, *result.warnings, *_warnings(problem, result), *warnings))


def _choose_meeting_points(choice: Choice, result: PlanResult, losses: Losses) -> tuple[Choice, PlanResult]:
    """Return the choice and plan that keep most worth of blocks, among the plan and no slower plans with other meeting points."""
    problem = choice.problem
    if isinstance(problem.accuracy_source, AccuracyPredictor):  # a supernet was trained with these blocks
        return choice, result
    config, limit = problem.config, max(problem.config.latency_budget or 0.0, choice.makespan_ms)
    first, ends = _choose_blocks(choice, result, losses), {_ends(choice.design)}
    plans, stretched = [(choice, first)], _stretched_blocks(first)
    merges = config.merge != "never" and not config.meet
    searched = merges and only_latency(config) and config.strategy == "exact" and not config.widens
    for more in range(MORE_MEETINGS) if searched else ():
        alternative = _choose_or_none(problem.with_options(merge="always", n_meet=choice.result.n_meet + more, latency_budget=limit))
        if alternative is None or _ends(alternative.design) in ends or alternative.result.n_meet < choice.result.n_meet:
            continue
        ends.add(_ends(alternative.design))
        # the worth of blocks does not include the loss by narrower blocks and joins, which grows with the stretched part
        if _stretched_blocks(predicted := predict(alternative.problem, alternative.design, alternative, losses)) <= stretched:
            plans.append((alternative, _choose_blocks(alternative, predicted, losses)))
    best, chosen = max(plans, key=lambda one: kept_worth(one[1], one[1].design, losses))
    # a later repair starts from the original request
    return best if best is choice else replace(best, problem=problem), replace(chosen, config=config)


def _ends(design: BranchDesign) -> tuple[str, ...]:
    return tuple(part.end for part in design.segments)


def _stretched_blocks(result: PlanResult) -> int:
    return sum(row.segment.depth for row in result.run.segments if not row.design.whole and row.design.division is None)


def _choose_blocks(choice: Choice, result: PlanResult, losses: Losses) -> PlanResult:
    """Return the plan with its most important blocks kept; unchanged if nothing improves or a bound on agreement would break."""
    problem = choice.problem
    design, warnings = keep_blocks(result, losses)
    if not warnings:
        return result
    changed = predict(problem, design, choice, losses)
    required, predicted = problem.config.min_agreement, changed.accuracy.agreement if changed.accuracy else None
    if required is not None and predicted is not None and predicted < required:
        return result
    if changed.run.makespan_ms > result.run.makespan_ms * (1 + 1e-9):
        changed = replace(changed, optimal=False, gap=None)
    return replace(changed, warnings=tuple(warnings))


def _merging_warning(choice: Choice, ms: float) -> str | None:
    """Return a warning with the time of merged stages; None if they gain little."""
    problem, result = choice.problem, choice.result
    config, source = problem.config, problem.accuracy_source
    # if the losses of merged stages are known, the search included merged stages
    may_merge = len(stage_attempts(config, loss_known=source is not None and source.merges)) > 1
    comparable = only_latency(config) and config.strategy == "exact"
    if not (may_merge and comparable and result.n_meet and all(options.span == 1 for options, _ in result.picks)):
        return None
    merged = _choose_or_none(problem.with_options(merge="always"))
    if merged is None or ms < MIN_GAIN * merged.makespan_ms:
        return None
    points = "" if merged.result.n_meet == result.n_meet else f", with {merged.result.n_meet} instead of {result.n_meet} meeting points"
    return f"`merge=always` would take {merged.makespan_ms:.2f} ms instead of {ms:.2f} ms{points}; merged stages keep less accuracy"


def design_of(problem: PlanningProblem, result: SearchResult) -> BranchDesign:
    """Return the design of a search result, with the sides placed."""
    parts = merge_neighbours(problem.backbone, problem.stages, result.segments(problem.costs), across=not problem.config.meet)
    design = BranchDesign(problem.graph.name, problem.device.id, parts)
    return place_sides(problem.graph, design, problem.costs, problem.config.processors)


def _int8_warning(problem: PlanningProblem, request: PlanConfig) -> str | None:
    """Return a warning with the time in int8 for an exact request without precisions; None if int8 would change nothing."""
    graph, device = problem.graph, problem.device
    names = request.processors or device.default_processors
    defaults = {name: device.processor(name).default_precision for name in names}
    if request.precision or defaults == problem.config.precision or "int8" not in defaults.values():
        return None
    planned = ", ".join(f"{name} {precision}" for name, precision in problem.config.precision.items())
    int8 = format_value({name: precision for name, precision in defaults.items() if precision == "int8"})
    caveat = "but int8 rounds, and its ranges are found on images"
    int8_problem = PlanningProblem.of(
        graph, device, msgspec.structs.replace(problem.config, processors=names, precision=defaults, min_width=request.min_width)
    )
    single = ranked_singles(graph, int8_problem.costs, int8_problem.config.processors)[0]
    faster = f"the {single.processor} alone takes {single.ms:.2f} ms"
    if choice := _choose_or_none(int8_problem):
        speedup = f"{single.ms / choice.makespan_ms:.2f}x against the {single.processor} alone ({single.ms:.2f} ms)"
        faster = f"the same request takes {choice.makespan_ms:.2f} ms, {speedup}"
    return f"planned with {planned}; with `precision={int8}` {faster}, {caveat}"


def _plan_attempts(problem: PlanningProblem, request: PlanConfig) -> tuple[Choice, str]:
    """Return the design of the first attempt that has one, and a note if this is not the request itself."""
    default = PlanConfig(processors=problem.config.processors).resolve(problem.device)
    refused: InfeasibleError | None = None
    for attempt in attempts(problem.config, default):
        explain = refused is None and (problem.config != default or not problem.one_processor_dominates)
        try:
            choice = choose(problem.attempted(attempt), explain=explain)
        except InfeasibleError as error:
            refused = refused or error
            if any(rule.value != getattr(default, rule.rule) for rule in refused.rules):
                break
            continue
        if not attempt.must_gain or gains(choice):
            return choice, f"{refused.message}{attempt.note}" if refused else ""
    assert refused is not None
    raise refused


def _choose_or_none(problem: PlanningProblem) -> Choice | None:
    """Return the best design of a request; None if none exists."""
    try:
        return choose(problem, explain=False)
    except InfeasibleError:
        return None


def choose_merged(problem: PlanningProblem) -> Choice | None:
    """Return the best design of merged stages with any share of transfers; None if it does not gain over the best single processor."""
    choice = _choose_or_none(problem.with_options(**MERGED_OPTIONS))
    return choice if choice is not None and gains(choice) else None


def gains(choice: Choice) -> bool:
    """Return whether a design is faster than the best single processor by at least `MIN_GAIN`."""
    problem = choice.problem
    return choice.makespan_ms * MIN_GAIN <= ranked_singles(problem.graph, problem.costs, problem.config.processors)[0].ms


def evaluate(
    graph: OpGraph,
    device: DeviceProfile,
    design: BranchDesign,
    config: PlanConfig | None = None,
    accuracy_source: AccuracySource | None = None,
    losses: Losses | None = None,
) -> PlanResult:
    """Return the prediction and controls of an existing design, for example one made by hand.

    Constraints are not enforced; `warnings` lists broken ones.

    Args:
        config: Precisions, floors and ranges for the controls; defaults if None.
        accuracy_source: Source of the accuracy of designs, as in `plan`.
        losses: Losses without single blocks, for the baseline with fewer blocks.
    """
    request = config or PlanConfig()
    if not request.processors:
        # A design may use one processor only; its controls then use all processors.
        has_many = len({device.processor(p).family for p in design.processors}) > 1
        request = msgspec.structs.replace(request, processors=design.processors if has_many else device.default_processors)
    problem = PlanningProblem.of(graph, device, request, accuracy_source)
    result = predict(problem, design, losses=losses)
    return replace(result, warnings=_warnings(problem, result))


def predict(
    problem: PlanningProblem,
    design: BranchDesign,
    choice: Choice | None = None,
    losses: Losses | None = None,
    *,
    trained: bool = True,
) -> PlanResult:
    """Return the prediction and controls of a design.

    Args:
        choice: Result of the search for it; None for an existing design.
        losses: Losses without single blocks.
        trained: Whether the sequential model, which needs training, is a control.
    """
    graph, config, costs, source = problem.graph, problem.config, problem.costs, problem.accuracy_source
    singles, searched = ranked_singles(graph, costs, config.processors), choice.result if choice else None
    # sides are placed after the search, so nothing is proved
    proved = searched is not None and not backbone_of(graph).sides
    result = PlanResult(
        graph,
        costs,
        config,
        design,
        problem.stages,
        timeline(graph, design, costs),
        singles[0],
        sequential_same_macs(graph, problem.stages, costs, singles, Rules.of(config), problem.totals) if trained else None,
        ranked_singles(scaled_graph(graph, design), costs, config.processors)[0],
        ideal_split_ms(graph, config.processors, costs.predictor, config.precision),
        searched.optimal and proved if searched else None,
        None if searched is None or not proved or isnan(searched.gap) else searched.gap,
        searched.evaluated if searched else 1,
        choice.space.size_log10 if choice else None,
        source.prediction(source.loss(graph, design)) if source is not None else None,
    )
    return replace(result, shortened=shorten(result, losses, source))


# Warnings about a plan.
def _operator_warnings(result: PlanResult) -> list[str]:
    """Return warnings on opaque, replaced, divided and unsupported operators."""
    graph, texts = result.graph, []
    if opaque := Counter(str(op.attrs["variant"]) for op in graph.ops if op.kind == "opaque"):
        listed = ", ".join(f"{count} `{name}`" for name, count in opaque.most_common(MAX_NAMED))
        listed += f" and {len(opaque) - MAX_NAMED} other kinds" if len(opaque) > MAX_NAMED else ""
        unknown = f"{opaque.total()} of {len(graph.ops)} operators are unknown and not split ({listed})"
        texts.append(f"{unknown}; their times are estimated from sizes")
    rewritten: dict[str, dict[str, None]] = {}
    branches = [branch for part in result.design.segments for branch in part.branches]
    for processor, name in [(branch.processor, name) for branch in branches for name in inexact_rewrites(branch.rewrites)]:
        rewritten.setdefault(name, {})[processor] = None
    if rewritten:
        text = ", ".join(f"{name} on {' and '.join(processors)}" for name, processors in rewritten.items())
        texts.append(f"scaled branches are rewritten ({text}); part of the speed-up may come from that")
    applied = {f"{where}:{name}" for b in branches for where in (b.processor, b.processor.partition("[")[0]) for name in b.rewrites}
    if unused := [item for item in result.config.rewrite if ":" in item and item not in applied]:
        text = f"no branch of this design changes with {' and '.join(f'`{item}`' for item in unused)}"
        whole = f"; `{HALF_RESOLUTION}` needs a branch whose segment ends with pooling over the whole image"
        texts.append(text + whole * any(item.endswith(HALF_RESOLUTION) for item in unused))
    if where := " and ".join(dict.fromkeys(branch.processor for branch in branches if set(branch.rewrites) & set(exact))):
        texts.append(f"grouped convolutions on {where} run in parts, a convolution for each group, and compute the same")
    present = {op.kind for op in graph.ops}
    named = {name: result.device.processor(name).profile.unsupported for name in result.config.processors}
    lacking = {name: [kind for kind in kinds if kind in present] for name, kinds in named.items()}
    scaled = scaled_graph(graph, result.design) if any(GROUPED in kinds for kinds in named.values()) else None
    for name, kinds in named.items():
        if GROUPED in kinds and scaled and any(is_grouped(scaled, op) and op.tags.get("processor") == name for op in scaled.ops):
            lacking[name].append(GROUPED)
    text = "; ".join(f"{name} lacks {', '.join(f'`{kind}`' for kind in kinds)}" for name, kinds in lacking.items() if kinds)
    return [*texts, f"{text}: the CPU computes them, and times count the exchange there and back"] if text else texts


def _warnings(problem: PlanningProblem, result: PlanResult) -> tuple[str, ...]:
    warnings: list[str | None] = [*_operator_warnings(result)]
    unmeasured = ((f"{name} in {precision}", origin) for (name, precision), origin in result.origins.items())
    warnings.append(not_measured(result.device.id, unmeasured))
    low, high = (bound + problem.graph.macs - problem.backbone.macs for bound in problem.totals[:2])
    macs = result.run.macs - result.run.repeated_macs
    if not (low <= macs <= high or any(part.missing for part in result.design.segments)):
        lowest, highest = result.config.macs
        ratio = macs / result.graph.macs
        warnings.append(f"the design has {ratio:.3f} of the original's multiply-accumulates, outside {lowest:g} to {highest:g}")
    merged = [result.stages_of(row.segment) for row in result.run.segments if len(row.branches) > 1 and not join_of(row.design.join).exact]
    names = [f"{stages[0].name} to {stages[-1].name}" for stages in merged if len(stages) > 1]
    if names and not (result.accuracy is not None and result.accuracy.basis == "sensitivity"):
        # NN-Stretch (MobiSys 2023), table 3
        warnings.append(f"stages are merged ({', '.join(names)}): fewer meeting points lower the accuracy of the trained network")
    warnings += [division.remark(result.stages) for division in of_kinds(result.config.planned_kinds)]
    if result.design.n_meet == 0:
        warnings.append("no segment of the design has more than one branch: nothing runs side by side")
    return tuple(text for text in warnings if text)


def unused_processors(choice: Choice, used: Sequence[str], best_ms: float) -> tuple[UnusedProcessor, ...]:
    """Return every processor of the request that a design does not use; `best_ms` is the design's makespan."""
    problem = choice.problem
    config, result = problem.config, []
    # other strategies search other spaces, so their results are not comparable with the exact search
    by_latency = config.params is None and config.min_accuracy is None and config.min_agreement is None and config.objective == "latency"
    comparable = config.strategy == "exact" and not config.widens and by_latency
    for name in (name for name in config.processors if name not in used):

        def uses(options: SegmentOptions, name: str = name) -> bool:
            return name in options.processors

        best = search_exact(choice.space, choice.totals, required=uses) if comparable else None
        rule, ms = _broken_rule(choice.space, name), None if best is None else replace(choice, result=best).makespan_ms
        reasons = [rule] if rule else []
        if ms is not None and ms < best_ms:
            reasons.insert(0, "no design of the backbone that uses it is faster by itself")
        elif ms is not None:
            reasons.insert(0, f"the fastest design that uses it is predicted to take {ms:.2f} ms, {best_ms:.2f} ms without")
        reason = f"the {name} is not used: {'; '.join(reasons) or 'no design within the constraints uses it'}"
        result.append(UnusedProcessor(processor=name, ms=ms, best_ms=best_ms, rule=rule or None, reason=reason))
    return tuple(result)


def _broken_rule(space: DesignSpace, processor: str) -> str:
    """Return a text on the rule that every branch on a processor breaks; empty if some branch meets all rules."""
    groups = [o for options in space.options for o in options if processor in o.processors and o.branched]
    if not groups:
        return "no segment can branch to it"
    if any(group.allowed.any() for group in groups):
        return ""
    base = [space.alone_ms(group) for group in groups]
    for constraint, value in space.rules.active:
        bound = [(group, ms) for group, ms in zip(groups, base, strict=True) if constraint.exact or not group.exact]
        reason = constraint.explain_miss(value, [group for group, _ in bound], [ms for _, ms in bound]) if bound else None
        if reason is not None:
            return f"no branch on it meets `{constraint.option.name}`: {reason}"
    single = [f"`{item.option.name}`" for item, value in space.rules.active if item.mask(value, groups[0], base[0]) is not None]
    return f"no branch on it meets {', '.join(single)} all at once"


def choose(problem: PlanningProblem, *, explain: bool = True) -> Choice:
    """Return the best design within the constraints, by the request's objective.

    `stage_attempts` decides on merged stages. Then the requested strategy searches, and bounds on the whole design are applied. Without a
    design, `explain` starts several searches for the tightest rule, which the error names.
    """
    config, costs, source, goal = problem.config, problem.costs, problem.accuracy_source, problem.goal
    parts = search_request(problem, explain=explain)
    space, totals, _ = parts[0]
    best = best_result([found for _, _, found in parts])
    if best is None and not explain:
        raise InfeasibleError(f"no design of `{problem.backbone.name}` meets the constraints")
    if best is None:
        raise _infeasible_error(problem, space)
    bounds = Bounds(problem.backbone, space, config, totals, goal)
    if config.params is not None:
        best = bounds.satisfy_params(best)
    if source is not None and getattr(config, source.option) is not None:
        best = bounds.satisfy_accuracy(best, source)
    if source is not None and config.objective == "accuracy":
        best = bounds.most_accurate(best, source)
    if config.latency_budget is not None and best.ms > config.latency_budget and not only_latency(config):
        best = bounds.satisfy_latency(best)
    if config.latency_budget is not None and best.ms > config.latency_budget:
        fastest = f"the fastest design of `{problem.backbone.name}` on {costs.predictor.device.id} takes {best.ms:.4g} ms"
        reason = f"{fastest}, more than `latency_budget={config.latency_budget:g}`"
        raise infeasible_error(reason, [TightRule("latency_budget", config.latency_budget, ceil(best.ms * 1000) / 1000)])
    return Choice(space, totals, best, problem)


def search_request(problem: PlanningProblem, *, explain: bool = True) -> list[SearchedSpace]:
    """Return all designs of a request as separately searched spaces: the main space first, then spaces with fewer constraints or processors."""
    for name in problem.config.keep:
        if name not in (names := [stage.name for stage in problem.stages]):
            raise UnknownNameError.among("stage to keep", name, names)
    source = problem.accuracy_source
    try:
        searched = _search_spaces(problem, loss_known=source is not None and source.merges)
    except InfeasibleError as error:
        raise _suggest_other_kinds(problem, error) if explain else error from None
    if source is None and problem.config.params is None:
        searched += _search_fewer_processors(problem)
    return searched


def _search_spaces(problem: PlanningProblem, *, loss_known: bool) -> list[SearchedSpace]:
    """Return the searched spaces of a request for all its processors.

    With `loss_known` the losses of merged stages are known, so these need not be the last resort.
    """
    graph, config, source = problem.backbone, problem.config, problem.accuracy_source
    stretched = STRETCH in config.planned_kinds
    for space, totals in _stage_spaces(problem, loss_known=loss_known):
        found = _search(problem, space, totals) if stretched else None
        if found is not None:
            break
    if set(config.planned_kinds) == {STRETCH}:
        return [(space, totals, found)]
    mixed = with_exact_kinds(graph, config, space, source.blocks if isinstance(source, Sensitivity) else ())
    result: list[SearchedSpace] = [(mixed, totals, _search(problem, mixed, totals))]
    if totals != problem.totals:
        # scaled copies of merged stages need the maximum number of meeting points; a design without scaled copies loses no
        # accuracy and only needs the requested number
        unstretched = without_stretched(mixed)
        result.append((unstretched, problem.totals, search_best(unstretched, problem.totals, problem.goal)))
    return result


def _stage_spaces(problem: PlanningProblem, *, loss_known: bool) -> Iterator[tuple[DesignSpace, Totals]]:
    """Yield the spaces of stages to search, in order, each with its limits."""
    config = problem.config
    for merged, max_meetings in stage_attempts(config, loss_known=loss_known):
        space = problem.stage_space(merged=merged)
        first = max(space.max_meetings, config.n_meet) if max_meetings else config.n_meet
        for n_meet in range(first, config.n_meet - 1, -1):
            yield space, problem.totals._replace(n_meet=n_meet)


def _search_fewer_processors(problem: PlanningProblem) -> list[SearchedSpace]:
    """Return searched spaces on subsets of processors that need merged stages, so that an additional processor never makes a design slower."""
    config = problem.config
    merges = config.merge == "auto" and not config.meet and STRETCH in config.planned_kinds
    if not merges or config.strategy != "exact" or config.widens:
        return []
    searched: list[SearchedSpace] = []
    for subset in (subset for count in range(2, len(config.processors)) for subset in combinations(config.processors, count)):
        subproblem = replace(problem, config=config.replace_processors(subset))
        if search_coarse(subproblem.stage_space(), problem.totals) is None:
            searched += _search_spaces(subproblem, loss_known=False)
    return searched


def _search(problem: PlanningProblem, space: DesignSpace, totals: Totals) -> SearchResult | None:
    """Return the best design of a space by the requested strategy; None if none exists."""
    config, name = problem.config, problem.backbone.name
    if not config.widens and config.strategy != GRID:
        return search_best(space, totals, problem.goal)
    # these searches cannot merge stages, so they use the segments of the exact search's best design
    incumbent, segments = search_exact(space, totals), space.segments
    if space.longest_span > 1:
        if incumbent is None:
            return None
        segments = tuple(options.segment for options, _ in incumbent.picks)
    if config.widens:
        result = search_concat(lambda arriving: problem.space(segments, config.join, arriving), totals)
        reason = f"no design of `{name}` with `{config.join}` joins was found in the range of multiply-accumulates"
        hint = f"use `join={DEFAULT}`"
    else:
        result = search_grid(problem.space(segments, config.resolved_join), totals)
        reason, hint = f"the strategy `grid` finds no design of `{name}`, though there is one", "use `strategy=exact`"
    if result is None and incumbent is not None:
        raise InfeasibleError(reason, hint)
    return result


def _infeasible_error(problem: PlanningProblem, space: DesignSpace) -> InfeasibleError:
    """Return the error for a request without a design; `space` is the largest one searched."""
    graph, config = problem.backbone, problem.config
    never = config.merge == "never" and STRETCH in config.planned_kinds
    if never and search_exact(problem.stage_space(merged=True), problem.totals) is not None:
        reason = f"no design of `{graph.name}` meets the constraints while each stage is a segment of its own"
        return InfeasibleError(reason, "let stages merge with `merge=auto`", [TightRule("merge", "never", "auto")])

    def build(request: PlanConfig) -> DesignSpace:
        changed = replace(problem, config=request)
        if set(config.planned_kinds) != {STRETCH}:
            return with_exact_kinds(graph, request, changed.stage_space())
        return changed.stage_space(merged=space.longest_span > 1)

    return _suggest_other_kinds(problem, explain_infeasible(graph, space, config, build))


def _suggest_other_kinds(problem: PlanningProblem, error: InfeasibleError) -> InfeasibleError:
    """Return the error, with a hint on the other kinds of branches, exact or stretched, if they have a design for the same request."""
    config = problem.config
    if config.planned_kinds == (STRETCH,):
        kinds, hint = {"lossless": True, "kinds": ()}, "or split the network as it is with `lossless`"
    elif config.exact:
        hint = f"or let segments be stretched, which makes another network, with `kinds={STRETCH}`"
        kinds = {"lossless": False, "kinds": (STRETCH,)}
    else:
        return error
    with suppress(InfeasibleError, UsageError):
        alternative = PlanningProblem.of(problem.graph, problem.device, msgspec.structs.replace(config, **kinds), like=problem)
        if any(found is not None for _, _, found in _search_spaces(alternative, loss_known=False)):
            error.hint = f"{error.hint}, {hint}" if error.hint else hint
    return error
