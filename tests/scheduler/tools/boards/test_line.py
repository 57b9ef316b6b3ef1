"""The connection to a board: ssh, the agent and its answers, and transfers of files and packages."""

import ast
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

from predictors.errors import MissingBackendError, StretchError, UnknownNameError
from scheduler.tools.boards import board
from scheduler.tools.boards.agent import Agent, Content, facts, unpack
from scheduler.tools.boards.facts import SERIES, check_facts, read_facts
from stretch.profile.places import ASK_VARIABLE, ask_for_file
from tests.scheduler.tools.boards.servers import ended, free_port

SOURCE = files("scheduler.tools.boards").joinpath("agent.py").read_text()


def sent(data):
    stream = io.BytesIO()
    sending = board.ChunkWriter(stream.write)
    sending.write(data)
    sending.end()
    return stream.getvalue()


def test_agent_is_valid_python_3_7_and_imports_only_the_standard_library():
    tree = list(ast.walk(ast.parse(SOURCE, feature_version=(3, 7))))
    names = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] in ("stretch", "scheduler", "predictors", "numpy", "msgspec")}


def test_changed_content_links_and_paths_out_of_the_folder_are_refused(tmp_path):
    data = bytearray(sent(b"x" * 100))
    data[50] ^= 1
    with pytest.raises(OSError, match="the received data differ from the sent data"):
        Content(io.BytesIO(bytes(data))).check()
    for name, kind in (("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member, io.BytesIO())
        with pytest.raises(OSError, match="no plain file"):
            unpack(Content(io.BytesIO(sent(stream.getvalue()))), str(tmp_path / "target"))
    assert not (tmp_path / "out").exists()
    agent = Agent("python", io.BytesIO(), io.BytesIO())
    agent.do_open(str(tmp_path))
    for name in ("..", "a/../../b", "/etc", "", "a//b", "."):
        with pytest.raises(OSError, match="leads out"):
            agent.path(name)


def test_unfinished_files_of_ended_agents_are_removed_and_those_of_running_agents_stay(tmp_path):
    ended_agent = subprocess.Popen(["true"])
    ended_agent.wait()
    for name in (f"put-{ended_agent.pid}-1", "run-1-1"):
        (tmp_path / "unfinished" / name).mkdir(parents=True)
    Agent("python", io.BytesIO(), io.BytesIO()).do_open(str(tmp_path))
    assert [path.name for path in (tmp_path / "unfinished").iterdir()] == ["run-1-1"]


def test_closed_pipe_is_an_error_in_one_sentence(monkeypatch, tmp_path):
    (request, questions), (answers, arguments) = os.pipe(), os.pipe()
    os.close(arguments)
    monkeypatch.setenv(ASK_VARIABLE, f"{questions},{answers}")
    with pytest.raises(StretchError, match="does not answer any more"):
        ask_for_file(tmp_path / "x", "y")
    for descriptor in (request, questions, answers):
        os.close(descriptor)


START = [sys.executable]


@pytest.fixture
def link(tmp_path):
    with board.AgentConnection(["sh", "-c", board.boot(START)]) as built:
        built.ask("open", folder=str(tmp_path / "root"))
        yield built


def run(link, code, on_line=None):
    folder = link.ask("scratch")["name"]
    return link.ask("run", on_line, words=["-c", code], imports=["packages"], folder=folder)


def test_files_are_sent_kept_received_and_removed(link, tmp_path):
    (tmp_path / "files/deep").mkdir(parents=True)
    (tmp_path / "files/deep/a").write_bytes(b"1" * 3_000_000)
    archive = board.BoardArchive("some/thing", board.files_below(tmp_path / "files"))
    assert link.ask("keeps", name="some/thing", files=None) == {"kept": False}
    assert link.send("put", archive.write, name=archive.name, trial=[], replace=False) == {}
    assert link.ask("keeps", name="some/thing", files=None) == {"kept": True}
    assert link.receive("some/thing/deep/a", 4_000_000) == b"1" * 3_000_000
    with pytest.raises(board.RefusedError, match="too large"):
        link.receive("some/thing/deep/a", 1000)
    with pytest.raises(board.RefusedError) as missing:
        link.receive("some/thing/b", 1000)
    assert missing.value.name == "ENOENT"
    link.ask("remove", name="some/thing")
    assert not (tmp_path / "root/some/thing").exists()


def test_files_sent_before_are_replaced_completely_or_stay(link, tmp_path):
    for name, replace in (("a", False), ("b", True), ("c", False)):
        (tmp_path / name).write_text(name)
        link.send("put", board.BoardArchive("x", {name: tmp_path / name}).write, name="x", trial=[], replace=replace)
    assert board.files_below(tmp_path / "root/x").keys() == {"b"}
    assert not list((tmp_path / "root").glob("unfinished/put*"))


def test_interrupted_sender_leaves_no_files(tmp_path):
    link = board.AgentConnection(["sh", "-c", board.boot(START)])
    link.ask("open", folder=str(tmp_path / "root"))
    agent = int(link.ask("scratch")["name"].split("-")[1])

    def broken(stream):
        stream.write(b"x" * 1_000_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), link:
        link.send("put", broken, name="x", trial=[], replace=False)
    assert ended(agent)
    assert not list((tmp_path / "root").iterdir())


def test_program_reports_lines_while_it_runs_and_its_answer_at_the_end_unless_it_is_too_large(link):
    lines = []
    done = run(link, "import sys; print('a\\nb', file=sys.stderr); print('c'); print('no end', end='', file=sys.stderr)", lines.append)
    assert (lines, done) == (["a", "b", "no end"], {"code": 0, "answer": "c\n"})
    with pytest.raises(board.RefusedError, match="too large"):
        run(link, "import sys; [sys.stdout.write('x' * (1 << 20)) for _ in range(80)]")
    assert run(link, "print(1)")["answer"] == "1\n"


def test_program_ends_with_the_connection(tmp_path):
    link = board.AgentConnection(["sh", "-c", board.boot(START)])
    link.ask("open", folder=str(tmp_path / "root"))
    rows = []

    def stop(text):
        rows.append(int(text))
        raise KeyboardInterrupt

    code = "import os, sys, threading; print(os.getpid(), file=sys.stderr); threading.Event().wait()"
    with pytest.raises(KeyboardInterrupt), link:
        run(link, code, stop)
    assert ended(rows[0])


def test_board_reports_its_facts_and_a_host_name_is_never_an_option_of_ssh(server, loopback):
    with board.connect(loopback, server.config) as link:
        assert (link.facts["python"].startswith(SERIES), link.facts["system"]) == (True, "Linux")
    command = board.ssh_words(loopback, server.config)
    assert (command[:3], command[-2:]) == (["ssh", "-F", str(server.config)], ["--", loopback])


def test_command_and_forwardings_of_the_ssh_configuration_are_ignored(server, loopback):
    key = server.folder / f"{loopback}.key"
    forward = f"LocalForward {free_port()} 127.0.0.1:{free_port()}"
    server.host("busy", f"IdentityFile {key}", "RemoteCommand echo other", forward, "LogLevel QUIET", "RequestTTY force")
    with board.connect("busy", server.config) as link:
        assert link.facts["system"] == "Linux"


@pytest.mark.parametrize(
    ("name", "problem"), [("dead", "refuses connections"), ("unknown", "not known here"), ("changed", "not the one that is known")]
)
def test_unreachable_host_and_changed_key_are_reported_and_not_trusted(server, loopback, name, problem):
    hosts = server.folder / f"known-of-{name}"
    kind, key = server.key(f"of-{name}").with_suffix(".key.pub").read_text().split()[:2]
    hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n" if name == "changed" else "")
    before, port = hosts.read_text(), [f"Port {free_port()}"] if name == "dead" else []
    server.host(name, *port, f"IdentityFile {server.folder / loopback}.key", f"UserKnownHostsFile {hosts}", "GlobalKnownHostsFile none")
    with pytest.raises(StretchError, match=f"{name}.*{problem}") as failed:
        board.connect(name, server.config)
    assert (type(failed.value), bool(failed.value.hint), hosts.read_text()) == (StretchError, True, before)


HERE = read_facts("here", facts())
ARM = msgspec.structs.replace(HERE, machine="aarch64")


def test_invalid_facts_unsupported_extras_and_folders_without_wheels_are_refused(tmp_path):
    for message in (None, [], {}, {**facts(), "cores": "many"}):
        with pytest.raises(StretchError, match="cannot be read"):
            read_facts("board", message)
    for extra in ("torch", "dev", "opencI", ""):
        with pytest.raises(UnknownNameError, match="unknown extra for a board"):
            board.requirements((extra,), HERE)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StretchError, match="is no folder with wheels"):
            board.package_name(board.requirements((), HERE), HERE, folder)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pip", "uv"])
def test_wheel_of_a_folder_is_unpacked_to_importable_files(program, tmp_path, monkeypatch):
    present = importlib.util.find_spec
    if program == "uv":
        if not Path(sys.executable).with_name("uv").is_file():
            pytest.skip("uv is not installed")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else present(name))
    elif present("pip") is None:
        pytest.skip("pip is not installed")
    assert ("uv" in board.installer(ARM)[0]) == (program == "uv")
    # a wheel for the board's processor, which may differ from this machine's
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{tag}-{tag}-manylinux_2_17_aarch64"
    with zipfile.ZipFile(tmp_path / f"tiny-1.0-{tag}.whl", "w") as wheel:
        contents = {"METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n", "RECORD": ""}
        contents["WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n"
        contents["RECORD"] = "tiny.py,,\n" + "".join(f"tiny-1.0.dist-info/{name},,\n" for name in contents)
        wheel.writestr("tiny.py", "x = 1\n")
        for name, text in contents.items():
            wheel.writestr(f"tiny-1.0.dist-info/{name}", text)
    with board.package_archive("board", ARM, [Requirement("tiny>=1")], "packages/x", tmp_path) as archive:
        assert "tiny.py" in archive.files
        folder = archive.files["tiny.py"].parent
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"system": "Darwin"}, "runs Darwin"),
        ({"machine": "riscv64"}, "board is riscv64"),
        ({"bits": 32, "machine": "aarch64"}, "aarch64 with a 32-bit Python"),
        ({"python": "3.9.2"}, "has Python 3.9.2, and here is"),
        ({"implementation": "pypy"}, "is pypy"),
        ({"implementation": "cpythont"}, "is cpythont"),
        ({"glibc": ""}, "has no glibc"),
    ],
)
def test_board_that_cannot_have_packages_is_refused_with_the_reason(change, message):
    with pytest.raises(MissingBackendError, match=message) as refused:
        check_facts("board", msgspec.structs.replace(HERE, **change))
    assert refused.value.hint
