"""Choose a design: which stages are merged, then the search of the strategy asked for, then bounds on the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from predictors.errors import InfeasibleError, UsageError
from predictors.graph import OpGraph
from predictors.join import JoinKind
from stretch.planning.config import PlanConfig
from stretch.planning.constraints import ConstraintFilter
from stretch.planning.cost.accuracy import AccuracyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.design.merging import merge_stages
from stretch.planning.network.segments import Segment
from stretch.planning.search import SearchResult, search, search_concat, search_exact
from stretch.planning.search.bounds import Bounds
from stretch.planning.search.diagnose import explain_infeasible
from stretch.planning.search.space import DesignSpace


@dataclass(frozen=True)
class Choice:
    """A design that was searched for.

    Args:
        found: The design.
        space: The designs it was chosen from.
        n_meet: Branched segments that it was to have, at least.
    """

    found: SearchResult
    space: DesignSpace
    n_meet: int


def macs_range(graph: OpGraph, config: PlanConfig) -> tuple[int, int]:
    """Fewest and most multiply-accumulates of a design."""
    return ceil(config.macs[0] * graph.macs), floor(config.macs[1] * graph.macs)


def choose(
    graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment], predictor: AccuracyPredictor | None = None
) -> Choice:
    """The fastest design within the constraints, or the most accurate one where that is the objective.

    With ``merge = "auto"`` stages are merged only where the request has no
    design otherwise, and then with as many meeting points as there can be:
    the fewer they are, the lower the accuracy (paper 003, table 3).

    Args:
        graph: The original network.
        config: The request, checked.
        costs: Costs on the device.
        stages: The segments of the network.
        predictor: Of accuracy, where the request is about it.

    Raises:
        InfeasibleError: If there is none; names the tightest rule.
        UsageError: If the request cannot be planned for.
    """
    if predictor is not None and (config.strategy != "exact" or config.join == "concat"):
        raise UsageError(
            "accuracy is planned for by the exact search and joins other than `concat` only", "leave out --strategy and --join"
        )
    if config.join == "concat" and (config.strategy != "exact" or config.params is not None):
        raise UsageError("`concat` joins are planned without --strategy and --params", "leave them out, or use --join project")
    space = _space(config, costs, stages, _join(config))
    if config.merge == "always":
        space = merge_stages(graph, space)
    n_meet, found = config.n_meet, _search(graph, config, costs, space, config.n_meet)
    # Meeting points that were asked for stay.
    if found is None and config.merge == "auto" and not config.meet:
        space = merge_stages(graph, space)
        for n_meet in range(space.most_meetings, config.n_meet - 1, -1):
            found = _search(graph, config, costs, space, n_meet)
            if found is not None:
                break
    if found is None:
        raise _refusal(graph, config, costs, stages, space)
    bounds = Bounds(graph, space, config, macs_range(graph, config), n_meet)
    if config.params is not None:
        found = bounds.within_params(found)
    if predictor is not None and config.min_accuracy is not None:
        found = bounds.accurate_enough(found, predictor)
    if predictor is not None and config.objective == "accuracy":
        found = bounds.most_accurate(found, predictor)
    if config.latency_budget is not None and found.ms > config.latency_budget:
        raise InfeasibleError(
            f"the fastest design of `{graph.name}` on {costs.predictor.device.id} takes {found.ms:.4g} ms, "
            f"more than --latency-budget {config.latency_budget:g}",
            f"the nearest value with a design is --latency-budget {ceil(found.ms * 1000) / 1000:g}",
        )
    return Choice(found, space, n_meet)


def _join(config: PlanConfig) -> JoinKind:
    # Other joins are compared with `project`, which keeps segments independent.
    return "sum" if config.join == "sum" else "project"


def _space(
    config: PlanConfig, costs: Costs, segments: Sequence[Segment], join: JoinKind, arriving: Sequence[int] | None = None
) -> DesignSpace:
    return DesignSpace(segments, config.processors, costs, ConstraintFilter.of(config), join, arriving)


def _search(graph: OpGraph, config: PlanConfig, costs: Costs, space: DesignSpace, n_meet: int) -> SearchResult | None:
    low, high = macs_range(graph, config)
    if config.strategy == "exact" and config.join != "concat":
        return search_exact(space, low, high, n_meet)
    if space.longest_span > 1:
        # These searches know no merging: they take the meeting points of the best design that does.
        guide = search_exact(space, low, high, n_meet)
        if guide is None:
            return None
        space = _space(config, costs, [options.segment for options, _ in guide.picks], _join(config))
    if config.join == "concat":
        found = search_concat(lambda arriving: _space(config, costs, space.segments, "concat", arriving), low, high, n_meet)
    else:
        found = search(config.strategy, space, low, high, n_meet)
    if found is None and search_exact(space, low, high, n_meet) is not None:
        if config.join == "concat":
            raise InfeasibleError(
                f"no design of `{graph.name}` with `concat` joins was found in the range of multiply-accumulates", "use --join project"
            )
        raise InfeasibleError(
            f"the strategy `{config.strategy}` finds no design of `{graph.name}`, though there is one", "use --strategy exact"
        )
    return found


def _refusal(graph: OpGraph, config: PlanConfig, costs: Costs, stages: Sequence[Segment], space: DesignSpace) -> InfeasibleError:
    """The error for a request without a design; `space` is the largest one searched."""
    if config.merge == "never" and search_exact(merge_stages(graph, space), *macs_range(graph, config), config.n_meet) is not None:
        return InfeasibleError(
            f"no design of `{graph.name}` meets the constraints while each stage is a segment of its own",
            "let stages merge with --merge auto",
        )

    def build(request: PlanConfig) -> DesignSpace:
        other = _space(request, costs, stages, _join(request))
        return merge_stages(graph, other) if space.longest_span > 1 else other

    return explain_infeasible(graph, space, config, build)
