"""The strategy `evolve`."""

import pytest

from stretch.planning.search.exact import search_exact
from stretch.planning.strategies.evolve import search
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import make_space


@pytest.mark.slow
def test_evolution_finds_no_faster_design_than_the_exact_search_and_one_in_the_range():
    graph = small_resnet()
    space = make_space(graph)
    low, high = round(0.9 * graph.macs), round(1.1 * graph.macs)
    found, best = search(space, low, high, 1), search_exact(space, low, high, 1)
    assert low <= found.macs <= high
    assert found.n_meet >= 1
    assert best.ms <= found.ms <= 1.1 * best.ms
    assert not found.optimal
