"""The opencl delegate and foreign files, and fixes for it; its own answer when it builds them is the witness."""

import onnx
import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.tools.explain.foreign import explain_file, fix_file
from tests.scheduler.tools.explain.files import FOREIGN

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(OpenCLDelegate.unavailable() is not None, reason="no OpenCL device")]


#: First operator that no kernel computes, and what stops it; None where all are computed.
FIRST = {
    "plain": None,
    "own_domain": ("swirl", "domain com.example"),
    # checks before anything is read take no doubles; the file can be written in single precision
    "doubles": ("conv", "the file as a whole"),
    "open_batch": ("conv", "shape [?, 3, 8, 8]"),
    "upsample": ("conv", "opset 9"),
    "best_places": ("best", "operator ArgMax"),
    "determinant": ("det", "operator Det"),
    "two_results": ("top", "operator TopK"),
    "foldable": ("shape", "operator Shape"),
}


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", FOREIGN)
def test_first_unsupported_operator_is_the_one_that_stops_its_own_build(foreign, name):
    result = explain_file(foreign[name], "opencl")
    try:
        OpenCLDelegate().compile(foreign[name])
        said = None
    except StretchError as error:
        said = error.message
    if name in FIRST:
        first = (result.obstacles[0].operator, result.obstacles[0].cause) if result.obstacles else None
        assert first == FIRST[name]
    assert (said is None) == (not result.obstacles)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["open_batch", "upsample", "foldable"])
def test_fixed_file_is_supported_and_equivalent(foreign, tmp_path, name):
    before = foreign[name].read_bytes()
    out = tmp_path / "fixed.onnx"
    result = fix_file(explain_file(foreign[name], "opencl"), "opencl", None, out)
    assert result.fix.file == out
    assert result.fix.max_error < 1e-5
    after = explain_file(out, "opencl")
    assert result.fix.operators == (result.off, after.off)
    assert after.off < result.off
    onnx.checker.check_model(onnx.load(str(out)))
    assert foreign[name].read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["fixed.onnx"]


@pytest.mark.slow
def test_double_that_has_no_kernel_is_written_in_single_precision(foreign, tmp_path):
    result = fix_file(explain_file(foreign["doubles"], "onnxruntime", "cpu"), "onnxruntime", "cpu", tmp_path / "single.onnx")
    assert (result.fix.operators, result.fix.steps) == ((2, 0), ("write doubles in single precision",))
    assert result.fix.max_error < 1e-5
