"""Whole boards behind a real sshd: this machine with a plain Python, and an aarch64 system under emulation."""

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
def on(server):
    """Flags that name a board of the server."""
    return lambda host: ("--on", host, "--ssh-config", server.config)


@pytest.fixture(scope="module")
def first(server, loopback, on, tiny_bundle, tmp_path_factory):
    """The first run on the loopback board, which gets what a profile needs as well."""
    trace = tmp_path_factory.mktemp("first") / "trace.json"
    done = spawn("", "run", tiny_bundle, *QUICK, *on(loopback), "--extras", "fit", "--trace", trace, "--json")
    assert done.code == 0, done.err + done.out
    return json.loads(done.out), done.err, trace


@pytest.fixture(scope="module")
def there(first, loopback, server):
    """The loopback board, with everything copied; its packages are those of the base install, too."""
    packages = server.boards[loopback] / "cache/nn-stretch/board/packages"
    (whole,) = packages.iterdir()
    facts = read_facts("here", told_facts())
    (packages / package_name(requirements((), facts), facts, None).rpartition("/")[2]).symlink_to(whole)
    return loopback


def test_json_is_that_of_a_run_here_and_says_where_it_was(first, server, tiny_bundle):
    data, _, trace = first
    here = json.loads(spawn("", "run", tiny_bundle, *QUICK, "--json").out)
    assert (list(data), here["on"]) == (list(here), None)
    assert (data["bundle"], data["trace"]) == (str(tiny_bundle), str(trace))
    assert (data["on"]["host"], data["on"]["folder"]) == ("loopback", str(server.boards["loopback"] / "cache/nn-stretch/board"))
    assert (data["processors"].keys(), data["check"]["stored"]) == (here["processors"].keys(), True)
    assert data["max_error"] < 1e-5


def test_second_run_copies_nothing(there, server, on, tiny_bundle):
    before = server.kept(there)
    data = json.loads(spawn("", "run", tiny_bundle, *QUICK, *on(there), "--json").out)
    assert data["on"]["copied_bytes"] == {"packages": 0, "nn_stretch": 0, "bundle": 0}
    assert server.kept(there) == before


def test_aarch64_system_computes_what_the_bundle_states(server, aarch64, on, tiny_bundle):
    done = spawn("", "run", tiny_bundle, *QUICK, *on(aarch64), "--json")
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
def test_what_fails_there_fails_here_with_the_same_code(there, on, tiny_bundle, flags, code, message):
    done = spawn("", "run", tiny_bundle, *flags, *on(there))
    assert (done.code, message in done.err) == (code, True), done.err


@pytest.fixture
def running(there, server, on, tiny_bundle, tmp_path):
    """A long run that is being measured, and the processes of the board: its work and its agent."""
    words = ("run", tiny_bundle, "--repeat", 100_000, "--trace", tmp_path / "trace.json", *on(there))
    command = [sys.executable, "-P", "-c", "from stretch.cli import app\napp()", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert any("measuring " in line for line in process.stderr)
    pids = [server.processes(there, words) for words in (b"from stretch.cli import app", b"sys.stdin.buffer.readline")]
    assert [len(some) for some in pids] == [1, 1]
    yield process
    # nothing of it is left there or here
    assert all(ended(pid) for some in pids for pid in some)
    assert not [name for name in server.kept(there) if name.startswith("unfinished")]
    assert not list(tmp_path.iterdir())


def test_interruption_here_ends_what_runs_there(running):
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err.splitlines()[-1]) == (130, "", "error: interrupted")


def test_connection_that_is_lost_is_told_of_and_ends_what_runs_there(running, there):
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (ssh,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "ssh\n"]
    os.kill(ssh, signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in err) == (1, False)
    assert f"error: the connection to {there} was lost" in err


def test_disk_that_is_too_small_is_told_of_before_anything_is_copied(there, server, on, tiny_bundle, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        for name in ("packages", "nn-stretch"):
            (disk / name).symlink_to(server.boards[there] / "cache/nn-stretch/board" / name)
        done = spawn("", "run", tiny_bundle, *QUICK, *on(there), "--there", disk)
        assert (done.code, f"8.39 MB free in {disk}" in done.message, "--there" in done.hint) == (1, True, True)
        assert sorted(path.name for path in disk.iterdir()) == ["nn-stretch", "packages"]
    finally:
        subprocess.run(["umount", disk], check=True)
