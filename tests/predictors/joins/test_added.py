import numpy as np

from predictors.joins import meeting_of


def test_sum_of_branches_adds_them_all_and_leaves_them_as_they_are():
    parts = [np.full((1, 2, 3, 3), float(n)) for n in (1, 2, 4)]
    place = np.empty((1, 2, 3, 3))
    assert (meeting_of("sum").combine(parts, 1, None) == 7).all()
    assert meeting_of("sum").combine(parts, 1, place) is place
    assert (place == 7).all()
    assert [part.max() for part in parts] == [1, 2, 4]
