import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from predictors.errors import StretchError, UnknownNameError
from scheduler.delegates.process import ProcessDelegate
from scheduler.delegates.process.delegate import ProcessCompiled
from scheduler.runtime.session import Session
from scheduler.shared import describe, shared_like
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


@pytest.mark.slow
def test_child_that_dies_while_it_computes_is_replaced_and_computes_it_again(bundle_dir, before):
    delegate = ProcessDelegate("cpu")
    output = np.zeros((1, 6, 8, 8), np.float32)
    call = delegate.compile(bundle_dir / "stem.onnx").bind([X], [output])
    pid = child_since(before)
    os.kill(pid, signal.SIGSTOP)
    call.enqueue()
    os.kill(pid, signal.SIGKILL)
    call.wait()
    assert np.allclose(output, onnx_runtime.output(bundle_dir / "stem.onnx", X), atol=1e-5)


@pytest.mark.slow
def test_subgraphs_that_are_no_longer_used_do_not_mix_up_those_that_are(bundle_dir, before):
    """A new child is told of those alone that are still there, by the names that they had."""
    delegate = ProcessDelegate("cpu")
    outputs = [np.zeros((1, 6, 8, 8), np.float32) for _ in range(4)]
    calls = [delegate.compile(bundle_dir / "stem.onnx").bind([X * (each + 1)], [output]) for each, output in enumerate(outputs)]
    del calls[0], calls[1]
    gc.collect()
    for _ in range(2):
        os.kill(child_since(before), signal.SIGKILL)
        for call, number in zip(calls, (1, 3), strict=True):
            outputs[number][:] = 0
            call.run()
            assert np.allclose(outputs[number], onnx_runtime.output(bundle_dir / "stem.onnx", X * (number + 1)), atol=1e-4)
        calls.append(delegate.compile(bundle_dir / "stem.onnx").bind([X], [outputs[0]]))
        calls.pop().run()
        assert np.allclose(outputs[0], onnx_runtime.output(bundle_dir / "stem.onnx", X), atol=1e-5)


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


def test_what_the_inner_delegate_refuses_is_said_as_it_says_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(StretchError, match=r"m.onnx"):
        ProcessDelegate().compile(tmp_path / "m.onnx")


def test_unknown_inner_delegate_hints_at_the_closest():
    with pytest.raises(UnknownNameError) as error:
        ProcessDelegate("refrence")
    assert "reference" in error.value.hint


@pytest.mark.slow
def test_inner_delegate_is_a_choice(bundle_dir):
    delegate = ProcessDelegate("reference")
    output = np.zeros((1, 6, 8, 8), np.float32)
    delegate.compile(bundle_dir / "stem.onnx").run([X], [output])
    expected = onnx_runtime.output(bundle_dir / "stem.onnx", X)
    assert np.allclose(output, expected, atol=1e-5)


@pytest.mark.slow
def test_interpreter_that_ends_without_closing_leaves_no_child(bundle_dir):
    code = f"from scheduler.runtime.session import Session; import numpy as np; s = Session({str(bundle_dir)!r}, {{'gpu': 'process'}}); s(np.zeros((1, 3, 8, 8), np.float32))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_close_ends_children_and_descriptors_at_once(bundle_dir):
    def use():
        """One whole life of a session; what it has when it is busy."""
        session = Session(bundle_dir, {"gpu": "process"})
        session(X)
        session.submit(X).result(60)
        busy = children()
        session.close()
        return busy

    use()  # libraries open files of their own once in a process
    gc.collect()
    gc.disable()
    try:
        before = descriptors(), children()
        assert len(use() - before[1]) == 1
        assert (descriptors(), children()) == before
    finally:
        gc.enable()


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
def test_two_who_wait_for_one_answer_both_end(bundle_dir, before):
    delegate = ProcessDelegate("cpu")
    output = np.zeros((1, 6, 8, 8), np.float32)
    call = delegate.compile(bundle_dir / "stem.onnx").bind([X], [output])
    waits = [threading.Thread(target=call.wait, daemon=True) for _ in range(2)]
    pid = child_since(before)
    os.kill(pid, signal.SIGSTOP)
    call.enqueue()
    for wait in waits:
        wait.start()
    os.kill(pid, signal.SIGCONT)
    for wait in waits:
        wait.join(60)
    assert not any(wait.is_alive() for wait in waits)
    assert np.allclose(output, onnx_runtime.output(bundle_dir / "stem.onnx", X), atol=1e-5)


def test_interrupted_wait_is_gone_on_with(bundle_dir, before):
    with Session(bundle_dir, {"gpu": "process"}) as session:
        session(X)
        child = child_since(before)
        os.kill(child, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session(X)
        os.kill(child, signal.SIGCONT)
        for number in range(3):
            x = X * (number + 1)
            want = onnx_runtime.output(bundle_dir / "model.onnx", x)
            assert np.allclose(session(x), want, atol=1e-5)


@pytest.mark.slow
def test_buffers_in_shared_memory_are_not_copied(bundle_dir):
    delegate = ProcessDelegate("cpu")
    x, output = shared_like([X, np.zeros((1, 6, 8, 8), np.float32)])
    call = delegate.compile(bundle_dir / "stem.onnx").bind([x], [output])
    assert call.copied_bytes == 0
    x[:] = X
    call.run()
    assert np.array_equal(output, onnx_runtime.output(bundle_dir / "stem.onnx", X))


@pytest.mark.slow
def test_buffers_elsewhere_are_copied(bundle_dir):
    output = np.zeros((1, 6, 8, 8), np.float32)
    call = ProcessDelegate("cpu").compile(bundle_dir / "stem.onnx").bind([X], [output])
    assert call.copied_bytes == X.nbytes + output.nbytes


@pytest.mark.slow
def test_session_gives_the_child_its_own_memory(bundle_dir, before, monkeypatch):
    """Each tensor of a session is in a file that the child has mapped, and no run copies any."""
    bound, bind = [], ProcessCompiled.bind
    monkeypatch.setattr(ProcessCompiled, "bind", lambda *given: bound.append(bind(*given)) or bound[-1])
    with Session(bundle_dir, {"gpu": "process"}) as session:
        assert np.allclose(session(X), whole(bundle_dir), atol=1e-6)
        assert np.allclose(session.submit(X).result(60), whole(bundle_dir), atol=1e-6)
        assert bound
        assert [call.copied_bytes for call in bound] == [0] * len(bound)
        maps = Path(f"/proc/{child_since(before)}/maps").read_text()
        files = {int(line.split()[4]) for line in maps.splitlines() if "memfd:nn-stretch" in line}
        mine = {os.stat(describe(array)["file"]).st_ino for call in bound for array in call._shared}
        assert mine <= files
        bound.clear()


def test_results_outlive_the_child_and_the_session(bundle_dir, before):
    with Session(bundle_dir, {"gpu": "process"}) as session:
        first, tensors = session(X), session.tensors(X)
        os.kill(child_since(before), signal.SIGKILL)
        second = session(X * 2)
    del session
    gc.collect()
    assert np.allclose(first, whole(bundle_dir), atol=1e-6)
    assert np.allclose(second, onnx_runtime.output(bundle_dir / "model.onnx", X * 2), atol=1e-5)
    assert all(np.isfinite(each).all() for each in tensors.values())


@pytest.mark.slow
def test_child_lets_go_of_memory_that_nobody_uses(bundle_dir, before):
    delegate = ProcessDelegate("cpu")
    compiled = delegate.compile(bundle_dir / "stem.onnx")
    pid = child_since(before)

    def mapped():
        return Path(f"/proc/{pid}/maps").read_text().count("memfd:nn-stretch")

    def use():
        call = compiled.bind([X], [np.zeros((1, 6, 8, 8), np.float32)])
        call.run()

    use()
    gc.collect()
    use()
    known = mapped()
    for _ in range(5):
        gc.collect()
        use()
    gc.collect()
    assert mapped() <= known
