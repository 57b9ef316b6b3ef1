"""Choose a design: which stages are merged, then the search of the strategy asked for, then bounds on the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor

from predictors.errors import InfeasibleError, TightRule, UnknownNameError, UsageError
from predictors.graph import OpGraph
from predictors.joins import DEFAULT, JoinKind, joins_that
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.cost.branch import Costs
from stretch.planning.network.segments import Segment
from stretch.planning.search.banded import with_exact_kinds, without_stretched
from stretch.planning.search.bounds import Bounds
from stretch.planning.search.concat import search_concat
from stretch.planning.search.cutting import cut_blocks
from stretch.planning.search.diagnose import explain_infeasible, refusal
from stretch.planning.search.evolve import evolve, fastest_designs
from stretch.planning.search.exact import SearchResult, search_exact
from stretch.planning.search.goal import Added, Goal, least_of, score_of, search_best
from stretch.planning.search.merging import merge_stages
from stretch.planning.search.rules import Rules
from stretch.planning.search.sieve import search_some
from stretch.planning.search.space import DesignSpace
from stretch.planning.sentences import Mention, Sentence
from stretch.planning.strategies import search


@dataclass(frozen=True)
class Choice:
    """A design that was searched for."""

    result: SearchResult  # The design.
    space: DesignSpace  # The designs it was chosen from.
    n_meet: int  # Branched segments that it was to have, at least.


@dataclass(frozen=True)
class Searched:
    """Designs of a request, and the best of them."""

    space: DesignSpace  # The designs.
    n_meet: int  # Branched segments that they have, at least.
    result: SearchResult | None  # The best one; None if there is none.


def macs_range(graph: OpGraph, config: PlanConfig) -> tuple[int, int]:
    """Fewest and most multiply-accumulates of a design."""
    return ceil(config.macs[0] * graph.macs), floor(config.macs[1] * graph.macs)


def choose(
    graph: OpGraph,
    config: PlanConfig,
    costs: Costs,
    stages: Sequence[Segment],
    accuracy_source: AccuracySource | None = None,
    *,
    explain: bool = True,
) -> Choice:
    """The fastest design within the constraints, or the most accurate one where that is the objective.

    With ``merge = "auto"`` stages are merged only where the request has no
    design otherwise, and then with as many meeting points as there can be:
    the fewer they are, the lower the accuracy (paper 003, table 3).

    Args:
        explain: Whether to look for the tightest rule where there is no design, which takes several searches.
    """
    _check(config, accuracy_source)
    goal = _goal(config, costs)
    parts = search_request(graph, config, costs, stages, accuracy_source)
    space, n_meet = parts[0].space, parts[0].n_meet
    least = least_of([part.result for part in parts if part.result is not None])
    if least is None and not explain:
        raise InfeasibleError(f"no design of `{graph.name}` meets the constraints")
    if least is None:
        raise _refusal(graph, config, costs, stages, space)
    bounds = Bounds(graph, space, config, macs_range(graph, config), n_meet, goal)
    if config.params is not None:
        least = bounds.within_params(least)
    if accuracy_source is not None and getattr(config, accuracy_source.option) is not None:
        least = bounds.accurate_enough(least, accuracy_source)
    if accuracy_source is not None and config.objective == "accuracy":
        least = bounds.most_accurate(least, accuracy_source)
    if config.latency_budget is not None and least.ms > config.latency_budget and not config.best_in.only_latency:
        least = bounds.fast_enough(least)
    if config.latency_budget is not None and least.ms > config.latency_budget:
        what = Sentence(
            "the fastest design of `{}` on {} takes {} ms, more than {}",
            graph.name, costs.predictor.device.id, f"{least.ms:.4g}", Mention("latency_budget", config.latency_budget),
        )  # fmt: skip
        raise refusal(what, [TightRule("latency_budget", config.latency_budget, ceil(least.ms * 1000) / 1000)])
    if config.best_in.tried:
        score, macs = score_of(config.best_in, goal, space), macs_range(graph, config)
        starts = [least, *fastest_designs(space, *macs, n_meet)]
        least = evolve(space, *macs, n_meet, score, starts, keeps=bounds.keeps(accuracy_source)) or least
    return Choice(least, space, n_meet)


def stretched_space(
    graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment], *, merged: bool, holders: Sequence[str] | None = None
) -> DesignSpace:
    """The designs of a request whose segments stay whole or become scaled copies, where it lets them.

    Args:
        merged: Whether stages that follow each other may become one segment.
        holders: Processors that may hold a tensor between segments; those of the request if None.
    """
    space = _space(config, costs, stages, _join(config), holders=holders)
    return merge_stages(graph, space) if merged and "stretch" in config.planned_kinds else space


def search_request(
    graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment], accuracy_source: AccuracySource | None
) -> list[Searched]:
    """All designs of a request, as spaces of which each is searched by itself: its own first, then those that belong to it as well."""
    for name in config.keep:
        if name not in (names := [stage.name for stage in stages]):
            raise UnknownNameError.among("stage to keep", name, names)
    merges = accuracy_source is not None and accuracy_source.merges
    searched = _searched(graph, config, costs, stages, merges=merges)
    if accuracy_source is None and config.params is None:
        searched += _by_fewer(graph, config, costs, stages)
    return searched


def _searched(
    graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment], *, merges: bool, holders: Sequence[str] | None = None
) -> list[Searched]:
    """The spaces of a request for all its processors, with the meeting points that designs must have, and the best of them.

    With `merges` it is known what merged stages lose, so that they need not be kept for the last.
    """
    merged = config.merge == "always" or (merges and config.merge == "auto" and not config.meet)
    space = stretched_space(graph, config, costs, stages, merged=merged, holders=holders)
    fine, n_meet, searched = space, config.n_meet, None
    if "stretch" in config.planned_kinds:
        fine = _cut(graph, config, space, merged=merged)
        searched = _search(graph, config, costs, fine, n_meet)
        # Meeting points that were asked for stay.
        if searched is None and config.merge == "auto" and not config.meet and not merges:
            space, merged = merge_stages(graph, space), True
            fine = _cut(graph, config, space, merged=True)
            for n_meet in range(max(space.most_meetings, config.n_meet), config.n_meet - 1, -1):
                searched = _search(graph, config, costs, fine, n_meet)
                if searched is not None:
                    break
    if set(config.planned_kinds) == {"stretch"}:
        return [Searched(fine, n_meet, searched)]
    if config.exact or config.cuts == "stages":
        mixed = with_exact_kinds(graph, config, space)
    else:
        mixed = cut_blocks(graph, config, space, config.planned_kinds, merged=merged)
    return _mixed(graph, config, costs, mixed, n_meet)


def _cut(graph: OpGraph, config: PlanConfig, space: DesignSpace, *, merged: bool) -> DesignSpace:
    """A space of stages as it is, or cut at blocks where that is asked for."""
    return space if config.cuts == "stages" else cut_blocks(graph, config, space, merged=merged)


def _by_fewer(graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment]) -> list[Searched]:
    """The designs on fewer of the processors where a request for those would merge stages.

    One processor more may let stages branch by themselves, so that nothing is merged; the
    design must not be slower for it. Its options are told for all processors of the request,
    as are those of its space, whose designs it is compared with.
    """
    if config.merge != "auto" or config.meet or "stretch" not in config.planned_kinds or config.strategy != "exact" or config.widens:
        return []
    if config.best_in.tried:
        return []
    by_fewer: list[Searched] = []
    for count in range(2, len(config.processors)):
        for some in combinations(config.processors, count):
            request = config.on(some)
            if search_some(_space(request, costs, stages, _join(request)), *macs_range(graph, config), config.n_meet) is None:
                by_fewer += _searched(graph, request, costs, stages, merges=False, holders=config.processors)
    return by_fewer


def _goal(config: PlanConfig, costs: Costs) -> Goal:
    """What the exact search of a request looks for."""
    return Goal.of(config.best_in, costs.predictor.device, config.processors)


def _mixed(graph: OpGraph, config: PlanConfig, costs: Costs, space: DesignSpace, n_meet: int) -> list[Searched]:
    """The designs of a space with segments that are divided exactly, and the best of them.

    Where scaled copies need merged stages, they keep as many meeting points as they
    can have; a design without them loses no accuracy and needs no more than are asked for.
    """
    goal, macs = _goal(config, costs), macs_range(graph, config)
    several = config.strategy in ("exact", "evolve")
    best = _best(graph, config, goal, space, n_meet) if several else search(config.strategy, space, *macs, n_meet)
    mixed = [Searched(space, n_meet, best)]
    if n_meet > config.n_meet:
        same = without_stretched(space)
        mixed.append(Searched(same, config.n_meet, search_best(same, *macs, config.n_meet, goal)))
    return mixed


def _check(config: PlanConfig, accuracy_source: AccuracySource | None) -> None:
    """Refuse what no search can do."""
    if accuracy_source is not None and (config.strategy not in ("exact", "evolve") or config.widens):
        raise UsageError(
            f"accuracy is planned for by the exact search and joins other than {_widening()} only",
            Sentence("leave out {} and {}", Mention("strategy"), Mention("join")),
        )
    if config.widens and (config.strategy != "exact" or config.params is not None):
        raise UsageError(
            Sentence("{} joins are planned without {} and {}", f"`{config.join}`", Mention("strategy"), Mention("params")),
            Sentence("leave them out, or use {}", Mention("join", DEFAULT)),
        )


def _join(config: PlanConfig) -> JoinKind:
    # Joins that couple segments are compared with the one that keeps them independent.
    return DEFAULT if config.widens else config.meets_by


def _widening() -> str:
    return " and ".join(f"`{name}`" for name in joins_that(lambda join: join.widens))


def _space(
    config: PlanConfig,
    costs: Costs,
    segments: Sequence[Segment],
    join: JoinKind,
    arriving: Sequence[int] | None = None,
    holders: Sequence[str] | None = None,
) -> DesignSpace:
    rules, stretched = Rules.of(config), "stretch" in config.planned_kinds
    return DesignSpace(segments, config.processors, costs, rules, join, arriving, stretched=stretched, kept=config.keep, holders=holders)


def _search(graph: OpGraph, config: PlanConfig, costs: Costs, space: DesignSpace, n_meet: int) -> SearchResult | None:
    low, high = macs_range(graph, config)
    goal = _goal(config, costs)
    if config.strategy in ("exact", "evolve") and not config.widens:
        return _best(graph, config, goal, space, n_meet)
    if space.longest_span > 1:
        # These searches know no merging: they take the meeting points of the best design that does.
        guide = search_exact(space, low, high, n_meet)
        if guide is None:
            return None
        space = _space(config, costs, [options.segment for options, _ in guide.picks], _join(config))
    if config.widens:
        concat = search_concat(lambda arriving: _space(config, costs, space.segments, config.join, arriving), low, high, n_meet)
    else:
        concat = search(config.strategy, space, low, high, n_meet)
    if concat is None and search_exact(space, low, high, n_meet) is not None:
        if config.widens:
            raise InfeasibleError(
                f"no design of `{graph.name}` with `{config.join}` joins was found in the range of multiply-accumulates",
                Sentence("use {}", Mention("join", DEFAULT)),
            )
        raise _missed(graph, config)
    return concat


def _best(graph: OpGraph, config: PlanConfig, goal: Goal, space: DesignSpace, n_meet: int) -> SearchResult | None:
    """The best design of a space by the exact search, or the best one tried; for what does not add up the fastest, to begin with."""
    macs = macs_range(graph, config)
    if config.strategy == "exact" or config.best_in.tried:
        return search_best(space, *macs, n_meet, goal)
    result = evolve(space, *macs, n_meet, Added(goal, space), ())
    if result is None and search_best(space, *macs, n_meet, goal) is not None:
        raise _missed(graph, config)
    return result


def _missed(graph: OpGraph, config: PlanConfig) -> InfeasibleError:
    """The error for a strategy that overlooks every design."""
    return InfeasibleError(
        f"the strategy `{config.strategy}` finds no design of `{graph.name}`, though there is one",
        Sentence("use {}", Mention("strategy", "exact")),
    )


def _refusal(graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment], space: DesignSpace) -> InfeasibleError:
    """The error for a request without a design; `space` is the largest one searched."""
    if (
        config.merge == "never"
        and "stretch" in config.planned_kinds
        and search_exact(merge_stages(graph, _space(config, costs, stages, _join(config))), *macs_range(graph, config), config.n_meet)
        is not None
    ):
        return InfeasibleError(
            f"no design of `{graph.name}` meets the constraints while each stage is a segment of its own",
            Sentence("let stages merge with {}", Mention("merge", "auto")),
            [TightRule("merge", "never", "auto")],
        )

    def build(request: PlanConfig) -> DesignSpace:
        other = _space(request, costs, stages, _join(request))
        if set(config.planned_kinds) != {"stretch"}:
            return with_exact_kinds(graph, request, other)
        return merge_stages(graph, other) if space.longest_span > 1 else other

    result = explain_infeasible(graph, space, config, build)
    if config.planned_kinds == ("stretch",):
        result.hint = Sentence("{}, or split the network as it is with {}", result.hint or "", Mention("lossless"))
    return result
