import pytest

from predictors.joins import join_of


@pytest.mark.parametrize(("join", "meets"), [("paths", "concat"), ("terms", "sum")])
def test_paths_meet_as_scaled_branches_do_and_change_no_width(join, meets):
    found = join_of(join)
    assert found.meets == meets
    assert found.exact
    assert not found.widens
    assert not found.convolves
