import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from predictors.errors import StretchError, UnknownNameError
from scheduler.delegates.process import ProcessDelegate
from scheduler.session import Session
from tests import onnx_runtime

X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def whole(path):
    return onnx_runtime.output(path / "model.onnx", X)


def children():
    found = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return [line for line in found.splitlines() if "process_child" in line]


def test_branch_in_another_process_gives_the_same_numbers_and_goes_with_its_session(bundle_dir):
    before = children()
    with Session(bundle_dir, {"gpu": "process"}) as session:
        assert session.placements["gpu"].dispatch == "async"
        assert np.allclose(session(X), whole(bundle_dir), atol=1e-6)
        assert np.allclose(session.submit(X).result(60), whole(bundle_dir), atol=1e-6)
        assert len(children()) == len(before) + 1
    del session
    gc.collect()
    assert children() == before


def test_child_that_dies_is_one_clear_error(bundle_dir):
    with Session(bundle_dir, {"gpu": "process"}) as session:
        session(X)
        killed = subprocess.run(["pkill", "-KILL", "-P", str(os.getpid()), "-f", "process_child"])
        assert killed.returncode == 0
        with pytest.raises(
            StretchError, match=r"`s1.gpu` failed on processor `gpu` \(delegate `process`\): the process of the delegate has ended"
        ):
            session(X)
        with pytest.raises(StretchError, match="has ended"):
            session(X)


def test_what_the_inner_delegate_refuses_is_said_as_it_says_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(StretchError, match=r"m.onnx"):
        ProcessDelegate().compile(tmp_path / "m.onnx")


def test_unknown_inner_delegate_hints_at_the_closest():
    with pytest.raises(UnknownNameError) as error:
        ProcessDelegate("refrence")
    assert "reference" in error.value.hint


def test_inner_delegate_is_a_choice(bundle_dir):
    delegate = ProcessDelegate("reference")
    output = np.zeros((1, 6, 8, 8), np.float32)
    delegate.compile(bundle_dir / "stem.onnx").run([X], [output])
    expected = onnx_runtime.output(bundle_dir / "stem.onnx", X)
    assert np.allclose(output, expected, atol=1e-5)


def test_interpreter_that_ends_without_closing_leaves_no_child(bundle_dir):
    code = f"from scheduler.session import Session; import numpy as np; s = Session({str(bundle_dir)!r}, {{'gpu': 'process'}}); s(np.zeros((1, 3, 8, 8), np.float32))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
