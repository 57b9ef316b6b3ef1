import numpy as np

from predictors.joins import join_of, meeting_of


def test_every_branch_is_read_for_each_element_of_the_sum():
    meeting = meeting_of("sum")
    assert (meeting.operator, meeting.in_place, meeting.reads(3)) == ("add", False, 3)
    assert join_of("sum").whole


def test_sum_of_branches_adds_them_all_and_leaves_them_as_they_are():
    parts = [np.full((1, 2, 3, 3), float(n)) for n in (1, 2, 4)]
    place = np.empty((1, 2, 3, 3))
    assert (meeting_of("sum").combine(parts, 1, None) == 7).all()
    assert meeting_of("sum").combine(parts, 1, place) is place
    assert (place == 7).all()
    assert [part.max() for part in parts] == [1, 2, 4]


def test_branches_of_different_shapes_are_not_added():
    problem = meeting_of("sum").problem
    assert problem([(1, 2, 3, 3)] * 2, (1, 2, 3, 3), "NCHW") is None
    assert "different shapes" in problem([(1, 2, 3, 3), (1, 2, 3, 4)], (1, 2, 3, 3), "NCHW")
