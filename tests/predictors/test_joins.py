"""Joins, how they are registered and what they need."""

import msgspec
import pytest

from predictors.devices import KERNEL_KINDS
from predictors.errors import UnknownNameError
from predictors.join import Join
from predictors.joins import JoinKind, joins, meeting_of, meetings
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


def test_join_leaves_the_branches_as_they_are_unless_it_is_told():
    join = Join("concat")
    assert (join.convolves, join.whole, join.adds) == (False, False, False)


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
