"""How many meeting points are too many."""

from stretch.planning.constraints.meetings import Meetings


def test_number_of_meeting_points_falls_one_by_one_to_the_last():
    (limit,) = Meetings().limits(4, [])
    assert limit.ladder == (3, 2, 1)
    assert limit.put(4, 2.0) == 2


def test_one_meeting_point_cannot_be_too_many():
    assert Meetings().limits(1, []) == []
