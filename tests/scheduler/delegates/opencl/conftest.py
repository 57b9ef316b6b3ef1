import pytest

from scheduler.delegates.opencl.device import missing


def pytest_collection_modifyitems(items):
    """Every test of this folder needs pyopencl and a device."""
    reason = None
    for item in items:
        if "delegates/opencl" in str(item.path):
            item.add_marker(pytest.mark.opencl)
            reason = reason or missing() or "there is one"
            if reason != "there is one":
                item.add_marker(pytest.mark.skip(reason=reason))
