"""Verbs on a board: flags become arguments of a command on the board, and local files are copied there."""

import contextlib
import sys

import pytest

from predictors.errors import StretchError
from scheduler.tools.boards import board as boards
from scheduler.tools.boards.board import AgentConnection, Board, boot
from scheduler.tools.boards.facts import read_facts
from stretch.tools.boards.flags import OnBoard
from stretch.tools.boards.verbs import flags, profile_there


def test_flags_become_arguments_and_unset_options_are_left_out():
    mapping = {"map": ["gpu=cpu1", "cpu=cpu0"], "time_limit": 2.5, "trust_code": True, "in_flight": None, "off": False, "processors": "-x"}
    arguments = ["--map=gpu=cpu1", "--map=cpu=cpu0", "--time-limit=2.5", "--trust-code", "--processors=-x"]
    assert (flags(False, **mapping), flags(True)) == (arguments, ["--quiet"])


def test_extras_of_the_verb_and_of_the_user_are_merged_without_duplicates():
    board = OnBoard("me@board", extras="opencl, fit")
    assert board.asked()
    assert (board.where("fit").host, board.where("fit").extras) == ("me@board", ("fit", "opencl"))
    assert not OnBoard().asked()


class Silent:
    def note(self, message):
        pass

    @contextlib.contextmanager
    def progress(self, what, total=None):
        yield lambda doing="", at=None, total=None: None


@pytest.fixture
def board(tmp_path):
    """A board behind a local connection without ssh, with the Python of the tests."""
    with AgentConnection(["sh", "-c", boot([sys.executable])]) as line:
        yield Board(boards.BoardTarget(host="here", folder=str(tmp_path / "board")), line, read_facts("here", line.facts), Silent())


@pytest.mark.torch
def test_local_measurements_are_copied_to_the_board_for_resuming(board, tmp_path):
    (tmp_path / "pi.measurements").mkdir()
    (tmp_path / "pi.measurements/source.toml").write_text("no table of ours")
    with pytest.raises(StretchError, match="on here: "):
        profile_there(board, "pi", tmp_path, ["--processors=cpu"], True, print)
    assert (tmp_path / "board/profiles/pi/pi.measurements/source.toml").read_text() == "no table of ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board", "pi.measurements"]
