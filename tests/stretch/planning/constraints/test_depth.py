"""The floor on depth."""

import pytest

from stretch.planning.config import PlanConfig
from stretch.planning.network.segments import split_segments
from stretch.planning.search.rules import Rules
from tests.predictors.networks import efficientnet_b5, resnet50
from tests.predictors.specified import specified

S4 = next(s for s in split_segments(resnet50()) if s.name == "s4")
B5 = next(s for s in split_segments(efficientnet_b5()) if s.name == "s5")


@pytest.mark.parametrize(("floor", "depths"), [(0.5, [4, 5, 6, 7]), (4 / 7, [4, 5, 6, 7]), (0.58, [5, 6, 7]), (1.0, [7])])
def test_depths_start_at_the_floor(floor, depths):
    rules = Rules.of(PlanConfig(min_depth=floor).checked(specified("pixel6")))
    assert rules.depths(B5) == depths


def test_entry_block_is_never_removed_whatever_the_floor():
    rules = Rules.of(PlanConfig(min_depth=0.01).checked(specified("pixel6")))
    assert rules.depths(S4)[0] == S4.min_depth >= 1
