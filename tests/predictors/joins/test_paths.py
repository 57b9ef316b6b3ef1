import pytest

from predictors.joins import join_of, joins_that


@pytest.mark.parametrize(("join", "meets"), [("paths", "concat"), ("terms", "sum")])
def test_paths_meet_as_scaled_branches_do_and_change_no_width(join, meets):
    found = join_of(join)
    assert found.meets == meets
    assert found.exact
    assert not found.widens
    assert not found.convolves


def test_exact_joins_are_those_of_parts_of_the_original():
    assert set(joins_that(lambda join: join.exact)) == {"rows", "paths", "terms", "channels", "partial_sums"}
