"""Exact search: no design of the space is faster."""

from stretch.planning.search.exact import SearchResult, search_exact
from stretch.planning.search.space import DesignSpace


def search(space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design between `low` and `high` multiply-accumulates, as `search_exact` finds it."""
    return search_exact(space, low, high, n_meet)
