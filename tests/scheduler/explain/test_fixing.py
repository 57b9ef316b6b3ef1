"""Automatic fixes of ONNX files."""

import onnx
import pytest

from predictors.errors import UsageError
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.explain.fixing import fix_file
from scheduler.explain.foreign import explain_file

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(OpenCLDelegate.unavailable() is not None, reason="no OpenCL device")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["open_batch", "upsample", "foldable"])
def test_fixed_file_is_supported_and_equivalent(foreign, tmp_path, name):
    before = foreign[name].read_bytes()
    out = tmp_path / "fixed.onnx"
    found = fix_file(explain_file(foreign[name], "opencl"), "opencl", None, out)
    assert found.fix.file == out
    assert found.fix.max_error < 1e-5
    after = explain_file(out, "opencl")
    assert found.fix.operators == (found.off, after.off)
    assert after.off < found.off
    onnx.checker.check_model(onnx.load(str(out)))
    assert foreign[name].read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["fixed.onnx"]


def test_double_that_has_no_kernel_is_written_in_single_precision(foreign, tmp_path):
    found = fix_file(explain_file(foreign["doubles"], "onnxruntime", "cpu"), "onnxruntime", "cpu", tmp_path / "single.onnx")
    assert (found.fix.operators, found.fix.steps) == ((2, 0), ("write doubles in single precision",))
    assert found.fix.max_error < 1e-5


def test_existing_file_is_not_overwritten(foreign, tmp_path):
    (tmp_path / "m.onnx").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        fix_file(explain_file(foreign["foldable"], "opencl"), "opencl", None, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_text() == "mine"
