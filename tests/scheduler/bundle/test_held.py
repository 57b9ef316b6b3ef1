import os
import shutil

import pytest

from predictors.errors import StretchError
from scheduler.bundle.held import Held, in_use, unused


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


def test_texts_name_the_folder_and_not_the_descriptor(tmp_path):
    held = Held(folder(tmp_path / "a", ""))
    assert held.named(f"{held.root / 'f'} is damaged") == f"{tmp_path / 'a' / 'f'} is damaged"


def test_held_folder_is_not_free_to_be_removed_until_it_is_let_go(tmp_path):
    held = Held(folder(tmp_path / "a", ""))
    with unused(tmp_path / "a") as free:
        assert not free
    del held
    with unused(tmp_path / "a") as free:
        assert free


def test_folder_that_is_written_is_not_free_either_but_is_read(tmp_path):
    with in_use(folder(tmp_path / "a", "")) as number:
        assert number == (tmp_path / "a").stat().st_ino
        assert (Held(tmp_path / "a").root / "f").exists()
        with unused(tmp_path / "a") as free:
            assert not free


def test_folder_that_is_being_removed_is_not_held(tmp_path):
    folder(tmp_path / "a", "")
    with unused(tmp_path / "a"), pytest.raises(StretchError, match="is being removed"):
        Held(tmp_path / "a")


@pytest.mark.parametrize("kind", ["missing", "file", "link"])
def test_what_is_no_folder_is_not_free(tmp_path, kind):
    path = tmp_path / "a"
    if kind == "file":
        path.write_text("")
    elif kind == "link":
        path.symlink_to(tmp_path)
    with unused(path) as free:
        assert not free


def test_links_that_lead_out_are_told_from_those_that_stay(tmp_path):
    held = Held(folder(tmp_path / "a", ""))
    (tmp_path / "a" / "inside").symlink_to("f")
    (tmp_path / "a" / "outside").symlink_to("../b")
    assert held.contains(held.root / "f")
    assert held.contains(held.root / "inside")
    assert not held.contains(held.root / "outside")


def test_descriptors_are_closed_with_their_folders(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    several = [Held(folder(tmp_path / name, "")) for name in "abc"]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    del several
    assert len(os.listdir("/proc/self/fd")) == before
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        Held(tmp_path / "a")
    assert len(os.listdir("/proc/self/fd")) == before
