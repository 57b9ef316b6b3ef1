import numpy as np

from predictors.joins import join_of, meeting_of


def test_every_branch_is_read_for_each_element_of_the_sum():
    meeting = meeting_of("sum")
    assert (meeting.operator, meeting.in_place, meeting.reads(3)) == ("add", False, 3)
    assert join_of("sum").whole


def test_sum_of_branches_adds_them_all():
    parts = [np.full((1, 2, 3, 3), float(n)) for n in (1, 2, 4)]
    assert (meeting_of("sum").combine(parts, 1) == 7).all()


def test_branches_of_different_shapes_are_not_added():
    problem = meeting_of("sum").problem
    assert problem([(1, 2, 3, 3)] * 2, (1, 2, 3, 3), "NCHW") is None
    assert "different shapes" in problem([(1, 2, 3, 3), (1, 2, 3, 4)], (1, 2, 3, 3), "NCHW")
