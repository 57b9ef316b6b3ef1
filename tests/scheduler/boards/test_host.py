import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.boards.host import check_host


@pytest.mark.parametrize("name", ["board", "me@board", "me.too@10.0.0.7", "pi@raspberry-pi.local", "me@fe80::1%eth0", "a_b@c_d", "[::1]"])
def test_names_of_hosts_are_taken_as_they_are(name):
    assert check_host(name) == name


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "-", "--", "-me@board"])
def test_name_that_ssh_would_read_as_an_option_is_refused(name):
    with pytest.raises(UsageError, match="begins with a dash"):
        check_host(name)


@pytest.mark.parametrize(
    "name", ["", "me@-board", "a b", "a;b", "a@b@c", "$(x)", "a\nb", "ssh://a", "a/b", "@a", "a@", "`x`@b", "a'b", "a\0b"]
)
def test_what_no_host_is_called_is_refused(name):
    with pytest.raises(UsageError, match="is no name of a host"):
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
