"""Whole boards behind a real sshd: this machine with a plain Python, and an aarch64 system under emulation."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from predictors.errors import MissingBackendError, StretchError
from scheduler import Session
from scheduler.boards.line import facts as told_facts
from scheduler.boards.archive import Archive, below
from scheduler.boards.board import Where, explain_trial, open_board
from scheduler.boards.facts import SERIES, read_facts
from scheduler.boards.packages import package_name, requirements
from scheduler.boards.board import connect
from scheduler.bundle.load import load_bundle
from scheduler.cores import available_cores
from tests.scheduler.boards.servers import emulated, ended, script
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


class Heard:
    """Is told what goes on, and does something at some words."""

    def __init__(self, words="", act=lambda: None):
        self.words, self.act, self.said = words, act, []

    def note(self, message):
        self.said.append(message)
        if self.words and self.words in message:
            self.act()

    @contextlib.contextmanager
    def progress(self, what, total=None):
        yield lambda doing="", at=None, total=None: None


@pytest.fixture(scope="module")
def first_aarch64(server, aarch64, on, tiny_bundle, tmp_path_factory):
    """The first run on the aarch64 board."""
    trace = tmp_path_factory.mktemp("aarch64") / "trace.json"
    done = spawn("", "run", tiny_bundle, *QUICK, *on(aarch64), "--trace", trace, "--json")
    assert done.code == 0, done.err + done.out
    return json.loads(done.out), done.err, trace


def events(trace):
    """What a timeline shows but its times: group, processor and name of each measured span, inference by inference."""
    found = json.loads(trace.read_text())["traceEvents"]
    groups = {each["pid"]: each["args"]["name"] for each in found if each["name"] == "process_name"}
    threads = {(each["pid"], each["tid"]): each["args"]["name"] for each in found if each["name"] == "thread_name"}
    spans = [each for each in found if each["ph"] == "X"]
    return sorted((groups[e["pid"]], e["args"]["inference"], threads[e["pid"], e["tid"]], e["cat"], e["name"]) for e in spans)


def order(trace):
    """Subgraphs of each measured inference and processor in the order in which they began."""
    found = json.loads(trace.read_text())["traceEvents"]
    spans = sorted(
        (each for each in found if each["ph"] == "X" and each["pid"] == 1 and each["cat"] == "subgraph"), key=lambda each: each["ts"]
    )
    lanes = {}
    for each in spans:
        lanes.setdefault((each["args"]["inference"], each["tid"]), []).append(each["name"])
    return lanes


def test_json_is_that_of_a_run_here_and_says_where_it_was(first, server, tiny_bundle):
    data, _, trace = first
    here = json.loads(spawn("", "run", tiny_bundle, *QUICK, "--json").out)
    assert list(data) == list(here)
    assert here["on"] is None
    assert data["bundle"] == str(tiny_bundle)
    assert data["trace"] == str(trace)
    assert {key: data["on"][key] for key in ("host", "folder")} == {
        "host": "loopback",
        "folder": str(server.boards["loopback"] / "cache/nn-stretch/board"),
    }
    assert data["processors"].keys() == here["processors"].keys()
    assert data["check"]["stored"] is True
    assert data["max_error"] < 1e-5


def test_first_run_says_what_it_copies(first, server):
    data, said, _ = first
    assert all(size > 0 for size in data["on"]["copied_bytes"].values())
    for what in ("packages and what they need", "nn-stretch", "the bundle"):
        assert f"{what} " in said
    assert "gpu → cpu on core" in said
    # other tests may have come before, whose profiles and copies that broke off have folders of their own
    kept = {name for name in server.kept("loopback") if "/" not in name}
    assert kept - {"profiles", "unfinished"} == {"bundles", "nn-stretch", "packages"}


def test_second_run_copies_nothing(there, server, on, tiny_bundle):
    before = server.kept(there)
    data = json.loads(spawn("", "run", tiny_bundle, *QUICK, *on(there), "--json").out)
    assert data["on"]["copied_bytes"] == {"packages": 0, "nn_stretch": 0, "bundle": 0}
    assert server.kept(there) == before


def test_bundle_that_was_changed_there_is_copied_again(there, server, on, tiny_bundle):
    (kept,) = (server.boards[there] / "cache/nn-stretch/board/bundles").iterdir()
    with (kept / "model.onnx").open("r+b") as stream:
        stream.write(b"damaged")
    data = json.loads(spawn("", "run", tiny_bundle, *QUICK, *on(there), "--json").out)
    assert data["on"]["copied_bytes"]["bundle"] > 0
    assert (kept / "model.onnx").read_bytes() == (tiny_bundle / "model.onnx").read_bytes()


def test_flags_work_as_they_do_here(there, on, tiny_bundle, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 32, 32), np.float32))
    core = available_cores()[0]
    flags = (
        "--map",
        f"gpu=reference,cpu=cpu{core}",
        "--repeat",
        3,
        "--warmup",
        1,
        "--input",
        tmp_path / "x.npy",
        "--csv",
        tmp_path / "spans.csv",
    )
    done = spawn("", "run", tiny_bundle, *flags, *on(there), "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    data = json.loads(done.out)
    assert data["runs"] == 3
    assert (data["processors"]["gpu"]["delegate"], data["processors"]["gpu"]["reason"]) == ("reference", "mapped to reference")
    assert data["csv"] == str(tmp_path / "spans.csv")
    assert (tmp_path / "spans.csv").read_text().startswith("track,inference,name")


def test_work_of_a_processor_left_out_is_told_to_people(there, on, tiny_bundle):
    done = spawn("", "run", tiny_bundle, *QUICK, "--processors", "cpu", *on(there))
    assert done.code == 0
    assert "→ cpu, as --processors asks" in done.err
    assert f"on {there}: " in done.out
    assert "measured there" in done.out


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (("--map", "gpu=cqu1"), 3, "on loopback: unknown delegate `cqu"),
        (("--map", "gpu=cpu4095"), 2, "core 4095"),
        (("--map", "gpu=opencl"), 5, "pyopencl"),
    ],
)
def test_what_fails_there_fails_here_with_the_same_code(there, on, tiny_bundle, flags, code, told):
    done = spawn("", "run", tiny_bundle, *flags, *on(there))
    assert (done.code, told in done.err) == (code, True), done.err


def start(*words):
    """The command line in a process of its own that can be interrupted."""
    command = [sys.executable, "-P", "-c", "from stretch.cli import app\napp()", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def heard(process, words):
    """Read what a process says up to a line with these words."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it never said {words}")


def ssh_of(process):
    """The ssh that a process started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    (found,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "ssh\n"]
    return found


def test_interruption_here_ends_what_runs_there(there, server, on, tiny_bundle):
    running = start("run", tiny_bundle, "--repeat", 100_000, *on(there))
    heard(running, "gpu → cpu")
    (work,) = server.processes(there, b"from stretch.cli import app")
    (agent,) = server.processes(there, b"sys.stdin.buffer.readline")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert ended(work)
    assert ended(agent)
    assert not [name for name in server.kept(there) if name.startswith("unfinished")]


def test_connection_that_is_lost_is_told_of_and_ends_what_runs_there(there, server, on, tiny_bundle, tmp_path):
    running = start("run", tiny_bundle, "--repeat", 100_000, "--trace", tmp_path / "trace.json", *on(there))
    heard(running, "gpu → cpu")
    (work,) = server.processes(there, b"from stretch.cli import app")
    (agent,) = server.processes(there, b"sys.stdin.buffer.readline")
    os.kill(ssh_of(running.pid), signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert f"error: the connection to {there} was lost while `stretch run` was running there" in err
    assert "Traceback" not in err
    assert ended(work)
    assert ended(agent)
    assert not list(tmp_path.iterdir())
    assert not [name for name in server.kept(there) if name.startswith("unfinished")]


def borrow(server, source, target):
    """Give a board the packages of another."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("packages", "nn-stretch"):
        (target / name).symlink_to(server.boards[source] / "cache/nn-stretch/board" / name)


def test_connection_that_is_lost_while_copying_leaves_nothing_there(there, server, tiny_bundle, tmp_path):
    borrow(server, there, tmp_path / "board")
    found = []

    def cut():
        found.extend(server.processes(there, b"sys.stdin.buffer.readline"))
        os.kill(ssh_of(os.getpid()), signal.SIGKILL)

    place = Where(host=there, folder=str(tmp_path / "board"), config=server.config)
    with pytest.raises(StretchError) as lost, open_board(place, Heard("copying the bundle", cut)) as board:
        board.copy_bundle(load_bundle(tiny_bundle))
    assert lost.value.message == f"the connection to loopback was lost while the bundle {tiny_bundle} went there"
    assert "what was copied whole is kept there" in lost.value.hint
    assert ended(found[0])
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == ["nn-stretch", "packages"]


def test_disk_that_is_too_small_is_told_of_before_anything_is_copied(there, server, on, tiny_bundle, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        borrow(server, there, disk)
        done = spawn("", "run", tiny_bundle, *QUICK, *on(there), "--there", disk)
        assert done.code == 1
        assert done.message.startswith(f"loopback has 8.39 MB free in {disk}, which is not enough for the bundle {tiny_bundle}: ")
        assert "--there" in done.hint
        assert sorted(path.name for path in disk.iterdir()) == ["nn-stretch", "packages"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_disk_that_fills_up_while_copying_is_told_of_and_nothing_stays(there, server, on, tiny_bundle):
    plain = server.boards[there] / "bin" / f"python{SERIES}"
    host = server.board("quota", script(server.folder / "quota-python", "ulimit -f 500", f'exec "{plain.resolve()}" "$@"'))
    borrow(server, there, server.boards[host] / "cache/nn-stretch/board")
    done = spawn("", "run", tiny_bundle, *QUICK, *on(host))
    assert done.code == 1
    assert f"there is no room on quota while the bundle {tiny_bundle} went there" in done.message
    assert [name for name in server.kept("quota") if "/" not in name] == ["nn-stretch", "packages"]


def test_folder_there_that_cannot_be_written_is_told_of(there, on, tiny_bundle):
    done = spawn("", "run", tiny_bundle, *QUICK, *on(there), "--there", "/proc/nn-stretch")
    assert done.code == 1
    assert done.message.startswith("on loopback, ")
    assert done.err.count("error:") == 1


def test_profile_is_measured_there_resumed_there_and_written_here(there, server, on, tmp_path):
    flags = ("--name", "pi", "--processors", "cpu[1core]", "--budget", 2, "--out", tmp_path, *on(there))
    # too few for a fit: what was measured waits there
    first = spawn("", "profile", *flags, "--networks", 6)
    assert first.code == 1
    assert "on loopback: there was time for 6 networks" in first.message
    assert "--resume" in first.hint
    again = spawn("", "profile", *flags, "--networks", 6)
    assert again.message == "loopback keeps measurements for `pi` of a run that did not come to its end"
    assert not list(tmp_path.iterdir())
    done = spawn("", "profile", *flags, "--networks", 6, "--resume", "--json", "--quiet")
    assert (done.code, done.err) == (0, ""), done.err + done.out
    data = json.loads(done.out)
    assert (data["file"], data["measurements"]) == (str(tmp_path / "pi.toml"), str(tmp_path / "pi.measurements"))
    assert data["on"]["host"] == there
    assert data["processors"]["cpu[1core]"]["networks"] == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pi.fit.json", "pi.measurements", "pi.toml"]
    told = spawn("", "predict", "tiny_resnet", "--device", tmp_path / "pi.toml", "--json")
    assert json.loads(told.out)["processors"]["cpu"]["latency_ms"] > 0
    assert "profiles/pi" not in server.kept(there)


COMPUTE = """
import sys
import numpy as np
from scheduler import Session
with Session(sys.argv[1]) as session:
    np.save("out.npy", session.run(np.load(sys.argv[2])))
"""


def test_aarch64_is_what_ran_and_its_results_are_those_of_here(first, first_aarch64):
    data, _, _ = first_aarch64
    assert data["on"]["arch"] == "aarch64"
    assert first[0]["on"]["arch"] == os.uname().machine
    assert data["check"]["tensors"] == first[0]["check"]["tensors"]
    # the sample was computed when the bundle was written, here
    assert data["check"]["stored"] is True
    assert data["max_error"] < 1e-5


def test_aarch64_runs_the_same_subgraphs_on_the_same_processors_in_the_same_order(first, first_aarch64):
    assert events(first_aarch64[2]) == events(first[2])
    assert order(first_aarch64[2]) == order(first[2])
    assert first_aarch64[0]["subgraphs_alone_ms"].keys() == first[0]["subgraphs_alone_ms"].keys()


def test_output_of_aarch64_is_close_to_the_output_here(first_aarch64, server, aarch64, tiny_bundle, tmp_path):
    x = np.random.default_rng(3).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with Session(tiny_bundle) as session:
        here = session.run(x)
    np.save(tmp_path / "x.npy", x)
    kept = server.kept(aarch64)
    imports = [name for name in kept if name.startswith(("packages/", "nn-stretch/"))]
    (bundle,) = [name for name in kept if name.startswith("bundles/")]
    with connect(aarch64, server.config) as line:
        root = line.ask("open", folder="")["root"]
        folder = line.ask("scratch")["name"]
        words = ["-P", "-s", "-c", COMPUTE, f"{root}/{bundle}", str(tmp_path / "x.npy")]
        done = line.ask("run", words=words, imports=imports, folder=folder)
        assert done["code"] == 0, done
        there = np.load(Path(root) / folder / "out.npy")
    assert there.dtype == here.dtype
    assert np.abs(there - here).max() <= 1e-5 * np.abs(here).max()


def test_library_that_is_missing_there_is_named(first_aarch64, server, aarch64, aarch64_root, tmp_path):
    bare = tmp_path / "root"
    subprocess.run(["cp", "-al", aarch64_root, bare], check=True)
    for library in bare.rglob("libstdc++.so.6*"):
        library.unlink()
    shutil.rmtree(bare / "proc")
    host = server.board("without", emulated(bare, server.folder / "bare-python"))
    packages = next((server.boards[aarch64] / "cache/nn-stretch/board/packages").iterdir())
    numpy = {name: path for name, path in below(packages, ["__pycache__"]).items() if name.startswith("numpy")}
    with connect(host, server.config) as line:
        line.ask("open", folder="")
        done = line.send("put", Archive("packages/x", numpy).write, name="packages/x", trial=["-c", "import numpy"], replace=False)
    told = explain_trial(host, done["failed"], done["told"])
    assert type(told) is MissingBackendError
    assert told.message == "without lacks the library libstdc++.so.6, which packages need"
    assert server.kept(host) == []


def test_trial_that_crashes_is_told_of_by_its_signal():
    assert explain_trial("b", -11, "").message == "Python on b is ended by signal 11 when it imports the packages: nothing was said"
