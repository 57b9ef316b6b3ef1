"""Search strategies: ``foo`` is a file ``stretch/planning/strategies/foo.py`` with a function ``search(space, low, high, n_meet)``."""

from collections.abc import Callable
from importlib import import_module

from predictors.errors import UsageError
from stretch.planning.config import STRATEGIES
from stretch.planning.search.exact import SearchResult
from stretch.planning.search.space import DesignSpace

Search = Callable[[DesignSpace, int, int, int], SearchResult | None]


def search(strategy: str, space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design of `space` that a strategy finds."""
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy `{strategy}`", f"choose from {', '.join(STRATEGIES)}")
    result: Search = import_module(f"{__name__}.{strategy}").search
    return result(space, low, high, n_meet)
