import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.joins import meeting_of


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
