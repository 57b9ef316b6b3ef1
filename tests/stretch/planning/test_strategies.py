"""Strategies are found by their folder."""

import pytest

from predictors.errors import UsageError
from stretch.planning.config import STRATEGIES
from stretch.planning.strategies import search
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import make_space


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_finds_a_design_in_the_range(name):
    graph = small_resnet()
    low, high = round(0.9 * graph.macs), round(1.1 * graph.macs)
    found = search(name, make_space(graph), low, high, 1)
    assert low <= found.macs <= high


def test_unknown_strategy_is_refused_with_those_that_exist():
    with pytest.raises(UsageError) as caught:
        search("random", make_space(), 0, 1, 1)
    assert caught.value.hint == "choose from exact, grid"
