"""Goal of a search: the minimum of an additive measure over all subsets of processors, within bounds on whole designs.

The exact search keeps one bound: on accuracy, time, energy or parameters.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import ceil, floor, inf, isnan, log10, nan
from operator import attrgetter

import msgspec
import numpy as np

from predictors.errors import InfeasibleError, TightRule, UsageError
from predictors.graph import OpGraph
from stretch.planning.config import STRETCH, PlanConfig
from stretch.planning.constraints import Limit, constraints
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.cost.branch import SegmentOptions
from stretch.planning.design.branch_design import exact_kinds
from stretch.planning.messages import format_value
from stretch.planning.search import exact
from stretch.planning.search.exact import search_exact
from stretch.planning.search.space import DesignSpace, Rules, Totals


def search_best(
    space: DesignSpace,
    totals: Totals,
    goal: exact.Measure,
    loss_bound: exact.LossBound | None = None,
    required: exact.OptionFilter | None = None,
) -> exact.SearchResult | None:
    """Return the design with the minimum of a measure, within a bound on a second measure, over all subsets of processors."""
    if goal is exact.LATENCY and loss_bound is None and required is None:
        return exact.search_pruned(space, totals)[0]
    power = goal.power or (loss_bound[0].power if loss_bound is not None else None)
    designs: list[exact.SearchResult | None] = []
    for group in [space.processors] if power is None else power.groups:
        subspace = exact.restrict_processors(space, group)
        if all(subspace.options):
            bound = None if loss_bound is None else (loss_bound[0].of(group), loss_bound[1])
            designs.append(exact.search_exact(subspace, totals, goal.of(group), bound, required))
    return best_result(designs)


def best_result(found: Sequence[exact.SearchResult | None]) -> exact.SearchResult | None:
    """Return the best result of several searches over different designs; None if none has a design."""
    search_results = [search_result for search_result in found if search_result is not None]
    if not search_results:
        return None
    best = min(search_results, key=attrgetter("value"))
    evaluated = max(search_result.evaluated for search_result in search_results)
    if any(isnan(search_result.gap) for search_result in search_results):
        return replace(best, optimal=False, gap=nan, evaluated=evaluated)
    # a search that was cut short may have missed a design as good as its bound
    bound = min(search_result.value / (1 + search_result.gap) for search_result in search_results)
    optimal = best.optimal and bound >= best.value
    return replace(best, optimal=optimal, gap=0.0 if optimal else best.value / bound - 1, evaluated=evaluated)


def loss_of(search_result: exact.SearchResult, accuracy_source: AccuracySource) -> float:
    """Return the predicted loss of a design that a search found."""
    return sum(float(accuracy_source.losses(options)[index]) for options, index in search_result.picks)


@dataclass(frozen=True)
class Bounds:
    """Searches of one space for designs within a bound on parameters, accuracy or latency."""

    graph: OpGraph  # The original network.
    space: DesignSpace  # Designs to choose from.
    config: PlanConfig  # The request, checked.
    totals: Totals  # Limits on a whole design.
    goal: exact.Measure = exact.LATENCY  # Criterion of designs.

    def satisfy_params(self, fastest: exact.SearchResult) -> exact.SearchResult:
        """Return `fastest` if its parameters are in range, else the fastest design within the bound that it exceeds."""
        assert self.config.params is not None
        if self.config.strategy != "exact":
            raise UsageError("parameters can be bounded with the exact strategy only", "leave out `params` or `strategy`")
        low, high = (ratio * self.graph.params for ratio in self.config.params)
        if low <= fastest.params <= high:
            return fastest
        sign, limit = (1.0, high) if fastest.params > high else (-1.0, -low)
        counted = exact.weighted_sum((sign, exact.PARAMS))
        search_result = exact.search_exact(self.space, self.totals, loss_bound=(counted, limit))
        if search_result is not None and low <= search_result.params <= high:
            return search_result
        nearest = search_result or exact.search_exact(self.space, self.totals, counted) or fastest
        ratio = nearest.params / self.graph.params
        first, last = self.config.params
        bounds = (first, ceil(ratio * 1000) / 1000) if nearest.params > high else (floor(ratio * 1000) / 1000, last)
        problem = f"no design of `{self.graph.name}` has between {first:g} and {last:g} of its parameters"
        raise infeasible_error(problem, [TightRule("params", self.config.params, bounds)])

    def satisfy_accuracy(self, fastest: exact.SearchResult, accuracy_source: AccuracySource) -> exact.SearchResult:
        """Return the best design whose predicted accuracy reaches the required minimum."""
        option = accuracy_source.option
        required: float = getattr(self.config, option)
        max_loss = accuracy_source.max_loss(required)
        if loss_of(fastest, accuracy_source) <= max_loss:
            return fastest
        search_result = search_best(self.space, self.totals, self.goal, (exact.Measure(accuracy_source.losses), max_loss))
        if search_result is not None:
            return search_result
        best = self.least_loss(accuracy_source)
        value = accuracy_source.value(loss_of(fastest if best is None else best, accuracy_source))
        goal = f"reach {required:g} top-1" if option == "min_accuracy" else f"see the original's class in {required:.1%} of images"
        rule = TightRule(option, required, floor(value * 10000) / 10000)
        result = infeasible_error(f"no design of `{self.graph.name}` is predicted to {goal}", [rule])
        if self.config.planned_kinds == (STRETCH,):
            kinds = ",".join((STRETCH, *exact_kinds()))
            result.hint = f"{result.hint}; segments divided exactly, with `kinds={kinds}`, lose nothing"
        raise result

    def most_accurate(self, fastest: exact.SearchResult, accuracy_source: AccuracySource) -> exact.SearchResult:
        """Return the design with the highest predicted accuracy within the latency budget, or `fastest` if none is better."""
        assert self.config.latency_budget is not None
        best = None if fastest.ms > self.config.latency_budget else self.least_loss(accuracy_source, self.config.latency_budget)
        return best if best is not None and loss_of(best, accuracy_source) < loss_of(fastest, accuracy_source) else fastest

    def least_loss(self, accuracy_source: AccuracySource, budget_ms: float = inf) -> exact.SearchResult | None:
        """Return the design with the lowest predicted loss that takes at most `budget_ms`."""
        within = (exact.LATENCY, budget_ms) if budget_ms < inf else None
        search_result = exact.search_exact(self.space, self.totals, exact.Measure(accuracy_source.losses), within)
        # the loss may be zero, so a gap relative to it is undefined
        return None if search_result is None else replace(search_result, gap=0.0 if search_result.optimal else nan)

    def satisfy_latency(self, best: exact.SearchResult) -> exact.SearchResult:
        """Return the best design within the latency budget, for an objective other than latency; the fastest one if none exists."""
        assert self.config.latency_budget is not None
        for name in ("min_accuracy", "min_agreement"):
            if getattr(self.config, name) is not None:
                problem = f"the objective `{self.config.objective}` is not planned for with both `{name}` and `latency_budget`"
                raise UsageError(problem, "leave out one of the two")
        search_result = search_best(self.space, self.totals, self.goal, (exact.LATENCY, self.config.latency_budget))
        return search_result or exact.search_exact(self.space, self.totals) or best


# Grid search as in paper 003: each processor has the same depth and width ratio in every segment that may branch.

#: Tried ratios; the authors' release tries depths from 0.66 and ten widths from 0.5.
DEPTHS = (0.5, 0.66, 0.83, 1.0)
WIDTHS = tuple(round(0.5 + 0.05 * i, 2) for i in range(11))
#: Coarser ratios for three processors, because the grid's size is a power of their number.
COARSE_DEPTHS = (0.5, 0.75, 1.0)
COARSE_WIDTHS = (0.375, 0.5, 0.625, 0.75, 1.0)


def search_grid(space: DesignSpace, totals: Totals) -> exact.SearchResult | None:
    """Return the fastest design of uniform ratios within the totals; None if none exists."""
    count = len(space.processors)
    ratios = list(product(*((DEPTHS, WIDTHS) if count == 2 else (COARSE_DEPTHS, COARSE_WIDTHS))))
    groups = [next((group for group in options if len(group.candidates) == count), None) for options in space.options]
    nearest = [
        None if group is None else [[_nearest_scale(group, i, *ratio) for ratio in ratios] for i in range(count)] for group in groups
    ]
    best: exact.SearchResult | None = None
    for choice in product(range(len(ratios)), repeat=count):
        # a segment that may not branch stays whole on its fastest processor
        holder, picks = space.costs.host, []
        for options, group, near in zip(space.options, groups, nearest, strict=True):
            at = space.holders.index(holder)
            pick = min((o for o in options if not o.branched), key=lambda o: o.ms[at, 0]), 0
            if group is not None and near is not None:
                scales = [near[i][c] for i, c in enumerate(choice)]
                index = int(np.ravel_multi_index(scales, [len(c) for c in group.candidates]))
                pick = (group, index) if group.allowed[at, index] else pick
            holder = pick[0].holder(space.costs.host)
            picks.append(pick)
        result = exact.SearchResult.unproved(space, picks, len(ratios) ** count)
        if totals.low <= result.macs <= totals.high and result.n_meet >= totals.n_meet and (best is None or result.ms < best.ms):
            best = result
    return best


def _nearest_scale(group: SegmentOptions, branch: int, depth: float, width: float) -> int:
    """Return the index of a branch's candidate whose ratios are nearest to `depth` and `width`."""
    segment, costs = group.segment, group.candidates[branch]
    return min(range(len(costs)), key=lambda n: abs(costs[n].depth / segment.depth - depth) + abs(costs[n].width / segment.width - width))


# Reason why no design meets the constraints: the tightest rule, and its nearest value that has a design.

#: Bisections for the nearest value of a rule; the result is exact to 1 in 4 000.
STEPS = 12

Feasible = Callable[[PlanConfig], bool]


def explain_infeasible(
    graph: OpGraph, space: DesignSpace, config: PlanConfig, build: Callable[[PlanConfig], DesignSpace]
) -> InfeasibleError:
    """Return the error for a request that no design meets.

    Each rule is dropped in turn. Among the rules whose absence helps, the error names the rule with the smallest relative change.
    """
    if not any(segment_options.branched for options in space.options for segment_options in options):
        hint = "give other meeting points with `meet`, or another model"
        return InfeasibleError(f"`{graph.name}` has no segment that can branch", hint)

    def feasible(changed: PlanConfig) -> bool:
        rules = Rules.of(changed)
        changed_space = space.replace_rules(rules) if rules.floors == Rules.of(config).floors else build(changed)
        return search_exact(changed_space, Totals.of(changed, graph)) is not None

    branchable = space.max_meetings
    if 0 < branchable < config.n_meet and feasible(msgspec.structs.replace(config, n_meet=branchable)):
        return tightest_rules_error(graph.name, [TightRule("n_meet", config.n_meet, branchable)])
    all_options = [option for options in space.options for option in options]
    limits = [limit for rule, value in Rules.of(config).active for limit in rule.limits(value, all_options)]
    blamed = _blame_one(limits, config, feasible) or _blame_two(limits, config, feasible)
    if blamed:
        return tightest_rules_error(graph.name, blamed)
    hint = "give other meeting points with `meet`, or other processors"
    return InfeasibleError(f"no design of `{graph.name}` meets the constraints, and dropping any two of them does not help", hint)


def _blame_one(limits: list[Limit], config: PlanConfig, feasible: Feasible) -> list[TightRule]:
    """Return the rule that needs the smallest relative change; empty if no single rule helps."""
    best: tuple[float, TightRule] | None = None
    for limit in limits:
        # Lower floors need a larger space, so with three processors they are only tried if no other rule helped.
        if best is not None and constraints[limit.option].floor_of and len(config.processors) > 2:
            continue
        if not feasible(limit.change(config, limit.loosest)):
            continue
        number = _nearest(limit, config, feasible)
        change = abs(number - limit.value) / abs(limit.value)
        if best is None or change < best[0]:
            best = (change, limit.rule(config, number))
    return [] if best is None else [best[1]]


def _blame_two(limits: list[Limit], config: PlanConfig, feasible: Feasible) -> list[TightRule]:
    """Return two rules that only help together, with values that work together; empty if no two rules help."""
    for first, second in combinations(limits, 2):
        without_second = second.change(config, second.loosest)
        if not feasible(first.change(without_second, first.loosest)):
            continue
        first_value = _nearest(first, without_second, feasible)
        second_value = _nearest(second, first.change(config, first_value), feasible)
        if first.option == second.option:
            return [second.rule(first.change(config, first_value), second_value)._replace(value=first.rule(config, first_value).value)]
        return [first.rule(config, first_value), second.rule(config, second_value)]
    return []


def _nearest(limit: Limit, config: PlanConfig, feasible: Feasible) -> float:
    """Return the number nearest to the requested one that has a design, rounded towards the loose side."""

    def is_feasible(number: float) -> bool:
        return feasible(limit.change(config, number))

    tight, loose = limit.value, limit.loosest
    if limit.ladder is not None:
        # the last step has a design, as the caller checked
        return limit.ladder[bisect_left(limit.ladder, True, hi=len(limit.ladder) - 1, key=is_feasible)]
    # Factors of ten first, so that the bisection starts near the value.
    factor = 10.0 if loose > tight else 0.1
    candidate = tight * factor
    while (candidate < loose if loose > tight else candidate > loose) and not is_feasible(candidate):
        tight, candidate = candidate, candidate * factor
    loose = min(candidate, loose) if loose > tight else max(candidate, loose)
    for _ in range(STEPS):
        middle = (tight + loose) / 2
        tight, loose = (tight, middle) if is_feasible(middle) else (middle, loose)
    # round to four digits, towards the loose side
    scale = 10.0 ** (3 - floor(log10(loose)))
    rounded = (ceil(loose * scale) if loose > limit.value else floor(loose * scale)) / scale
    return rounded if is_feasible(rounded) else loose


# The error for a request without a design.


def infeasible_error(problem: str, rules: Sequence[TightRule]) -> InfeasibleError:
    """Return the error whose hint names the nearest values with a design; several rules change together."""
    noun, verb = ("value", "is") if len(rules) == 1 else ("values", "are")
    nearest = " with ".join(_setting(rule.rule, rule.nearest) for rule in rules)
    return InfeasibleError(problem, f"the nearest {noun} with a design {verb} {nearest}", rules)


def tightest_rules_error(model: str, rules: Sequence[TightRule]) -> InfeasibleError:
    """Return the error that blames the tightest of a request's rules."""
    named = " and ".join(_setting(rule.rule, rule.value) for rule in rules)
    verb = "is" if len(rules) == 1 else "are"
    return infeasible_error(f"no design of `{model}` meets the constraints; the tightest {verb} {named}", rules)


def _setting(option: str, value: object) -> str:
    return f"`{option}`" if value is None else f"`{option}={format_value(value)}`"
