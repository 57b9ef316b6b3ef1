"""Evolutionary search: designs tried and varied, from random ones on."""

from stretch.planning.search.evolve import added, evolve
from stretch.planning.search.exact import SearchResult
from stretch.planning.search.goal import Goal
from stretch.planning.search.space import DesignSpace


def search(space: DesignSpace, low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design between `low` and `high` multiply-accumulates that an evolutionary search comes upon."""
    return evolve(space, low, high, n_meet, added(Goal(), space), ())
