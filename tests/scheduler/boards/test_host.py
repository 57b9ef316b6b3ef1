import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.boards.host import check_host


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "-", "--", "-me@board"])
def test_name_that_ssh_would_read_as_an_option_is_refused(name):
    with pytest.raises(UsageError, match="begins with a dash"):
        check_host(name)


@pytest.mark.slow
@given(st.text(max_size=12))
def test_no_name_that_is_taken_holds_what_a_shell_or_an_option_begins_with(name):
    try:
        taken = check_host(name)
    except UsageError:
        return
    assert not any(part.startswith("-") for part in taken.split("@"))
    assert not set(taken) & set(" \t\n\0;&|<>$`'\"\\(){}*?!#~=/,")
