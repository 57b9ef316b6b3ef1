"""Equation 5 at its edge."""

from stretch.planning.constraints.straggler import Straggler
from tests.stretch.planning.combinations import ways


def test_slowest_branch_takes_at_most_beta_times_the_segment():
    assert Straggler().mask(1.1, ways(slowest_ms=[10.99, 11.0, 11.01]), 10.0).tolist() == [True, True, False]
