"""The line over a local shell: what ssh would start there is started here."""

import sys

import pytest

from scheduler.tools.boards.board import AgentConnection, BoardArchive, RefusedError, below, boot
from tests.scheduler.tools.boards.servers import ended

START = [sys.executable]


@pytest.fixture
def line(tmp_path):
    with AgentConnection(["sh", "-c", boot(START)]) as built:
        built.ask("open", folder=str(tmp_path / "root"))
        yield built


def run(line, code, said=None):
    folder = line.ask("scratch")["name"]
    return line.ask("run", said, words=["-c", code], imports=["packages"], folder=folder)


def test_files_are_put_kept_fetched_and_removed(line, tmp_path):
    (tmp_path / "files/deep").mkdir(parents=True)
    (tmp_path / "files/deep/a").write_bytes(b"1" * 3_000_000)
    archive = BoardArchive("some/thing", below(tmp_path / "files"))
    assert line.ask("keeps", name="some/thing", files=None) == {"kept": False}
    assert line.send("put", archive.write, name=archive.name, trial=[], replace=False) == {}
    assert line.ask("keeps", name="some/thing", files=None) == {"kept": True}
    assert line.receive("some/thing/deep/a", 4_000_000) == b"1" * 3_000_000
    with pytest.raises(RefusedError, match="too large"):
        line.receive("some/thing/deep/a", 1000)
    with pytest.raises(RefusedError) as missing:
        line.receive("some/thing/b", 1000)
    assert missing.value.name == "ENOENT"
    line.ask("remove", name="some/thing")
    assert not (tmp_path / "root/some/thing").exists()


def test_what_was_put_before_is_replaced_whole_or_stays(line, tmp_path):
    for name, replace in (("a", False), ("b", True), ("c", False)):
        (tmp_path / name).write_text(name)
        line.send("put", BoardArchive("x", {name: tmp_path / name}).write, name="x", trial=[], replace=replace)
    assert below(tmp_path / "root/x").keys() == {"b"}
    assert not list((tmp_path / "root").glob("unfinished/put*"))


def test_sender_that_breaks_off_leaves_nothing(tmp_path):
    line = AgentConnection(["sh", "-c", boot(START)])
    line.ask("open", folder=str(tmp_path / "root"))
    agent = int(line.ask("scratch")["name"].split("-")[1])

    def broken(stream):
        stream.write(b"x" * 1_000_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), line:
        line.send("put", broken, name="x", trial=[], replace=False)
    assert ended(agent)
    assert not list((tmp_path / "root").iterdir())


def test_program_there_tells_lines_meanwhile_and_its_answer_at_the_end(line):
    heard = []
    done = run(line, "import sys; print('a\\nb', file=sys.stderr); print('c'); print('no end', end='', file=sys.stderr)", heard.append)
    assert heard == ["a", "b", "no end"]
    assert done == {"code": 0, "answer": "c\n"}


def test_program_ends_when_the_line_does_and_leaves_nothing(tmp_path):
    line = AgentConnection(["sh", "-c", boot(START)])
    line.ask("open", folder=str(tmp_path / "root"))
    rows = []

    def stop(text):
        rows.append(int(text))
        raise KeyboardInterrupt

    code = "import os, sys, threading; print(os.getpid(), file=sys.stderr); threading.Event().wait()"
    with pytest.raises(KeyboardInterrupt), line:
        run(line, code, stop)
    assert ended(rows[0])


def test_answer_that_is_too_large_is_refused_and_the_line_goes_on(line):
    with pytest.raises(RefusedError, match="too large"):
        run(line, "import sys; [sys.stdout.write('x' * (1 << 20)) for _ in range(80)]")
    assert run(line, "print(1)")["answer"] == "1\n"
