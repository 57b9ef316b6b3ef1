import pytest

from predictors.join import DEFAULT, Join
from predictors.joins import join_of, joins_that


def test_join_leaves_the_branches_as_they_are_unless_it_is_told():
    join = Join("concat")
    assert (join.convolves, join.whole, join.adds) == (False, False, False)


@pytest.mark.parametrize(
    ("join", "widens", "divides"),
    [
        (Join(None), False, False),
        (Join("concat"), True, False),
        (Join("concat", convolves=True), False, True),
        (Join("sum", convolves=True, whole=True), False, False),
    ],
)
def test_trunk_is_widened_by_outputs_as_they_are_and_divided_by_convolutions_to_a_part_of_it(join, widens, divides):
    assert (join.widens, join.divides) == (widens, divides)


def test_join_of_those_who_ask_for_none_keeps_the_width_of_the_trunk():
    assert join_of(DEFAULT).meets is not None
    assert not join_of(DEFAULT).widens


def test_joins_of_which_something_holds_join_several_branches():
    assert {"concat", "project", "sum"} <= {*joins_that(lambda join: True)}
    assert "none" not in joins_that(lambda join: True)
    assert "concat" in joins_that(lambda join: join.widens)
    assert not {"project", "sum"} & {*joins_that(lambda join: join.widens)}
