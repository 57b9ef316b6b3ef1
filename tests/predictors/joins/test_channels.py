import pytest

from predictors.joins import join_of


@pytest.mark.parametrize(("join", "meets", "hidden"), [("channels", "concat", False), ("partial_sums", "sum", True)])
def test_channels_meet_as_scaled_branches_do_and_change_no_width(join, meets, hidden):
    found = join_of(join)
    assert (found.meets, found.hidden) == (meets, hidden)
    assert found.channels
    assert found.exact
    assert found.shares
    assert not found.widens
    assert not found.convolves
