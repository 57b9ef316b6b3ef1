"""Bounds that the exact search does not know: it is run at prices until its designs keep them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, floor

from predictors.errors import TightRule, UsageError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.accuracy import AccuracyPredictor
from stretch.planning.search.exact import Toll, search_exact
from stretch.planning.search.refusal import refusal
from stretch.planning.search.result import SearchResult
from stretch.planning.search.space import DesignSpace
from stretch.planning.sentences import Mention, Sentence

#: Prices tried: some doublings, then halvings of the interval.
ROUNDS = 14


@dataclass(frozen=True)
class Bounds:
    """Bounds on the designs of one space.

    The designs found lie on the lower convex hull of latency and what is bounded, so that a
    better one may exist between two prices: results are not called optimal.

    Args:
        graph: The original network.
        space: Its designs.
        config: The request, checked.
        macs: Fewest and most multiply-accumulates.
        n_meet: Meeting points, at least.
    """

    graph: OpGraph
    space: DesignSpace
    config: PlanConfig
    macs: tuple[int, int]
    n_meet: int

    def within_params(self, fastest: SearchResult) -> SearchResult:
        """The fastest design found whose parameters are in range.

        Args:
            fastest: The fastest design without the bound.

        Raises:
            UsageError: If the strategy is not the exact one.
            InfeasibleError: If none was found; names the nearest bound with one.
        """
        assert self.config.params is not None
        if self.config.strategy != "exact":
            raise UsageError(
                "parameters can be bounded with the exact strategy only",
                Sentence("leave out {} or {}", Mention("params"), Mention("strategy")),
            )
        low, high = (ratio * self.graph.params for ratio in self.config.params)
        if low <= fastest.params <= high:
            return fastest
        sign = 1.0 if fastest.params > high else -1.0
        seen = self._explore(
            lambda price: lambda options: sign * price * options.params,
            fastest.ms / fastest.params,
            lambda found: found.params <= high if sign > 0 else found.params >= low,
        )
        inside = [found for found in seen if low <= found.params <= high]
        if inside:
            return _bounded(min(inside, key=lambda r: r.ms), fastest)
        nearest = min([fastest, *seen], key=lambda r: max(low - r.params, r.params - high))
        ratio = nearest.params / self.graph.params
        first, last = self.config.params
        bounds = (first, ceil(ratio * 1000) / 1000) if nearest.params > high else (floor(ratio * 1000) / 1000, last)
        what = f"no design of `{self.graph.name}` has between {first:g} and {last:g} of its parameters"
        raise refusal(what, [TightRule("params", self.config.params, bounds)])

    def accurate_enough(self, fastest: SearchResult, accuracy_predictor: AccuracyPredictor) -> SearchResult:
        """The fastest design found whose predicted accuracy reaches the floor.

        Args:
            fastest: The fastest design without the floor.
            accuracy_predictor: Fitted to measured ones.

        Raises:
            InfeasibleError: If none was found; names the highest accuracy with one.
        """
        wanted = self.config.min_accuracy
        assert wanted is not None

        def accuracy(found: SearchResult) -> float:
            return accuracy_of(found, accuracy_predictor)

        if accuracy(fastest) >= wanted:
            return fastest
        seen = self._explore(self._accuracy_toll(accuracy_predictor), fastest.ms, lambda found: accuracy(found) >= wanted)
        inside = [found for found in seen if accuracy(found) >= wanted]
        if inside:
            return _bounded(min(inside, key=lambda r: r.ms), fastest)
        best = max(accuracy(found) for found in [fastest, *seen])
        what = f"no design of `{self.graph.name}` is predicted to reach {wanted:g} top-1"
        raise refusal(what, [TightRule("min_accuracy", wanted, floor(best * 10000) / 10000)])

    def most_accurate(self, fastest: SearchResult, accuracy_predictor: AccuracyPredictor) -> SearchResult:
        """The design of the highest predicted accuracy found within the latency budget.

        Args:
            fastest: The fastest design; returned if it alone keeps the budget, or nothing does.
            accuracy_predictor: Fitted to measured ones.
        """
        budget = self.config.latency_budget
        assert budget is not None
        if fastest.ms > budget:
            return fastest
        seen = self._explore(self._accuracy_toll(accuracy_predictor), fastest.ms, lambda found: found.ms > budget)
        inside = [fastest, *(found for found in seen if found.ms <= budget)]
        return _bounded(max(inside, key=lambda r: (accuracy_of(r, accuracy_predictor), -r.ms)), fastest)

    @staticmethod
    def _accuracy_toll(accuracy_predictor: AccuracyPredictor) -> Callable[[float], Toll]:
        return lambda price: lambda options: -price * accuracy_predictor.gains(options)

    def _explore(self, toll: Callable[[float], Toll], unit: float, far: Callable[[SearchResult], bool]) -> list[SearchResult]:
        """Designs at prices that are doubled until a design has come far enough, then narrowed to where it first does."""
        seen: list[SearchResult] = []
        low, high, price = 0.0, 0.0, unit
        for _ in range(ROUNDS):
            found = search_exact(self.space, *self.macs, self.n_meet, toll(price))
            if found is None:
                break
            seen.append(found)
            if far(found):
                high = price
            else:
                low = price
            price = (low + high) / 2 if high else price * 2
        return seen


def accuracy_of(found: SearchResult, accuracy_predictor: AccuracyPredictor) -> float:
    """Predicted accuracy of a design that was searched for."""
    return accuracy_predictor.base + sum(float(accuracy_predictor.gains(options)[index]) for options, index in found.picks)


def _bounded(found: SearchResult, fastest: SearchResult) -> SearchResult:
    """A design that keeps a bound, as a search reports it."""
    if all(a is b and i == j for (a, i), (b, j) in zip(found.picks, fastest.picks, strict=False)) and len(found.picks) == len(
        fastest.picks
    ):
        return fastest
    return replace(found, optimal=False, gap=found.ms / fastest.ms - 1)
