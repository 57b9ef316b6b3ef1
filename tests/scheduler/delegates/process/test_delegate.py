import gc
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from predictors.errors import StretchError, UnknownNameError
from scheduler.delegates.process import ProcessDelegate
from scheduler.runtime.session import Session
from scheduler.shared import shared_like
from tests import onnx_runtime

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def whole(path):
    return onnx_runtime.output(path / "model.onnx", X)


def children():
    """Processes of delegates; other tests may keep some of theirs."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return {int(line.split()[0]) for line in found.splitlines() if "process.child" in line}


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
        assert np.allclose(session(X), whole(bundle_dir), atol=1e-6)
        assert np.allclose(session.submit(X).result(60), whole(bundle_dir), atol=1e-6)
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
            assert np.allclose(session(x), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-5)
            assert np.allclose(session.submit(x).result(60), onnx_runtime.output(bundle_dir / "model.onnx", x), atol=1e-5)
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


@pytest.mark.slow
def test_session_that_cannot_be_made_leaves_no_child_behind(bundle_dir, before):
    last = json.loads((bundle_dir / "bundle.json").read_text())["subgraphs"][-1]
    (bundle_dir / last["file"]).write_bytes(b"no model")
    with pytest.raises(StretchError):
        Session(bundle_dir, {"gpu": "process", "cpu": "process"})
    assert children() <= before


def test_child_that_hangs_is_ended_after_its_time_and_the_session_goes_on(bundle_dir, before):
    with Session(bundle_dir, {"gpu": "process"}, time_limit=0.5) as session:
        for run in (session, lambda x: session.submit(x).result(60)):
            run(X)
            os.kill(child_since(before), signal.SIGSTOP)
            with pytest.raises(
                StretchError, match=r"`s1.gpu` failed on processor `gpu` \(delegate `process`\): it did not end within 0.5 s"
            ):
                run(X)
            assert np.allclose(run(X), whole(bundle_dir), atol=1e-6)
    assert children() <= before


@pytest.mark.slow
def test_buffers_in_shared_memory_are_not_copied(bundle_dir):
    delegate = ProcessDelegate("cpu")
    x, output = shared_like([X, np.zeros((1, 6, 8, 8), np.float32)])
    call = delegate.compile(bundle_dir / "stem.onnx").bind([x], [output])
    assert call.copied_bytes == 0
    x[:] = X
    call.run()
    assert np.array_equal(output, onnx_runtime.output(bundle_dir / "stem.onnx", X))
