"""Boards behind a real sshd: this machine with a plain Python, and an aarch64 system under emulation."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.tools.boards.agent import facts as told_facts
from scheduler.tools.boards.board import package_name, requirements
from scheduler.tools.boards.facts import read_facts
from tests.scheduler.tools.boards.servers import ended
from tests.stretch.cli.commands import spawn

pytestmark = pytest.mark.slow

QUICK = ("--repeat", 2, "--warmup", 0)


@pytest.fixture(scope="module")
def board_flags(server):
    """Function that returns the flags for a board of the server."""
    return lambda host: ("--on", host, "--ssh-config", server.config)


@pytest.fixture(scope="module")
def first_run(server, loopback, board_flags, tiny_bundle, tmp_path_factory):
    """JSON, standard error and trace of the first run on the loopback board, which also gets the extra `fit`."""
    trace = tmp_path_factory.mktemp("first") / "trace.json"
    done = spawn("", "run", tiny_bundle, *QUICK, *board_flags(loopback), "--extras", "fit", "--trace", trace, "--json")
    assert done.code == 0, done.err + done.out
    return json.loads(done.out), done.err, trace


@pytest.fixture(scope="module")
def board(first_run, loopback, server):
    """The loopback board after all copies; its packages also serve as the base install."""
    packages = server.boards[loopback] / "cache/nn-stretch/board/packages"
    (whole,) = packages.iterdir()
    facts = read_facts("here", told_facts())
    (packages / package_name(requirements((), facts), facts, None).rpartition("/")[2]).symlink_to(whole)
    return loopback


def test_json_of_a_board_has_the_keys_of_a_local_run_and_names_the_board(first_run, server, tiny_bundle):
    data, _, trace = first_run
    local = json.loads(spawn("", "run", tiny_bundle, *QUICK, "--json").out)
    assert (list(data), local["on"]) == (list(local), None)
    assert (data["bundle"], data["trace"]) == (str(tiny_bundle), str(trace))
    assert (data["on"]["host"], data["on"]["folder"]) == ("loopback", str(server.boards["loopback"] / "cache/nn-stretch/board"))
    assert (data["processors"].keys(), data["check"]["stored"]) == (local["processors"].keys(), True)
    assert data["max_error"] < 1e-5


def test_second_run_copies_nothing(board, server, board_flags, tiny_bundle):
    before = server.kept(board)
    data = json.loads(spawn("", "run", tiny_bundle, *QUICK, *board_flags(board), "--json").out)
    assert data["on"]["copied_bytes"] == {"packages": 0, "nn_stretch": 0, "bundle": 0}
    assert server.kept(board) == before


def test_aarch64_system_computes_the_stored_outputs_of_the_bundle(server, aarch64, board_flags, tiny_bundle):
    done = spawn("", "run", tiny_bundle, *QUICK, *board_flags(aarch64), "--json")
    assert done.code == 0, done.err + done.out
    data = json.loads(done.out)
    assert data["on"]["host"] == "aarch64"
    assert data["check"]["stored"] is True
    assert data["max_error"] < 1e-4


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--map", "gpu=cqu1"), 3, "on loopback: unknown delegate `cqu"),
        (("--map", "gpu=cpu4095"), 2, "core 4095"),
        (("--map", "gpu=opencl"), 5, "pyopencl"),
    ],
)
def test_failure_on_the_board_has_its_exit_code_here(board, board_flags, tiny_bundle, flags, code, message):
    done = spawn("", "run", tiny_bundle, *flags, *board_flags(board))
    assert (done.code, message in done.err) == (code, True), done.err


@pytest.fixture
def running(board, server, board_flags, tiny_bundle, tmp_path):
    """A long run during its measurement; afterwards, asserts that the board's processes have ended."""
    arguments = ("run", tiny_bundle, "--repeat", 100_000, "--trace", tmp_path / "trace.json", *board_flags(board))
    command = [sys.executable, "-P", "-c", "from stretch.cli import app\napp()", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert any("measuring " in line for line in process.stderr)
    pids = [server.processes(board, text) for text in (b"from stretch.cli import app", b"sys.stdin.buffer.readline")]
    assert [len(ids) for ids in pids] == [1, 1]
    yield process
    # no process and no file is left on either side
    assert all(ended(pid) for ids in pids for pid in ids)
    assert not [name for name in server.kept(board) if name.startswith("unfinished")]
    assert not list(tmp_path.iterdir())


def test_local_interrupt_ends_the_run_on_the_board(running):
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err.splitlines()[-1]) == (130, "", "error: interrupted")


def test_lost_connection_is_reported_and_ends_the_run_on_the_board(running, board):
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (ssh,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "ssh\n"]
    os.kill(ssh, signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in err) == (1, False)
    assert f"error: the connection to {board} was lost" in err


def test_disk_that_is_too_small_is_reported_before_any_copy(board, server, board_flags, tiny_bundle, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        for name in ("packages", "nn-stretch"):
            (disk / name).symlink_to(server.boards[board] / "cache/nn-stretch/board" / name)
        done = spawn("", "run", tiny_bundle, *QUICK, *board_flags(board), "--there", disk)
        assert (done.code, f"8.39 MB free in {disk}" in done.message, "--there" in done.hint) == (1, True, True)
        assert sorted(path.name for path in disk.iterdir()) == ["nn-stretch", "packages"]
    finally:
        subprocess.run(["umount", disk], check=True)
