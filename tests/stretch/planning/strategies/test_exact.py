"""The strategy `exact` is the search that the others are measured by."""

import pytest

from stretch.planning.search.exact import search_exact
from stretch.planning.strategies.exact import search
from tests.stretch.planning.spaces import make_space, small_resnet

GRAPH = small_resnet()


@pytest.mark.slow
def test_strategy_finds_what_the_exact_search_finds():
    low, high = round(0.9 * GRAPH.macs), round(1.1 * GRAPH.macs)
    space = make_space(GRAPH)
    found = search(space, low, high, 2)
    assert found.optimal
    assert found.ms == search_exact(space, low, high, 2).ms
    assert found.n_meet >= 2
