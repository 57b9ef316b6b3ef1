"""What every constraint has, and a bound in general."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.config import PlanConfig
from stretch.planning.constraints import all_constraints
from stretch.planning.constraints.base import FIRST, constraints
from stretch.planning.constraints.built_in import Balance, Communication
from tests.stretch.planning.combinations import combinations_of


@pytest.mark.parametrize("constraint", all_constraints(), ids=lambda item: item.option.name)
def test_constraint_can_be_asked_for_and_says_nothing_of_its_own_accord_where_it_has_no_default(constraint):
    assert constraint.option.name in PlanConfig.__struct_fields__
    assert getattr(PlanConfig(), constraint.option.name) == constraint.option.default


def test_every_constraint_is_listed_once_those_that_are_blamed_first_in_front():
    names = [constraint.option.name for constraint in all_constraints()]
    assert sorted(names) == sorted(constraints)
    assert names[: len(FIRST)] == list(FIRST)


@given(st.lists(st.floats(0.01, 100), min_size=1), st.floats(0.01, 10), st.floats(0.1, 50))
def test_bound_is_missed_exactly_where_no_combination_keeps_to_it(exchanges, alpha, segment_ms):
    result = combinations_of(exchange_ms=exchanges)
    missed = Communication().missed(alpha, [result], [segment_ms])
    if abs(min(exchanges) / segment_ms / alpha - 1) > 1e-9:
        assert (missed is None) == Communication().mask(alpha, result, segment_ms).any()


def test_best_share_is_told_beside_the_one_that_is_asked_for():
    rows = [combinations_of(exchange_ms=[5.0, 3.0]), combinations_of(exchange_ms=[4.0])]
    assert Communication().missed(0.1, rows, [10.0, 20.0]) == "an exchange takes 0.2 of the segment at best, at most 0.1 is allowed"
    unlike = combinations_of(fastest_ms=[1.0, 2.0], slowest_ms=[10.0, 10.0])
    assert Balance().missed(0.5, [unlike], [1.0]) == "the fastest branch takes 0.2 of the slowest at best, the limit is 0.5"


def test_loosest_value_rules_nothing_out():
    result = combinations_of(exchange_ms=[1.0, 1e5])
    (limit,) = Communication().limits(0.2, [result])
    assert Communication().mask(limit.loosest, result, 1.0).all()
