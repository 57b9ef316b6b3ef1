import pytest

from predictors.join import Join


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
