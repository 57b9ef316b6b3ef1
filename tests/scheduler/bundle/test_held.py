import pytest

from predictors.errors import StretchError
from scheduler.bundle.held import Held, unused


def folder(path, text):
    path.mkdir()
    (path / "f").write_text(text)
    return path


def test_held_folder_stays_itself_when_another_takes_its_name(tmp_path):
    held = Held(folder(tmp_path / "a", "old"))
    (tmp_path / "a").rename(tmp_path / "gone")
    folder(tmp_path / "a", "new")
    assert (held.root / "f").read_text() == "old"
    assert (tmp_path / "a" / "f").read_text() == "new"


def test_held_folder_is_not_free_to_be_removed_until_it_is_let_go(tmp_path):
    held = Held(folder(tmp_path / "a", ""))
    with unused(tmp_path / "a") as free:
        assert not free
    del held
    with unused(tmp_path / "a") as free:
        assert free


def test_folder_that_is_being_removed_is_not_held(tmp_path):
    folder(tmp_path / "a", "")
    with unused(tmp_path / "a"), pytest.raises(StretchError, match="is being removed"):
        Held(tmp_path / "a")


def test_links_that_lead_out_are_told_from_those_that_stay(tmp_path):
    held = Held(folder(tmp_path / "a", ""))
    (tmp_path / "a" / "inside").symlink_to("f")
    (tmp_path / "a" / "outside").symlink_to("../b")
    assert held.contains(held.root / "f")
    assert held.contains(held.root / "inside")
    assert not held.contains(held.root / "outside")
