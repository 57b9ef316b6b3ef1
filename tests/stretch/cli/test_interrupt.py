"""Real processes with a real plug-in whose calls never return, and a real Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler.cores import available_cores
from tests.stretch.cli.commands import spawn

HANG = '''
import ctypes
import sys
import threading

from scheduler.delegates.base import AsyncInvocation, Invocation
from scheduler.delegates.null import NullDelegate


def say():
    sys.stderr.write("hanging\\n")
    sys.stderr.flush()


def tell(mutex):
    """Say so once somebody waits in the kernel for the mutex: its first number is 2 then."""
    while int.from_bytes(mutex[:4], sys.byteorder) != 2:
        pass
    say()


class Blocking(Invocation):
    def run(self):
        """Lock a mutex that is locked: no signal ends that."""
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        threading.Thread(target=tell, args=(mutex,), daemon=True).start()
        libc.pthread_mutex_lock(mutex)


class Waiting(AsyncInvocation):
    def enqueue(self):
        pass

    def wait(self):
        say()
        threading.Event().wait()


class Native(NullDelegate):
    summary, made = "never returns", Blocking

    def compile(self, model):
        compiled = super().compile(model)
        compiled.bind = lambda inputs, outputs: self.made()
        return compiled


class Async(Native):
    asynchronous, made = True, Waiting
'''

KINDS = {"hang": "Native", "hang_async": "Async"}


@pytest.fixture
def plugin(tmp_path):
    """Environment in which the hanging delegates are installed."""
    site = tmp_path / "site"
    info = site / "acme_hang-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_hang.py").write_text(HANG)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-hang\nVersion: 1.0\n")
    lines = [f"{name} = acme_hang:{built}" for name, built in KINDS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[nn_stretch.delegates]", *lines, ""]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}


@pytest.fixture
def start(bundle_dir, plugin):
    """Function that starts `stretch run` of a bundle; processes that still run at the end of the test are killed."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"
    )
    started = []

    def run(*args):
        command = [sys.executable, "-c", code, "run", str(bundle_dir), *args]
        started.append(subprocess.Popen(command, env=plugin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        for pid in children(process):
            os.kill(pid, signal.SIGKILL)  # a stopped child would hold the pipes open
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def children(process):
    """Process ids of the delegates' child processes, without children that have not started their program yet."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)]
    stdout = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [int(line.split()[0]) for line in stdout.splitlines() if "process import child" in line]


def read_until(process, line):
    assert line in iter(process.stderr.readline, ""), f"it ended with {process.wait()}"


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_ended(pid):
    """Whether a killed process ends within 30 s."""
    end = time.monotonic() + 30
    while alive(pid) and time.monotonic() < end:
        os.sched_yield()
    return not alive(pid)


#: A core that this process may use.
CORE = available_cores()[0]

MAPPINGS = [
    [f"cpu=hang{CORE}", "gpu=null"],  # on the main thread
    *([f"cpu={name}", "gpu=null"] for name in KINDS),
    *([f"gpu={name}"] for name in KINDS),
    *([f"gpu={name}", "cpu=process"] for name in KINDS),
]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("mapping", MAPPINGS, ids=" ".join)
def test_interrupted_run_with_a_hanging_delegate_ends_as_interrupted_and_so_do_its_children(start, mapping):
    process = start(*(arg for pair in mapping for arg in ("--map", pair)))
    read_until(process, "hanging\n")
    result = children(process)
    assert len(result) == ("cpu=process" in mapping)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("error: interrupted\n")
    assert "Traceback" not in err
    assert all(has_ended(pid) for pid in result)


def test_interrupt_ends_a_stopped_child(start):
    process = start("--map", "gpu=process", "--repeat", "100000")
    while not (result := children(process)):
        assert process.poll() is None, process.stderr.read()
    os.kill(result[0], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert has_ended(result[0])


#: A program that sends Ctrl-C to itself when it is about to import a module.
AT_IMPORT = """
import os, signal, sys
sys.argv[0] = "stretch"
signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {0!r}:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize(
    ("module", "json"), [("typer", True), ("numpy", False), ("stretch.cli.predict", False), ("stretch.api.verbs", True)]
)
def test_ctrl_c_while_the_command_line_is_imported_ends_with_a_sentence_and_its_code(module, json):
    done = spawn(AT_IMPORT.format(module), "predict", "tiny_resnet", "--device", "mi9", *(["--json"] if json else []))
    assert done.code == 130
    if json:
        assert (done.data["error"], done.data["schema"]) == ("interrupted", 1)
    else:
        assert (done.out, done.err) == ("", "error: interrupted\n")
