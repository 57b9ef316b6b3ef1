import errno
import os
from pathlib import Path

import pytest

from predictors.errors import StretchError
from scheduler.bundle import load_bundle
from stretch.export.staging import check_target, copy_files, file_entry, staged
from tests.scheduler.bundles import two_branches


def test_folder_appears_whole_when_the_block_ends(tmp_path):
    with staged(tmp_path / "new" / "bundle") as folder:
        (folder / "bundle.json").write_text("{}")
        assert not (tmp_path / "new" / "bundle").exists()
    assert os.listdir(tmp_path / "new") == ["bundle"]


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt()])
def test_nothing_is_left_when_the_block_fails(tmp_path, error):
    def write():
        with staged(tmp_path / "bundle") as folder:
            (folder / "model.onnx").write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == []


def test_earlier_bundle_stays_when_the_new_one_fails(tmp_path):
    with staged(tmp_path / "bundle") as folder:
        (folder / "bundle.json").write_text("old")

    def write():
        with staged(tmp_path / "bundle") as folder:
            (folder / "bundle.json").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert (tmp_path / "bundle" / "bundle.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["bundle"]


def test_earlier_bundle_is_replaced(tmp_path):
    for text in ("old", "new"):
        with staged(tmp_path / "bundle") as folder:
            (folder / "bundle.json").write_text(text)
            (folder / text).touch()
    assert sorted(os.listdir(tmp_path / "bundle")) == ["bundle.json", "new"]
    assert os.listdir(tmp_path) == ["bundle"]


def test_interrupt_between_the_two_renames_brings_the_earlier_bundle_back(tmp_path, monkeypatch):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("old")
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)

    def write():
        with staged(tmp_path / "bundle") as folder:
            (folder / "bundle.json").write_text("new")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert (tmp_path / "bundle" / "bundle.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["bundle"]


def test_folder_of_something_else_is_refused_and_kept(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(StretchError, match="something else"):
        check_target(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"


@pytest.mark.parametrize("make", ["file", "link"])
def test_target_that_is_no_folder_is_refused(tmp_path, make):
    target = tmp_path / "bundle"
    target.write_text("") if make == "file" else target.symlink_to(tmp_path)
    with pytest.raises(StretchError, match="is no folder"):
        check_target(target)


def test_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StretchError, match="cannot write the bundle"):
        check_target(tmp_path / "file" / "bundle")


@pytest.mark.parametrize(("code", "hint"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "writable")])
def test_error_of_the_file_system_becomes_one_sentence(tmp_path, code, hint):
    def write():
        with staged(tmp_path / "bundle"):
            raise OSError(code, os.strerror(code))

    with pytest.raises(StretchError, match=os.strerror(code)) as caught:
        write()
    assert hint in caught.value.hint
    assert os.listdir(tmp_path) == []


def test_files_of_a_bundle_are_copied_with_their_hashes_but_those_left_out(tmp_path):
    bundle = load_bundle(two_branches(tmp_path / "b"))
    copied = copy_files(bundle, tmp_path / "copy", leave={"stem.onnx"})
    assert copied == {name: entry for name, entry in bundle.manifest.files.items() if name != "stem.onnx"}
    assert copied == {name: file_entry(tmp_path / "copy" / name) for name in copied}
    assert not (tmp_path / "copy" / "stem.onnx").exists()
