"""A bundle appears completely or not at all, and other files in its folder stay."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input, verify_bundle
from scheduler.runtime.session import Session
from stretch.export.staging import UNFINISHED, check_target, copy_files, exchange, file_entry, move_into_place, stage_folder, write_manifest
from tests.scheduler.bundles import two_branches


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt()])
@pytest.mark.parametrize("earlier", [False, True])
def test_failed_write_leaves_only_an_earlier_bundle(tmp_path, error, earlier):
    out = two_branches(tmp_path / "bundle") if earlier else tmp_path / "bundle"

    def write():
        with stage_folder(out) as folder:
            (folder / "bundle.json").write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == ["bundle"] * earlier
    assert not earlier or load_bundle(out, check_hashes=True)


def bundle_of(path, processors=("cpu", "gpu")):
    return load_bundle(two_branches(path, processors=processors))


def write(out, bundle):
    with stage_folder(out) as folder:
        copy_files(bundle, folder)
        write_manifest(folder, bundle.manifest)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_earlier_bundle_is_replaced_with_or_without_exchange_of_names(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr("stretch.export.staging.exchange", lambda one, other: False)
    new = bundle_of(tmp_path / "new", ("cpu", "dsp"))
    write(two_branches(tmp_path / "bundle"), new)
    assert load_bundle(tmp_path / "bundle", check_hashes=True).manifest == new.manifest
    assert "s1.gpu.onnx" not in os.listdir(tmp_path / "bundle")
    assert sorted(os.listdir(tmp_path)) == ["bundle", "new"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("chapter1.tex", "years of work"), *(("bundle.json", text) for text in ("{}", '{"name": "my data"}', "", "[" * 100_000))],
    ids=lambda text: text[:20],
)
def test_folder_of_something_else_is_refused_and_kept(tmp_path, name, text):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / name).write_text(text)
    with pytest.raises(StretchError, match=rf"something else, `{name}`" if name.endswith("tex") else "something else"):
        check_target(tmp_path / "p")
    assert (tmp_path / "p" / name).read_text() == text


@pytest.mark.parametrize("name", ["notes.txt", ".git/config", ".env", "controls/mine.onnx", "data/"])
def test_first_file_or_folder_that_the_manifest_does_not_list_is_named_and_everything_is_kept(tmp_path, name):
    out = two_branches(tmp_path / "bundle")
    path = out / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    with pytest.raises(StretchError, match=re.escape(f"`{Path(name).parts[0] if name.startswith('.git') else name.rstrip('/')}`")):
        write(out, bundle_of(tmp_path / "new"))
    assert path.exists()
    assert load_bundle(out, check_hashes=True)


def test_signature_of_the_earlier_bundle_is_removed_with_it(tmp_path):
    out = two_branches(tmp_path / "bundle")
    (out / "signature.json").write_text("mine")
    write(out, bundle_of(tmp_path / "new"))
    assert load_bundle(out, check_hashes=True)
    assert not (out / "signature.json").exists()


def test_link_to_another_folder_and_file_added_during_the_write_are_kept(tmp_path):
    out, new = two_branches(tmp_path / "bundle"), bundle_of(tmp_path / "new")

    def late():
        with stage_folder(out) as folder:
            copy_files(new, folder)
            write_manifest(folder, new.manifest)
            (out / "late.txt").write_text("mine")

    with pytest.raises(StretchError, match=r"`late\.txt`"):
        late()
    assert ((out / "late.txt").read_text(), sorted(os.listdir(tmp_path))) == ("mine", ["bundle", "new"])
    (out / "late.txt").unlink()
    shutil.move(out / "controls", tmp_path / "elsewhere")
    (out / "controls").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StretchError, match="`controls`"):
        check_target(out)


@pytest.mark.linux
def test_replaced_bundle_stays_readable_until_its_reader_releases_it(tmp_path):
    out, new = two_branches(tmp_path / "bundle"), bundle_of(tmp_path / "new", ("cpu", "dsp"))
    reader = load_bundle(out)
    content = reader.file("s1.gpu.onnx").read_bytes()
    write(out, new)
    assert reader.file("s1.gpu.onnx").read_bytes() == content
    with Session(reader) as session:
        assert session(random_input(reader)).shape == (1, 5)
        del reader
    assert len(os.listdir(tmp_path)) == 3
    del session
    write(out, new)
    assert sorted(os.listdir(tmp_path)) == ["bundle", "new"]


WRITER = """
import sys
from pathlib import Path
from scheduler.bundle.load import load_bundle
from stretch.export.staging import copy_files, stage_folder, write_manifest
*sources, out = map(Path, sys.argv[1:])
bundles = [load_bundle(source) for source in sources]
print("ready", flush=True)
while True:
    for bundle in bundles:
        with stage_folder(out) as folder:
            copy_files(bundle, folder)
            write_manifest(folder, bundle.manifest)
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from stretch.export.staging import stage_folder
with stage_folder(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that replaces a bundle repeatedly, and the folder of the bundle."""
    sources = [two_branches(tmp_path / name, processors=processors) for name, processors in (("a", ("cpu", "gpu")), ("b", ("cpu", "dsp")))]
    out = two_branches(tmp_path / "bundle")
    with subprocess.Popen([sys.executable, "-c", WRITER, *sources, out], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield process, out
        process.kill()


@pytest.mark.slow
def test_reader_never_finds_a_missing_or_mixed_bundle_while_it_is_replaced(writer):
    process, out = writer
    devices = set()
    for _ in range(150):
        bundle = load_bundle(out, check_hashes=True)
        devices.add(tuple(entry.name for entry in bundle.manifest.subgraphs))
    for _ in range(5):
        result = verify_bundle(out)
        assert result.ok, result.problems
    assert process.poll() is None
    assert len(devices) == 2, "the bundle was not replaced while it was read"


@pytest.mark.linux
def test_next_run_removes_only_leftovers_of_a_killed_run(tmp_path):
    out, new = tmp_path / "bundle", bundle_of(tmp_path / "new")
    assert subprocess.run([sys.executable, "-c", KILLED, out], check=False).returncode == -signal.SIGKILL
    (leftover,) = set(os.listdir(tmp_path)) - {"new"}
    assert sorted(os.listdir(tmp_path / leftover)) == [UNFINISHED, "half"]
    foreign = {".bundle.mine", ".bundle.abcdefgh", ".other.abcdefgh"}
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "work").write_text("mine")
    (tmp_path / ".other.abcdefgh" / UNFINISHED).touch()
    with stage_folder(out) as live:
        assert leftover not in os.listdir(tmp_path)
        write(out, new)
        assert live.is_dir(), "the folder of a live run was swept"
        copy_files(new, live)
        write_manifest(live, new.manifest)
    assert set(os.listdir(tmp_path)) == {"bundle", "new"} | foreign
    assert all((tmp_path / name / "work").read_text() == "mine" for name in foreign)
    assert load_bundle(out, check_hashes=True)


def test_interrupt_between_two_steps_restores_the_earlier_bundle(tmp_path, monkeypatch):
    monkeypatch.setattr("stretch.export.staging.exchange", lambda one, other: False)
    old, new = two_branches(tmp_path / "bundle"), bundle_of(tmp_path / "new", ("cpu", "dsp"))
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(old, new)
    assert "s1.gpu.onnx" in load_bundle(old, check_hashes=True).manifest.files
    assert sorted(os.listdir(tmp_path)) == ["bundle", "new"]


@pytest.mark.parametrize(("code", "hint"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "writable")])
def test_error_of_the_file_system_becomes_one_sentence(tmp_path, code, hint):
    with pytest.raises(StretchError, match=os.strerror(code)) as caught, stage_folder(tmp_path / "bundle"):
        raise OSError(code, os.strerror(code))
    assert hint in caught.value.hint
    assert os.listdir(tmp_path) == []


def test_files_of_a_bundle_are_copied_with_their_hashes_except_omitted_files(tmp_path):
    bundle = load_bundle(two_branches(tmp_path / "b"))
    copied = copy_files(bundle, tmp_path / "copy", leave={"stem.onnx"})
    expected = {name: entry for name, entry in bundle.manifest.files.items() if name != "stem.onnx"}
    assert copied == expected == {name: file_entry(tmp_path / "copy" / name) for name in copied}
    assert not (tmp_path / "copy" / "stem.onnx").exists()


def folder(path):
    path.mkdir()
    (path / path.name).touch()
    return path


@pytest.mark.linux
def test_two_folders_exchange_names_and_a_missing_folder_is_an_error(tmp_path):
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        exchange(a, tmp_path / "c")
    assert (a / "a").exists()
    assert exchange(a, b)
    assert (os.listdir(a), os.listdir(b)) == (["b"], ["a"])


TAKEN = {"folder": folder, "empty": Path.mkdir, "file": Path.touch}


@pytest.mark.parametrize("taken", ["folder", pytest.param("empty", marks=pytest.mark.linux), "file"])
def test_move_into_place_keeps_an_existing_target(tmp_path, taken):
    TAKEN[taken](tmp_path / "b")
    assert not move_into_place(folder(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a" / "a").exists()
    assert not (tmp_path / "b" / "a").exists()
