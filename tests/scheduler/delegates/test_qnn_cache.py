from pathlib import Path

import pytest

from scheduler.delegates.dsp import cache_folder, cached_context


class Compiler:
    """Makes sessions as ONNX Runtime does: told to, it leaves the compiled form in a file."""

    def __init__(self):
        self.opened = []

    def __call__(self, path: Path, settings):
        content = path.read_bytes()
        if content == b"damaged":
            raise RuntimeError("cannot read it")
        self.opened.append(content)
        if settings:
            Path(settings["ep.context_file_path"]).write_bytes(b"compiled " + content)
        return content


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "m.onnx"
    file.write_bytes(b"model")
    return file


def test_first_time_compiles_and_later_times_read(tmp_path, model):
    compiler = Compiler()
    for _ in range(3):
        cached_context(tmp_path / "c", model, "v1", compiler)
    assert compiler.opened == [b"model", b"compiled model", b"compiled model"]


def test_other_content_and_other_versions_have_files_of_their_own(tmp_path, model):
    compiler = Compiler()
    cached_context(tmp_path / "c", model, "v1", compiler)
    cached_context(tmp_path / "c", model, "v2", compiler)
    model.write_bytes(b"changed")
    cached_context(tmp_path / "c", model, "v1", compiler)
    assert compiler.opened == [b"model", b"model", b"changed"]
    assert len(list((tmp_path / "c").iterdir())) == 3


def test_unreadable_file_is_replaced(tmp_path, model):
    compiler = Compiler()
    cached_context(tmp_path / "c", model, "v1", compiler)
    (kept,) = (tmp_path / "c").iterdir()
    kept.write_bytes(b"damaged")
    cached_context(tmp_path / "c", model, "v1", compiler)
    assert kept.read_bytes() == b"compiled model"


def test_failed_compilation_leaves_nothing(tmp_path, model):
    model.write_bytes(b"damaged")
    with pytest.raises(RuntimeError):
        cached_context(tmp_path / "c", model, "v1", Compiler())
    assert list((tmp_path / "c").iterdir()) == []


def test_folder_that_cannot_be_written_is_done_without(tmp_path, model):
    compiler = Compiler()
    assert cached_context(model / "inside a file", model, "v1", compiler) == b"model"
    assert compiler.opened == [b"model"]


def test_folder_follows_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "nn-stretch" / "qnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "nn-stretch" / "qnn"
