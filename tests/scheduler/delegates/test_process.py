"""Subgraphs in another process."""

import gc
import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from predictors.errors import StretchError, UnknownNameError
from scheduler.delegates.process import ChildProcess, GoneError, ProcessDelegate, Server, serve
from scheduler.runtime.session import Session
from tests.scheduler.doubles import numbers, whole

X = numbers()


def children():
    """Processes of delegates; other tests may keep some of theirs."""
    stdout = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return {int(line.split()[0]) for line in stdout.splitlines() if "process import child" in line}


@pytest.fixture
def before():
    """The processes that were there before the test, without those that only wait to be collected."""
    gc.collect()
    return children()


def child_since(before):
    """The one process that came since."""
    (pid,) = children() - before
    return pid


@pytest.mark.slow
def test_branch_in_another_process_gives_the_same_numbers_and_goes_with_its_session(bundle_dir, before):
    with Session(bundle_dir, {"gpu": "process"}) as session:
        assert session.placements["gpu"].dispatch == "async"
        assert np.allclose(session(X), whole(bundle_dir, X), atol=1e-6)
        assert np.allclose(session.submit(X).result(60), whole(bundle_dir, X), atol=1e-6)
        child = child_since(before)
    del session
    gc.collect()
    assert child not in children()


@pytest.mark.slow
def test_child_that_dies_is_replaced_and_no_inference_is_lost(bundle_dir, before):
    with Session(bundle_dir, {"gpu": "process"}) as session:
        session(X)
        for number in range(3):
            os.kill(child_since(before), signal.SIGKILL)
            x = X * (number + 1)
            assert np.allclose(session(x), whole(bundle_dir, x), atol=1e-5)
            assert np.allclose(session.submit(x).result(60), whole(bundle_dir, x), atol=1e-5)
        child = child_since(before)
    assert child not in children()


def test_child_that_dies_again_and_again_is_one_clear_error(bundle_dir, before, tmp_path):
    file = tmp_path / "stem.onnx"
    file.write_bytes((bundle_dir / "stem.onnx").read_bytes())
    delegate = ProcessDelegate("cpu")
    call = delegate.compile(file).bind([X], [np.zeros((1, 6, 8, 8), np.float32)])
    file.unlink()
    os.kill(child_since(before), signal.SIGKILL)
    with pytest.raises(StretchError, match=r"stem.onnx"):
        call.run()
    delegate.close()
    with pytest.raises(StretchError, match="closed"):
        call.run()


def test_unknown_inner_delegate_hints_at_the_closest():
    with pytest.raises(UnknownNameError) as error:
        ProcessDelegate("refrence")
    assert "reference" in error.value.hint


@pytest.mark.slow
def test_interpreter_that_ends_without_closing_leaves_no_child(bundle_dir):
    code = f"from scheduler.runtime.session import Session; import numpy as np; s = Session({str(bundle_dir)!r}, {{'gpu': 'process'}}); s(np.zeros((1, 3, 8, 8), np.float32))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("way", ["run", "submit"])
def test_child_that_hangs_is_ended_after_its_time_and_the_session_goes_on(bundle_dir, before, way):
    with Session(bundle_dir, {"gpu": "process"}, time_limit=3) as session:
        run = session if way == "run" else lambda x: session.submit(x).result(60)
        run(X)
        os.kill(child_since(before), signal.SIGSTOP)
        with pytest.raises(StretchError, match=r"`s1.gpu` failed on processor `gpu` \(delegate `process`\): it did not end within 3 s"):
            run(X)
        assert np.allclose(run(X), whole(bundle_dir, X), atol=1e-6)
    assert children() <= before


@pytest.fixture
def line():
    result = ChildProcess("reference", ())
    yield result
    result.end()


def test_nothing_is_asked_of_what_was_closed(line):
    line.end()
    with pytest.raises(GoneError, match="closed"):
        line.make(do="compile", model="x.onnx")


def test_a_failure_is_an_answer_and_the_next_command_is_served(bundle_dir):
    commands = [
        {"do": "compile", "model": "nowhere.onnx", "key": 0, "number": 1},
        {"do": "compile", "model": str(bundle_dir / "stem.onnx"), "key": 1, "number": 2},
    ]
    answers = io.BytesIO()
    serve(Server("reference", ()), io.BytesIO(b"".join(json.dumps(c).encode() + b"\n" for c in commands)), answers)
    first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert "nowhere.onnx" in first["error"]
    assert first["number"] == 1
    assert second == {"number": 2, "inputs": [["x", [1, 3, 8, 8]]], "outputs": [["t0", [1, 6, 8, 8]]]}


def test_unknown_command_is_refused():
    with pytest.raises(StretchError, match="does not know"):
        Server("reference", ()).handle({"do": "dance"})
