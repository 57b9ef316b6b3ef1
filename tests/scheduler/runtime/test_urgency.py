from math import inf, nan

import pytest

from predictors.errors import UsageError
from scheduler.runtime.urgency import checked_priority, deadline_at


@pytest.mark.parametrize("deadline", [0, -1, nan, inf])
def test_deadline_that_cannot_be_kept_is_refused(deadline):
    with pytest.raises(UsageError, match="deadline"):
        deadline_at(0.0, deadline)


def test_deadline_counts_from_now_and_none_is_never():
    assert deadline_at(2.0, 500) == 2.5
    assert deadline_at(2.0, None) == inf


@pytest.mark.parametrize("priority", [-101, 101])
def test_priority_out_of_range_is_refused(priority):
    with pytest.raises(UsageError, match="no priority"):
        checked_priority(priority)


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_priority_in_range_is_itself(priority):
    assert checked_priority(priority) == priority
