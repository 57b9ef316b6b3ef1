"""Changes that help: offered, compared and written."""

import onnx
import pytest

from predictors.errors import UsageError
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.explain.foreign import explain_file
from scheduler.explain.mended import mend_file

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(OpenCLDelegate.unavailable() is not None, reason="no OpenCL device")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["open_batch", "upsample", "foldable"])
def test_change_that_is_written_is_taken_and_computes_the_same(foreign, tmp_path, name):
    before = foreign[name].read_bytes()
    out = tmp_path / "mended.onnx"
    found = mend_file(explain_file(foreign[name], "opencl"), "opencl", None, out)
    assert found.fix.file == out
    assert found.fix.max_error < 1e-5
    after = explain_file(out, "opencl")
    assert found.fix.operators == (found.off, after.off)
    assert after.off < found.off
    onnx.checker.check_model(onnx.load(str(out)))
    assert foreign[name].read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["mended.onnx"]


@pytest.mark.slow
def test_what_no_change_helps_is_offered_none(foreign):
    assert mend_file(explain_file(foreign["determinant"], "opencl"), "opencl", None).fix is None


def test_double_that_has_no_kernel_is_written_in_single_precision(foreign, tmp_path):
    found = mend_file(explain_file(foreign["doubles"], "onnxruntime", "cpu"), "onnxruntime", "cpu", tmp_path / "single.onnx")
    assert (found.fix.operators, found.fix.steps) == ((2, 0), ("write doubles in single precision",))
    assert found.fix.max_error < 1e-5


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("name", "problem"), [("plain", "nothing stops it"), ("determinant", "no change that is known helps")])
def test_asking_for_a_file_where_there_is_no_change_is_refused(foreign, tmp_path, name, problem):
    with pytest.raises(UsageError, match=problem):
        mend_file(explain_file(foreign[name], "opencl"), "opencl", None, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_file_that_is_there_is_not_overwritten(foreign, tmp_path):
    (tmp_path / "m.onnx").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        mend_file(explain_file(foreign["foldable"], "opencl"), "opencl", None, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_text() == "mine"
