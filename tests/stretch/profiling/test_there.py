"""What a profile of a board is checked for here; whole ones are measured in tests/scheduler/boards/test_board.py."""

import contextlib
import sys

import pytest

from predictors.errors import StretchError
from scheduler.boards.board import Board, Where
from scheduler.boards.facts import read_facts
from scheduler.boards.line import Line, boot
from stretch.profiling.there import profile_there


class Silent:
    def note(self, message):
        pass

    @contextlib.contextmanager
    def progress(self, what, total=None):
        yield lambda doing="", at=None, total=None: None


@pytest.fixture
def board(tmp_path):
    """A board on a line that needs no ssh, with the Python of the tests."""
    with Line(["sh", "-c", boot([sys.executable])]) as line:
        yield Board(Where(host="here", folder=str(tmp_path / "board")), line, read_facts("here", line.facts), Silent())


def test_measurements_that_wait_there_are_not_lost(board, tmp_path):
    kept = tmp_path / "board/profiles/pi/pi.measurements"
    kept.mkdir(parents=True)
    with pytest.raises(StretchError, match="here keeps measurements for `pi`"):
        profile_there(board, "pi", tmp_path, [], False, print)
    assert kept.is_dir()


def test_measurements_of_here_go_along_to_be_gone_on_with(board, tmp_path):
    (tmp_path / "pi.measurements").mkdir()
    (tmp_path / "pi.measurements/source.toml").write_text("no table of ours")
    with pytest.raises(StretchError, match="on here: "):
        profile_there(board, "pi", tmp_path, ["--processors=cpu"], True, print)
    assert (tmp_path / "board/profiles/pi/pi.measurements/source.toml").read_text() == "no table of ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board", "pi.measurements"]
