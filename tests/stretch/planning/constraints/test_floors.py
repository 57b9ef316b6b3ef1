"""Floors are lowered step by step."""

from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.constraints.floors import STEPS, floor_limit


@given(st.floats(0.1, 1))
def test_ladder_goes_down_from_the_floor_to_one_that_rules_next_to_nothing_out(floor):
    limit = floor_limit(floor)
    assert limit.ladder == tuple(sorted(limit.ladder, reverse=True))
    assert all(step < floor for step in limit.ladder)
    assert limit.ladder[-1] == limit.loosest == STEPS[-1]
