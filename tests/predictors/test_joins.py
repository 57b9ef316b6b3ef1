"""What holds for every join."""

from typing import get_args

import pytest

from predictors.devices import KERNEL_KINDS
from predictors.errors import UnknownNameError
from predictors.join import JoinKind, MeetingKind, joins, meetings
from predictors.joins import join_of, meeting_of
from predictors.operators import kinds


def test_names_of_files_and_types_are_those_that_are_registered():
    assert set(get_args(JoinKind)) == set(joins)
    assert set(get_args(MeetingKind)) == set(meetings)


@pytest.mark.parametrize("name", sorted(meetings))
def test_meeting_is_an_operator_and_a_kernel_and_a_join_of_its_own_name(name):
    meeting = meetings.get(name)
    assert meeting.operator in kinds
    assert meeting.kernel in KERNEL_KINDS
    assert meeting_of(name) is meeting


def test_only_a_branch_with_a_convolution_of_its_own_writes_the_whole_trunk():
    assert all(join_of(name).convolves for name in joins if join_of(name).whole)


def test_unknown_join_names_the_closest():
    with pytest.raises(UnknownNameError) as caught:
        meeting_of("conact")
    assert caught.value.hint == "did you mean `concat`?"
