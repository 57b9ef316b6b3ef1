"""Equation 6 at its edge."""

from stretch.planning.constraints.balance import Balance
from tests.stretch.planning.combinations import ways


def test_branches_are_balanced_up_to_the_bound():
    found = ways(fastest_ms=[4.99, 5.0, 10.0], slowest_ms=[10.0, 10.0, 10.0])
    assert Balance().mask(0.5, found, 1.0).tolist() == [False, True, True]
