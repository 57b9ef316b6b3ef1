"""The program on a board, and files on their way to it."""

import ast
import io
import subprocess
from importlib.resources import files

import pytest

from predictors.errors import StretchError
from scheduler.tools.boards.agent import Agent, Content, unpack
from scheduler.tools.boards.board import BoardArchive, Sending, below
from stretch.tools.profiling.places import ASKS, ask_for_file

SOURCE = files("scheduler.tools.boards").joinpath("agent.py").read_text()


def sent(data, pieces=1):
    stream = io.BytesIO()
    sending = Sending(stream.write)
    for at in range(pieces):
        sending.write(data[len(data) * at // pieces : len(data) * (at + 1) // pieces])
    sending.end()
    return stream.getvalue()


def test_source_is_understood_by_python_3_7():
    ast.parse(SOURCE, feature_version=(3, 7))


def test_source_imports_the_standard_library_alone():
    names = {alias.name for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] in ("stretch", "scheduler", "predictors", "numpy", "msgspec")}


def test_content_that_was_changed_on_the_way_is_noticed():
    data = bytearray(sent(b"x" * 100))
    data[50] ^= 1
    with pytest.raises(OSError, match="what arrived is not what was sent"):
        Content(io.BytesIO(bytes(data))).check()


def test_links_and_names_that_lead_out_are_not_unpacked(tmp_path):
    import tarfile

    for name, kind in (("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member, io.BytesIO())
        with pytest.raises(OSError, match="no plain file"):
            unpack(Content(io.BytesIO(sent(stream.getvalue()))), str(tmp_path / "target"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["..", "a/../../b", "/etc", "", "a//b", "."])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    agent = Agent("python", io.BytesIO(), io.BytesIO())
    agent.do_open(str(tmp_path))
    with pytest.raises(OSError, match="leads out"):
        agent.path(name)


def test_what_an_agent_that_is_gone_left_unfinished_is_removed_and_what_another_works_on_is_not(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"put-{gone.pid}-1", "run-1-1"):
        (tmp_path / "unfinished" / name).mkdir(parents=True)
    Agent("python", io.BytesIO(), io.BytesIO()).do_open(str(tmp_path))
    assert [path.name for path in (tmp_path / "unfinished").iterdir()] == ["run-1-1"]


@pytest.fixture
def folder(tmp_path):
    for name, content in {"a": b"1" * 70_000, "b/c": b"", "b/__pycache__/c.pyc": b"x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def packed(archive):
    stream = io.BytesIO()
    archive.write(stream)
    return stream.getvalue()


def test_same_files_give_the_same_bytes_and_compression_makes_them_fewer(folder):
    assert packed(BoardArchive("x", below(folder))) == packed(BoardArchive("x", below(folder)))
    assert len(packed(BoardArchive("x", below(folder)))) < len(packed(BoardArchive("x", below(folder), compress=False)))


def test_end_that_is_closed_is_one_sentence(monkeypatch, tmp_path):
    import os

    request, questions = os.pipe()
    answers, arguments = os.pipe()
    os.close(arguments)
    monkeypatch.setenv(ASKS, f"{questions},{answers}")
    with pytest.raises(StretchError, match="does not answer any more"):
        ask_for_file(tmp_path / "x", "y")
    for descriptor in (request, questions, answers):
        os.close(descriptor)
