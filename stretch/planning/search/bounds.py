"""Bounds on whole designs: on accuracy, which the exact search keeps, and on parameters, for which it is run at prices until its designs keep them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf

from predictors.errors import InfeasibleError, TightRule, UsageError
from predictors.graph import OpGraph
from stretch.planning.config import STRETCH, PlanConfig
from stretch.planning.cost.accuracy import AccuracySource
from stretch.planning.design.division import exact_kinds
from stretch.planning.messages import Message, OptionName
from stretch.planning.search.diagnose import refusal
from stretch.planning.search.exact import LATENCY, SearchResult, Within, additive, search_exact, search_least_loss
from stretch.planning.search.goal import Goal, search_best
from stretch.planning.search.layers import TIE
from stretch.planning.search.space import DesignSpace

#: Prices tried: some doublings, then halvings of the interval.
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

    def within_params(self, fastest: SearchResult) -> SearchResult:
        """The fastest design found whose parameters are in range."""
        assert self.config.params is not None
        if self.config.strategy != "exact":
            raise UsageError(
                "parameters can be bounded with the exact strategy only",
                Message("leave out {} or {}", OptionName("params"), OptionName("strategy")),
            )
        low, high = (ratio * self.graph.params for ratio in self.config.params)
        if low <= fastest.params <= high:
            return fastest
        sign = 1.0 if fastest.params > high else -1.0
        # prices are doubled until a design has come far enough, then narrowed to where it first does
        seen: list[SearchResult] = []
        cheap, dear, price = 0.0, 0.0, fastest.ms / fastest.params
        for _ in range(ROUNDS):
            toll = sign * price
            search_result = search_exact(self.space, *self.macs, self.n_meet, lambda options, toll=toll: toll * options.params)
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
            return _bounded(min(inside, key=lambda r: r.ms), fastest)
        nearest = min([fastest, *seen], key=lambda r: max(low - r.params, r.params - high))
        ratio = nearest.params / self.graph.params
        first, last = self.config.params
        bounds = (first, ceil(ratio * 1000) / 1000) if nearest.params > high else (floor(ratio * 1000) / 1000, last)
        what = f"no design of `{self.graph.name}` has between {first:g} and {last:g} of its parameters"
        raise refusal(what, [TightRule("params", self.config.params, bounds)])

    def accurate_enough(self, fastest: SearchResult, accuracy_source: AccuracySource) -> SearchResult:
        """The fastest design whose predicted accuracy reaches the floor."""
        wanted: float = getattr(self.config, accuracy_source.option)
        losses, most = accuracy_source.losses, accuracy_source.most_loss(wanted)
        if loss_of(fastest, accuracy_source) <= most:
            return fastest
        search_result = search_best(self.space, *self.macs, self.n_meet, self.goal, Within(additive(losses), most))
        if search_result is not None:
            return search_result
        best = search_least_loss(self.space, *self.macs, self.n_meet, losses)
        value = accuracy_source.value(loss_of(fastest if best is None else best, accuracy_source))
        raise self._unreached(accuracy_source.option, wanted, value)

    def most_accurate(self, fastest: SearchResult, accuracy_source: AccuracySource) -> SearchResult:
        """The design of the highest predicted accuracy within the latency budget."""
        budget = self.config.latency_budget
        assert budget is not None
        if fastest.ms > budget:
            return fastest
        least_loss = search_least_loss(self.space, *self.macs, self.n_meet, accuracy_source.losses, budget)
        return (
            least_loss if least_loss is not None and loss_of(least_loss, accuracy_source) < loss_of(fastest, accuracy_source) else fastest
        )

    def fast_enough(self, best: SearchResult) -> SearchResult:
        """The best design within the latency budget; of a request whose objective is not latency alone."""
        budget = self.config.latency_budget
        assert budget is not None
        for name in ("min_accuracy", "min_agreement"):
            if getattr(self.config, name) is not None:
                raise UsageError(
                    Message("the objective `{}` is not planned for with both {} and {}", self.config.objective, OptionName(name), OptionName("latency_budget")),
                    "leave out one of the two",
                )  # fmt: skip
        search_result = search_best(self.space, *self.macs, self.n_meet, self.goal, Within(LATENCY, budget))
        return search_result or search_exact(self.space, *self.macs, self.n_meet) or best

    def keeps(self, accuracy_source: AccuracySource | None) -> Callable[[SearchResult], bool]:
        """Whether a design that was tried keeps the bounds on whole designs."""
        budget, most = self.config.latency_budget or inf, inf
        if accuracy_source is not None and (wanted := getattr(self.config, accuracy_source.option)) is not None:
            most = accuracy_source.most_loss(wanted)

        def kept(search_result: SearchResult) -> bool:
            return search_result.ms <= budget and (accuracy_source is None or loss_of(search_result, accuracy_source) <= most + TIE)

        return kept

    def _unreached(self, option: str, wanted: float, best: float) -> InfeasibleError:
        what = "to reach {:g} top-1" if option == "min_accuracy" else "to see the original's class in {:.1%} of images"
        rule = TightRule(option, wanted, floor(best * 10000) / 10000)
        result = refusal(f"no design of `{self.graph.name}` is predicted {what.format(wanted)}", [rule])
        if self.config.planned_kinds == (STRETCH,):
            mixed = OptionName("kinds", (STRETCH, *exact_kinds()))
            result.hint = Message("{}; what is divided exactly, with {}, loses nothing", result.hint or "", mixed)
        return result


def loss_of(search_result: SearchResult, accuracy_source: AccuracySource) -> float:
    """What a design that was searched for is predicted to lose."""
    return sum(float(accuracy_source.losses(options)[index]) for options, index in search_result.picks)


def _bounded(search_result: SearchResult, fastest: SearchResult) -> SearchResult:
    """A design that keeps a bound, as a search reports it."""
    one, other = ([(id(options), index) for options, index in item.picks] for item in (search_result, fastest))
    return fastest if one == other else replace(search_result, optimal=False, gap=search_result.ms / fastest.ms - 1)
