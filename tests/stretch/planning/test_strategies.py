"""Strategies are found by their folder."""

import pytest

from predictors.errors import UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.own_options import SINGLE, STRATEGIES
from stretch.planning.search.banded import with_exact_kinds
from stretch.planning.strategies import search
from tests.predictors.networks import small_resnet
from tests.stretch.planning.spaces import make_space


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_finds_a_design_in_the_range(name):
    graph = small_resnet(64)
    low, high = round(0.9 * graph.macs), round(1.1 * graph.macs)
    space = make_space(graph)
    if name in SINGLE:
        space = with_exact_kinds(graph, PlanConfig(strategy=name), space)
    found = search(name, space, low, high, 1)
    assert low <= found.macs <= high
    assert found.n_meet >= 1


def test_unknown_strategy_is_refused_with_those_that_exist():
    with pytest.raises(UsageError) as caught:
        search("random", make_space(), 0, 1, 1)
    assert caught.value.hint == "choose from evolve, exact, grid, operator_split"
