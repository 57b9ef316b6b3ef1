"""Joins, how they are registered and what they need."""

import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.devices import KERNEL_KINDS
from predictors.errors import UnknownNameError
from predictors.join import Join
from predictors.joins import JoinKind, join_of, joins, joins_that, meeting_of, meetings
from predictors.operators import kinds


class Written(msgspec.Struct):
    join: JoinKind


def test_joins_that_are_registered_may_be_written_in_files_and_no_others():
    for name in joins:
        assert msgspec.convert({"join": name}, Written).join == name
    with pytest.raises(msgspec.ValidationError, match=r"Invalid enum value 'glue' - at `\$.join`"):
        msgspec.convert({"join": "glue"}, Written)


@pytest.mark.parametrize("name", sorted(meetings))
def test_meeting_is_an_operator_and_a_kernel_and_a_join_of_its_own_name(name):
    meeting = meetings.get(name)
    assert meeting.operator in kinds
    assert meeting.kernel in KERNEL_KINDS
    assert meeting_of(name) is meeting


def test_unknown_join_names_the_closest():
    with pytest.raises(UnknownNameError) as caught:
        meeting_of("conact")
    assert caught.value.hint == "did you mean `concat`?"


@pytest.mark.parametrize(
    ("join", "widens", "divides"),
    [
        (Join(None), False, False),
        (Join("concat"), True, False),
        (Join("concat", convolves=True), False, True),
        (Join("sum", convolves=True, whole=True), False, False),
    ],
)
def test_backbone_is_widened_by_outputs_as_they_are_and_divided_by_convolutions_to_a_part_of_it(join, widens, divides):
    assert (join.widens, join.divides) == (widens, divides)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.sampled_from([("concat", "NCHW", 1), ("concat", "NHWC", -1), ("rows", "NCHW", 2), ("rows", "NHWC", 1)]),
)
def test_parts_that_can_be_joined_have_no_problem_and_are_found_again(sizes, way):
    join, layout, axis = way
    meeting = meeting_of(join)
    assert meeting.axis(layout, 4) % 4 == axis % 4
    shape = [1, 2, 3, 2]
    shapes = [tuple(size if place == axis % 4 else other for place, other in enumerate(shape)) for size in sizes]
    parts = [np.full(shape, i) for i, shape in enumerate(shapes)]
    joined = meeting.combine(parts, axis, None)
    place = np.empty_like(joined)
    meeting.combine(parts, axis, place)
    assert np.array_equal(place, joined)
    assert meeting.problem(shapes, joined.shape, layout) is None
    for i, part in enumerate(np.split(joined, np.cumsum(sizes)[:-1], axis)):
        assert part.shape == shapes[i]
        assert (part == i).all()


@pytest.mark.parametrize(
    ("join", "inputs", "output", "layout", "problem"),
    [
        ("concat", [(1, 2, 3, 3), (1, 2, 3, 3)], (1, 5, 3, 3), "NCHW", r"channels 2 \+ 2 do not give a tensor of shape \[1, 5, 3, 3\]"),
        ("concat", [(1, 2, 3, 3), (1, 2, 3, 4)], (1, 4, 3, 3), "NCHW", "do not give"),
        ("concat", [(1, 2, 3, 3)] * 2, (1, 4, 3, 3), "PHWC4", "cannot be put side by side"),
        ("concat", [(4,), (4,)], (8,), "NC", "without channels"),
        ("rows", [(1, 3, 2, 3), (1, 3, 2, 3)], (1, 3, 5, 3), "NCHW", r"rows 2 \+ 2 do not give a tensor of shape \[1, 3, 5, 3\]"),
        ("rows", [(1, 3, 2, 3), (1, 4, 2, 3)], (1, 3, 4, 3), "NCHW", "do not give"),
        ("rows", [(1, 2, 3, 3)] * 2, (1, 2, 6, 3), "PHWC4", "cannot be put below each other"),
        ("rows", [(1, 4), (1, 4)], (1, 8), "NCHW", "without rows"),
    ],
)
def test_parts_that_do_not_give_the_whole_are_refused(join, inputs, output, layout, problem):
    assert re.search(problem, meeting_of(join).problem(inputs, output, layout))


def test_sum_of_branches_adds_them_all_and_leaves_them_as_they_are():
    parts = [np.full((1, 2, 3, 3), float(n)) for n in (1, 2, 4)]
    place = np.empty((1, 2, 3, 3))
    assert (meeting_of("sum").combine(parts, 1, None) == 7).all()
    assert meeting_of("sum").combine(parts, 1, place) is place
    assert (place == 7).all()
    assert [part.max() for part in parts] == [1, 2, 4]


@pytest.mark.parametrize(
    ("join", "meets"), [("channels", "concat"), ("partial_sums", "sum"), ("paths", "concat"), ("terms", "sum"), ("placed", None)]
)
def test_exact_parts_meet_as_scaled_branches_do_and_change_no_width(join, meets):
    result = join_of(join)
    assert (result.meets, result.exact, result.widens, result.convolves) == (meets, True, False, False)


def test_one_branch_and_portions_meet_nothing():
    assert "placed" not in joins_that(lambda join: True)
    assert (join_of("none").meets, join_of("none").convolves) == (None, False)
    with pytest.raises(ValueError, match="joins nothing"):
        meeting_of("none")
