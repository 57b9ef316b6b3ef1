import pytest

from predictors.joins import join_of, meeting_of


def test_one_branch_meets_nothing():
    assert join_of("none").meets is None
    assert not join_of("none").convolves
    with pytest.raises(ValueError, match="joins nothing"):
        meeting_of("none")
