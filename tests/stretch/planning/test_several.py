"""The best design of a request and others that differ."""

from itertools import combinations

import pytest

from predictors.errors import UsageError
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.several import several
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

GRAPH, MI9 = small_resnet(96), specified("mi9")
REQUEST = {"processors": ("cpu", "gpu"), **LOOSE}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "energy", "0.5*latency+0.5*energy"])
def test_first_design_is_that_of_the_plan_and_others_are_nearly_as_good(objective):
    config = PlanConfig(**REQUEST, objective=objective)
    found = several(GRAPH, MI9, config, 4, 1.3)
    assert found.designs[0].design == plan(GRAPH, MI9, config).design
    assert found.optimal
    assert found.gap == 0
    assert len(found.designs) > 1
    assert all(found.values[0] <= value <= 1.3 * found.values[0] + 1e-9 for value in found.values)
    kinds = [
        tuple((part.name, part.join, [b.processor for b in part.branches]) for part in each.design.segments if not part.whole)
        for each in found.designs
    ]
    assert all(one != other for one, other in combinations(kinds, 2))


@pytest.mark.parametrize("factor", [0.5, float("nan"), float("inf")])
def test_factor_below_one_is_refused(factor):
    with pytest.raises(UsageError, match="is not a factor from 1 up"):
        several(GRAPH, MI9, PlanConfig(**REQUEST), 3, factor)
