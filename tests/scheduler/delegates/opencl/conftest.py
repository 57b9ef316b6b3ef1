import pytest

from scheduler.delegates.opencl.device import unavailable_reason


def pytest_collection_modifyitems(items):
    """Mark every test of this folder, which needs pyopencl and a device."""
    reason = None
    for item in items:
        if "delegates/opencl" in str(item.path):
            item.add_marker(pytest.mark.opencl)
            reason = reason or unavailable_reason() or "there is one"
            if reason != "there is one":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def added_template():
    """`add_template`, undone after the test."""
    from scheduler.delegates.opencl import device, templates

    saved, before = dict(templates.TEMPLATES), list(device.FOLDERS)
    yield templates.add_template
    templates.TEMPLATES.clear()
    templates.TEMPLATES.update(saved)
    device.FOLDERS[:] = before


@pytest.fixture(autouse=True)
def no_tuned_schedules(tmp_path_factory, monkeypatch):
    """Hide this machine's tuned schedules from the tests."""
    folder = tmp_path_factory.mktemp("tuning")
    monkeypatch.setattr("scheduler.tuning.tuning_folder", lambda: folder)
