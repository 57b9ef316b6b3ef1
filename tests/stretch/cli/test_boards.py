"""Flags of verbs that run on a board; the boards themselves are in tests/scheduler/boards."""

import pytest

from predictors.errors import UsageError
from stretch.cli.boards import flags, not_there, where
from tests.stretch.cli.commands import call


@pytest.mark.parametrize("flag", ["--there=x", "--ssh-config=x"])
@pytest.mark.parametrize("verb", ["run", "profile"])
def test_flag_of_a_board_without_a_board_is_refused(capsys, bundle_dir, verb, flag):
    words = {"run": (bundle_dir,), "profile": ("--name", "here")}[verb]
    result = call(capsys, verb, *words, flag)
    assert (result.code, result.hint) == (2, "name it with --on user@host")
    assert result.message == f"{flag.partition('=')[0]} speaks of a board, and none is named"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--on=-oProxyCommand=x",), 2, "begins with a dash"),
        (("--on", "a b"), 2, "is no name of a host"),
        (("--on", "board", "--html", "page.html"), 2, "--html does not go with --on"),
        (("--on", "board", "--there", "a\nb"), 2, "--there is no name of a folder"),
        (("--on", "board", "--priority", "speed"), 2, "--priority speed is not known"),
        (("--on", "board", "--ssh-config", "missing"), 1, "there is no ssh configuration missing"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_board_is_asked(capsys, bundle_dir, tmp_path, monkeypatch, words, code, told):
    monkeypatch.chdir(tmp_path)
    result = call(capsys, "run", bundle_dir, *words)
    assert result.code == code
    assert told in result.message
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--name", "a/b"), 2, "cannot be the name of a profile"),
        (("--name", "kept"), 1, "has measurements already"),
        (("--name", "x", "--from", "x.csv"), 2, "--from does not go with --on"),
    ],
)
def test_profile_that_could_not_be_written_is_refused_before_a_board_is_asked(capsys, tmp_path, monkeypatch, words, code, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.measurements").mkdir()
    result = call(capsys, "profile", "--on", "board", "--ssh-config", "missing", *words)
    assert result.code == code
    assert told in result.message


def test_flags_become_words_and_what_was_not_said_none():
    given = {"map": ["gpu=cpu1", "cpu=cpu0"], "time_limit": 2.5, "trust_code": True, "in_flight": None, "off": False, "processors": "-x"}
    words = ["--map=gpu=cpu1", "--map=cpu=cpu0", "--time-limit=2.5", "--trust-code", "--processors=-x"]
    assert flags(False, **given) == words
    assert flags(True) == ["--quiet"]


def test_extras_of_the_verb_and_of_the_user_are_named_once():
    place = where("me@board", None, None, "opencl, fit", None, more=("fit",))
    assert (place.host, place.extras) == ("me@board", ("fit", "opencl"))
    assert where(None, None, None, None, None) is None


def test_only_flags_that_were_given_are_refused():
    not_there({"--html": (None, "why")})
    with pytest.raises(UsageError, match="--html does not go with --on: why"):
        not_there({"--html": ("page", "why")})
