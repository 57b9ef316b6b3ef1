import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.joins import meeting_of


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
