"""The bound on memory at its edge."""

import numpy as np

from stretch.planning.config import PlanConfig
from stretch.planning.constraints.memory import PeakMemory
from stretch.planning.search.rules import Rules
from tests.predictors.specified import specified
from tests.stretch.planning.combinations import ways

PIXEL6 = specified("pixel6")


def test_memory_is_bounded_only_on_request():
    found = ways(peak_bytes=[10, 20, 30])
    assert "peak_memory" not in Rules.of(PlanConfig().checked(PIXEL6)).values
    assert Rules({}).allowed(found, 1.0).tolist() == [[True, True, True]]
    assert Rules({"peak_memory": 20}).allowed(found, 1.0).tolist() == [[True, True, False]]


def test_segment_that_stays_whole_must_fit_too():
    assert Rules({"peak_memory": 20, "alpha": 1e-6}).allowed(ways(branches=1, peak_bytes=[20, 21]), 1.0).tolist() == [[True, False]]


def test_bytes_of_the_largest_combination_rule_nothing_out():
    found = [ways(peak_bytes=[10, 20, 30]), ways(peak_bytes=[5])]
    (limit,) = PeakMemory().limits(7, found)
    assert limit.loosest == 30
    assert all(PeakMemory().mask(limit.put(7, limit.loosest), each, 1.0).all() for each in found)
    assert limit.put(7, 12.3) == 13
    assert isinstance(limit.put(7, np.float64(12.3)), int)
