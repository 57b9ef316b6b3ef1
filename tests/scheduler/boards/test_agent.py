"""The agent's own parts, and that it keeps to what any Python understands; tests of the line talk to one."""

import ast
import io
import shutil
import struct
import subprocess
from hashlib import sha256
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.boards.line import Agent, Content, GoneError, unpack
from scheduler.boards.archive import Archive
from scheduler.boards.line import Sending

SOURCE = files("scheduler.boards").joinpath("agent.py").read_text()


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


@pytest.mark.parametrize("series", ["3.7", "3.8", "3.9", "3.10", "3.12", "3.13", "3.14"])
def test_another_python_tells_what_it_is(series):
    python = shutil.which(f"python{series}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {series}")
    done = subprocess.run([python, "-c", f"{SOURCE}\nmain('python')"], input=b"", capture_output=True, check=False)
    assert f'"python": "{series}.'.encode() in done.stdout, done.stderr


@given(st.binary(max_size=5000), st.integers(1, 7), st.integers(1, 999))
def test_content_arrives_whole_however_it_is_cut(data, pieces, step):
    content = Content(io.BytesIO(sent(data, pieces) + b"next"))
    got = b"".join(iter(lambda: content.read(step), b""))
    assert got == data
    content.check()
    assert content.stream.read() == b"next"


def test_content_that_was_changed_on_the_way_is_noticed():
    data = bytearray(sent(b"x" * 100))
    data[50] ^= 1
    with pytest.raises(OSError, match="what arrived is not what was sent"):
        Content(io.BytesIO(bytes(data))).check()


def test_content_that_breaks_off_is_the_end_of_the_line():
    with pytest.raises(GoneError):
        Content(io.BytesIO(sent(b"x" * 100)[:60])).finish()


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


def test_archive_of_ours_is_unpacked_as_it_was(tmp_path):
    (tmp_path / "a").write_bytes(b"1" * 1000)
    stream = io.BytesIO()
    sending = Sending(stream.write)
    Archive("x", {"deep/er/a": tmp_path / "a"}).write(sending)
    sending.end()
    unpack(Content(io.BytesIO(stream.getvalue())), str(tmp_path / "target"))
    assert (tmp_path / "target/deep/er/a").read_bytes() == b"1" * 1000


@pytest.mark.parametrize("name", ["..", "a/../../b", "/etc", "", "a//b", "."])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    agent = Agent("python", io.BytesIO(), io.BytesIO())
    agent.do_open(str(tmp_path))
    with pytest.raises(OSError, match="leads out"):
        agent.path(name)


def test_nothing_is_named_before_a_folder_is_chosen():
    with pytest.raises(OSError, match="leads out"):
        Agent("python", io.BytesIO(), io.BytesIO()).path("x")


def test_what_an_agent_that_is_gone_left_unfinished_is_removed_and_what_another_works_on_is_not(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"put-{gone.pid}-1", "run-1-1"):
        (tmp_path / "unfinished" / name).mkdir(parents=True)
    Agent("python", io.BytesIO(), io.BytesIO()).do_open(str(tmp_path))
    assert [path.name for path in (tmp_path / "unfinished").iterdir()] == ["run-1-1"]


def test_sending_frames_chunks_and_ends_with_their_digest():
    assert sent(b"abc") == struct.pack(">I", 3) + b"abc" + struct.pack(">I", 0) + sha256(b"abc").digest()
