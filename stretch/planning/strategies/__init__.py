"""Search strategies: how the fastest design of a space is looked for.

A strategy ``foo`` is a file ``stretch/planning/strategies/foo.py`` with a function
``search(space, low, high, n_meet)``, imported when it is asked for.
"""

from collections.abc import Callable
from importlib import import_module

from predictors.errors import UsageError
from stretch.planning.own_options import STRATEGIES
from stretch.planning.search.exact import SearchResult
from stretch.planning.search.space import DesignSpace

Search = Callable[[DesignSpace, int, int, int], SearchResult | None]


def search(strategy: str, space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design of `space` that a strategy finds.

    Args:
        n_meet: Meeting points where branches join, at least.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy `{strategy}`", f"choose from {', '.join(STRATEGIES)}")
    result: Search = import_module(f"{__name__}.{strategy}").search
    return result(space, low, high, n_meet)
