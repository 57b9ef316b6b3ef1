"""What a search looks for: the least of something that adds up, on whichever processors that is, within bounds on whole designs.

Bounds on accuracy, time and energy are kept by the exact search; for one on parameters it is run at prices until its designs keep it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, isnan, nan

from predictors.devices import DeviceProfile
from predictors.errors import TightRule, UsageError
from predictors.graph import OpGraph
from stretch.planning.config import STRETCH, Objective, PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.design.division import exact_kinds
from stretch.planning.messages import Message, OptionName
from stretch.planning.search import exact
from stretch.planning.search.diagnose import refusal
from stretch.planning.search.layers import TIE
from stretch.planning.search.space import DesignSpace


@dataclass(frozen=True)
class Goal:
    """What adds up over the segments of a design and is to be least."""

    latency: float = 1.0  # Weight of the makespan, ms.
    energy: float = 0.0  # Weight of the energy, mJ.
    power: exact.ProcessorPowers | None = None  # Of the processors; needed where energy has a weight.

    @classmethod
    def of(cls, objective: Objective, device: DeviceProfile, processors: Sequence[str]) -> "Goal":
        """The goal of a request; latency where its objective does not add up."""
        if not objective.adds or objective.only_latency:
            return cls()
        energy = objective.weight("energy")
        return cls(objective.weight("latency"), energy, exact.ProcessorPowers.of(device, processors) if energy else None)

    def measure(self, processors: Sequence[str]) -> exact.Measure:
        """What designs have that give work to each of these processors."""
        if self.power is None:
            return exact.LATENCY
        return exact.weighed((self.latency, exact.LATENCY), (self.energy, self.power.energy(processors)))

    def groups(self, space: DesignSpace) -> list[tuple[str, ...]]:
        """Sets of processors that are searched one by one."""
        return [space.processors] if self.power is None else self.power.groups(space.processors)

    def value(self, space: DesignSpace, picks: exact.Picks) -> float:
        """Of a design."""
        return self.measure(exact.working(space, picks)).total(space, picks)


def search_best(
    space: DesignSpace, low: int, high: int, n_meet: int, goal: Goal, within: exact.Within | None = None, using: exact.Using | None = None
) -> exact.SearchResult | None:
    """The design of a space that is best in a goal."""
    if goal.power is None and within is None and using is None:
        return exact.pruned(space, low, high, n_meet)[0]
    return search_groups(space, low, high, n_meet, goal.groups(space), goal.measure, lambda group: within, using)


def search_groups(
    space: DesignSpace,
    low: int,
    high: int,
    n_meet: int,
    groups: Sequence[Sequence[str]],
    cost: Callable[[Sequence[str]], exact.Measure],
    within: Callable[[Sequence[str]], exact.Within | None],
    using: exact.Using | None = None,
) -> exact.SearchResult | None:
    """The design of a space that has least of a measure; it, and what is bounded, depend on the processors that have work."""
    designs: list[exact.SearchResult] = []
    for group in groups:
        part = exact.on_only(space, group)
        if all(part.options):
            search_result = exact.search_exact(part, low, high, n_meet, cost(group), within(group), using)
            designs += [] if search_result is None else [search_result]
    return least_of(designs)


def least_of(search_results: Sequence[exact.SearchResult]) -> exact.SearchResult | None:
    """The best of the designs of several searches that each leave out some designs."""
    if not search_results:
        return None
    best = min(search_results, key=_value)
    evaluated = max(search_result.evaluated for search_result in search_results)
    if any(isnan(search_result.gap) for search_result in search_results):
        return replace(best, optimal=False, gap=nan, evaluated=evaluated)
    # a search that was cut short may have missed a design as good as its bound
    bound = min(_value(search_result) / (1 + search_result.gap) for search_result in search_results)
    optimal = best.optimal and bound >= _value(best)
    return replace(best, optimal=optimal, gap=0.0 if optimal else _value(best) / bound - 1, evaluated=evaluated)


def _value(search_result: exact.SearchResult) -> float:
    return search_result.ms if search_result.value is None else search_result.value


def loss_of(search_result: exact.SearchResult, accuracy_source: AccuracySource) -> float:
    """What a design that was searched for is predicted to lose."""
    return sum(float(accuracy_source.losses(options)[index]) for options, index in search_result.picks)


#: Prices of a parameter that are tried: some doublings, then halvings of the interval.
ROUNDS = 14


@dataclass(frozen=True)
class Bounds:
    """Bounds on the designs of one space; those of parameters are kept by prices, so that a better design may lie between two."""

    graph: OpGraph  # The original network.
    space: DesignSpace  # Its designs.
    config: PlanConfig  # The request, checked.
    macs: tuple[int, int]  # Fewest and most multiply-accumulates.
    n_meet: int  # Meeting points, at least.
    goal: Goal = field(default_factory=Goal)  # What designs are chosen by.

    def within_params(self, fastest: exact.SearchResult) -> exact.SearchResult:
        """The fastest design found whose parameters are in range."""
        assert self.config.params is not None
        if self.config.strategy != "exact":
            hint = Message("leave out {} or {}", OptionName("params"), OptionName("strategy"))
            raise UsageError("parameters can be bounded with the exact strategy only", hint)
        low, high = (ratio * self.graph.params for ratio in self.config.params)
        if low <= fastest.params <= high:
            return fastest
        sign = 1.0 if fastest.params > high else -1.0
        # prices are doubled until a design has come far enough, then narrowed to where it first does
        seen: list[exact.SearchResult] = []
        cheap, dear, price = 0.0, 0.0, fastest.ms / fastest.params
        for _ in range(ROUNDS):
            params = exact.Measure(lambda options, price=sign * price: price * options.params)
            search_result = exact.search_exact(self.space, *self.macs, self.n_meet, exact.weighed((1.0, exact.LATENCY), (1.0, params)))
            if search_result is None:
                break
            seen.append(search_result)
            if search_result.params <= high if sign > 0 else search_result.params >= low:
                dear = price
            else:
                cheap = price
            price = (cheap + dear) / 2 if dear else price * 2
        inside = [result for result in seen if low <= result.params <= high]
        if inside:
            best = min(inside, key=lambda r: r.ms)
            one, other = ([(id(options), index) for options, index in item.picks] for item in (best, fastest))
            return fastest if one == other else replace(best, optimal=False, gap=best.ms / fastest.ms - 1)
        nearest = min([fastest, *seen], key=lambda r: max(low - r.params, r.params - high))
        ratio = nearest.params / self.graph.params
        first, last = self.config.params
        bounds = (first, ceil(ratio * 1000) / 1000) if nearest.params > high else (floor(ratio * 1000) / 1000, last)
        what = f"no design of `{self.graph.name}` has between {first:g} and {last:g} of its parameters"
        raise refusal(what, [TightRule("params", self.config.params, bounds)])

    def accurate_enough(self, fastest: exact.SearchResult, accuracy_source: AccuracySource) -> exact.SearchResult:
        """The fastest design whose predicted accuracy reaches the floor."""
        option = accuracy_source.option
        wanted: float = getattr(self.config, option)
        most = accuracy_source.most_loss(wanted)
        if loss_of(fastest, accuracy_source) <= most:
            return fastest
        within = exact.Within(exact.Measure(accuracy_source.losses), most)
        search_result = search_best(self.space, *self.macs, self.n_meet, self.goal, within)
        if search_result is not None:
            return search_result
        best = self.least_loss(accuracy_source)
        value = accuracy_source.value(loss_of(fastest if best is None else best, accuracy_source))
        what = "to reach {:g} top-1" if option == "min_accuracy" else "to see the original's class in {:.1%} of images"
        rule = TightRule(option, wanted, floor(value * 10000) / 10000)
        result = refusal(f"no design of `{self.graph.name}` is predicted {what.format(wanted)}", [rule])
        if self.config.planned_kinds == (STRETCH,):
            mixed = OptionName("kinds", (STRETCH, *exact_kinds()))
            result.hint = Message("{}; what is divided exactly, with {}, loses nothing", result.hint or "", mixed)
        raise result

    def most_accurate(self, fastest: exact.SearchResult, accuracy_source: AccuracySource) -> exact.SearchResult:
        """The design of the highest predicted accuracy within the latency budget."""
        assert self.config.latency_budget is not None
        best = None if fastest.ms > self.config.latency_budget else self.least_loss(accuracy_source, self.config.latency_budget)
        return best if best is not None and loss_of(best, accuracy_source) < loss_of(fastest, accuracy_source) else fastest

    def least_loss(self, accuracy_source: AccuracySource, budget_ms: float = inf) -> exact.SearchResult | None:
        """The design that loses least among those that take no longer than a budget."""
        within = exact.Within(exact.LATENCY, budget_ms) if budget_ms < inf else None
        search_result = exact.search_exact(self.space, *self.macs, self.n_meet, exact.Measure(accuracy_source.losses), within)
        # a loss may be nothing, so that a fraction of it says nothing
        return None if search_result is None else replace(search_result, gap=0.0 if search_result.optimal else nan)

    def fast_enough(self, best: exact.SearchResult) -> exact.SearchResult:
        """The best design within the latency budget; of a request whose objective is not latency alone."""
        assert self.config.latency_budget is not None
        for name in ("min_accuracy", "min_agreement"):
            if getattr(self.config, name) is not None:
                options = OptionName(name), OptionName("latency_budget")
                what = Message("the objective `{}` is not planned for with both {} and {}", self.config.objective, *options)
                raise UsageError(what, "leave out one of the two")
        within = exact.Within(exact.LATENCY, self.config.latency_budget)
        search_result = search_best(self.space, *self.macs, self.n_meet, self.goal, within)
        return search_result or exact.search_exact(self.space, *self.macs, self.n_meet) or best

    def keeps(self, accuracy_source: AccuracySource | None) -> Callable[[exact.SearchResult], bool]:
        """Whether a design that was tried keeps the bounds on whole designs."""
        budget, most = self.config.latency_budget or inf, inf
        if accuracy_source is not None and (wanted := getattr(self.config, accuracy_source.option)) is not None:
            most = accuracy_source.most_loss(wanted)

        def kept(search_result: exact.SearchResult) -> bool:
            return search_result.ms <= budget and (accuracy_source is None or loss_of(search_result, accuracy_source) <= most + TIE)

        return kept
