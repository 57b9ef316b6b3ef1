"""Operator split: every part of a network by itself, whole or divided exactly, as CoDL divides single operators."""

from stretch.planning.search.exact import SearchResult, search_exact
from stretch.planning.search.space import DesignSpace, Totals


def search(space: DesignSpace, totals: Totals) -> SearchResult | None:
    """The fastest design in which no segment covers several parts and none is stretched."""
    single = [[o for o in options if o.span == 1 and (o.exact or not o.branched)] for options in space.options]
    return search_exact(space.replace_options(single), totals)
