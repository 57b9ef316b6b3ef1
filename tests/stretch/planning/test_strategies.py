import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "grid"])
def test_every_strategy_finds_a_design_in_the_range(name):
    graph = small_resnet(64)
    result = plan(graph, specified("mi9"), PlanConfig(processors=("cpu", "gpu"), strategy=name, macs=(0.9, 1.1), **LOOSE))
    assert 0.9 <= (result.run.macs - result.run.repeated_macs) / graph.macs <= 1.1
    assert result.design.n_meet >= 1
    assert result.optimal is (name != "grid")
