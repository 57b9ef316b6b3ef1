"""What each join meets by, and which parts give a whole."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.joins import join_of, joins_that, meeting_of


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.sampled_from([("NCHW", 1), ("NHWC", -1)]))
def test_parts_that_can_be_joined_have_no_problem_and_are_found_again(widths, layout):
    name, axis = layout
    shapes = [(1, 2, 3, width) if axis == -1 else (1, width, 2, 3) for width in widths]
    parts = [np.full(shape, i) for i, shape in enumerate(shapes)]
    joined = meeting_of("concat").combine(parts, axis, None)
    place = np.empty_like(joined)
    meeting_of("concat").combine(parts, axis, place)
    assert np.array_equal(place, joined)
    assert meeting_of("concat").problem(shapes, joined.shape, name) is None
    start = 0
    for i, width in enumerate(widths):
        assert (np.moveaxis(joined, axis, 0)[start : start + width] == i).all()
        start += width


@pytest.mark.parametrize(
    ("inputs", "output", "layout", "problem"),
    [
        ([(1, 2, 3, 3), (1, 2, 3, 3)], (1, 5, 3, 3), "NCHW", r"channels 2 \+ 2 do not give a tensor of shape \[1, 5, 3, 3\]"),
        ([(1, 2, 3, 3), (1, 2, 3, 4)], (1, 4, 3, 3), "NCHW", "do not give"),
        ([(1, 2, 3, 3)] * 2, (1, 4, 3, 3), "PHWC4", "cannot be put side by side"),
        ([(4,), (4,)], (8,), "NC", "without channels"),
    ],
)
def test_parts_that_do_not_give_the_whole_are_refused(inputs, output, layout, problem):
    import re

    assert re.search(problem, meeting_of("concat").problem(inputs, output, layout))


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.sampled_from([("NCHW", 2), ("NHWC", 1)]))
def test_bands_that_can_be_joined_have_no_problem_and_are_found_again(heights, layout):
    name, axis = layout
    meeting = meeting_of("rows")
    assert meeting.axis(name, 4) == axis
    shapes = [(1, 2, height, 3) if axis == 2 else (1, height, 3, 2) for height in heights]
    bands = [np.full(shape, i) for i, shape in enumerate(shapes)]
    joined = meeting.combine(bands, axis, None)
    place = np.empty_like(joined)
    meeting.combine(bands, axis, place)
    assert np.array_equal(place, joined)
    assert meeting.problem(shapes, joined.shape, name) is None
    start = 0
    for i, height in enumerate(heights):
        assert (np.moveaxis(joined, axis, 0)[start : start + height] == i).all()
        start += height


@pytest.mark.parametrize(
    ("inputs", "output", "layout", "problem"),
    [
        ([(1, 3, 2, 3), (1, 3, 2, 3)], (1, 3, 5, 3), "NCHW", r"rows 2 \+ 2 do not give a tensor of shape \[1, 3, 5, 3\]"),
        ([(1, 3, 2, 3), (1, 4, 2, 3)], (1, 3, 4, 3), "NCHW", "do not give"),
        ([(1, 2, 3, 3)] * 2, (1, 2, 6, 3), "PHWC4", "cannot be put below each other"),
        ([(1, 4), (1, 4)], (1, 8), "NCHW", "without rows"),
    ],
)
def test_bands_that_do_not_give_the_whole_are_refused(inputs, output, layout, problem):
    assert re.search(problem, meeting_of("rows").problem(inputs, output, layout))


def test_sum_of_branches_adds_them_all_and_leaves_them_as_they_are():
    parts = [np.full((1, 2, 3, 3), float(n)) for n in (1, 2, 4)]
    place = np.empty((1, 2, 3, 3))
    assert (meeting_of("sum").combine(parts, 1, None) == 7).all()
    assert meeting_of("sum").combine(parts, 1, place) is place
    assert (place == 7).all()
    assert [part.max() for part in parts] == [1, 2, 4]


@pytest.mark.parametrize(("join", "meets"), [("channels", "concat"), ("partial_sums", "sum"), ("paths", "concat"), ("terms", "sum")])
def test_exact_parts_meet_as_scaled_branches_do_and_change_no_width(join, meets):
    result = join_of(join)
    assert (result.meets, result.exact, result.widens, result.convolves) == (meets, True, False, False)


def test_portions_meet_by_nothing_and_change_no_width():
    placed = join_of("placed")
    assert placed.meets is None
    assert placed.exact
    assert not placed.widens
    assert not placed.convolves
    assert "placed" not in joins_that(lambda join: True)


def test_one_branch_meets_nothing():
    assert join_of("none").meets is None
    assert not join_of("none").convolves
    with pytest.raises(ValueError, match="joins nothing"):
        meeting_of("none")
