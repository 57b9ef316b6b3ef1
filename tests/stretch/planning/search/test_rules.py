"""The rules of a request together."""

import numpy as np

from stretch.planning.config import PlanConfig
from stretch.planning.network.segments import split_segments
from stretch.planning.search.rules import Rules
from tests.predictors.networks import efficientnet_b5, resnet50
from tests.predictors.specified import specified
from tests.stretch.planning.combinations import ways

RULES = Rules.of(PlanConfig().checked(specified("pixel6")))
S4 = next(s for s in split_segments(resnet50()) if s.name == "s4")
B5 = next(s for s in split_segments(efficientnet_b5()) if s.name == "s5")


def test_few_widths_are_all_offered():
    assert RULES.widths(B5, [64, 88, 120, 176]) == [88, 120, 176]


def test_many_widths_are_thinned_to_even_ratios_with_floor_and_original_kept():
    legal = list(range(8, 2049, 8))
    offered = RULES.widths(S4, legal)
    assert set(offered) <= set(legal)
    assert (offered[0], offered[-1]) == (1024, 2048)
    assert len(offered) == 17
    assert max(np.diff(offered)) <= 2048 / 32 + 8


def test_combination_is_allowed_where_every_rule_allows_it():
    found = ways(exchange_ms=[0.1, 0.3, 0.1, 0.1], slowest_ms=[1.0, 1.0, 1.2, 1.0], fastest_ms=[1.0, 1.0, 1.2, 0.4])
    assert Rules({"alpha": 0.2, "beta": 1.1, "balance": 0.5}).allowed(found, 1.0).tolist() == [[True, False, False, False]]


def test_floors_alone_decide_what_is_offered():
    assert RULES.floors == {"min_depth": 0.5, "min_width": 0.5}
