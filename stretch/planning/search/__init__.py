"""Search strategies: which design of a space is fastest."""

from collections.abc import Callable

from predictors.errors import UsageError
from stretch.planning.search.concat import search_concat
from stretch.planning.search.exact import search_exact
from stretch.planning.search.grid import search_grid
from stretch.planning.search.result import SearchResult
from stretch.planning.search.space import DesignSpace

Search = Callable[[DesignSpace, int, int, int], SearchResult | None]

#: Strategy by name.
STRATEGIES: dict[str, Search] = {"exact": search_exact, "grid": search_grid}

__all__ = ["STRATEGIES", "SearchResult", "search", "search_concat", "search_exact", "search_grid"]


def search(strategy: str, space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design of `space` that a strategy finds.

    Args:
        strategy: A key of `STRATEGIES`.
        space: All legal designs.
        low: Fewest multiply-accumulates.
        high: Most multiply-accumulates.
        n_meet: Meeting points where branches join, at least.

    Returns:
        The design, or None if there is none in the range.

    Raises:
        UsageError: If there is no such strategy.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy `{strategy}`", f"choose from {', '.join(STRATEGIES)}")
    return STRATEGIES[strategy](space, low, high, n_meet)
