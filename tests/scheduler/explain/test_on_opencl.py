"""The opencl delegate asked about foreign files; what it says when it is to build them is the witness."""

import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl.delegate import OpenCLDelegate
from scheduler.explain.foreign import explain_file
from tests.scheduler.explain.files import FOREIGN

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(OpenCLDelegate.unavailable() is not None, reason="no OpenCL device")]

#: First operator that no kernel computes, and what stops it; None where all are computed.
FIRST = {
    "plain": None,
    "own_domain": ("swirl", "domain com.example"),
    "doubles": None,
    "open_batch": ("conv", "shape [?, 3, 8, 8]"),
    "upsample": ("conv", "opset 9"),
    "best_places": ("best", "operator ArgMax"),
    "determinant": ("det", "operator Det"),
    "two_results": ("top", "operator TopK"),
    "foldable": ("shape", "operator Shape"),
}


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", FOREIGN)
def test_first_unsupported_operator_is_the_one_that_stops_its_own_build(foreign, name):
    found = explain_file(foreign[name], "opencl")
    try:
        OpenCLDelegate().build(foreign[name])
        said = None
    except StretchError as error:
        said = error.message
    if name in FIRST:
        first = (found.obstacles[0].operator, found.obstacles[0].cause) if found.obstacles else None
        assert first == FIRST[name]
    assert (said is None) == (not found.obstacles)
