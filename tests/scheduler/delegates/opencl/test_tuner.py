import pytest

from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.tuner import ScheduleTuner, Tuned, cached_schedules, entries, open_cache
from tests.scheduler.delegates.opencl import networks


@pytest.fixture
def few(monkeypatch):
    """Measure two candidates, so that few kernels are built."""
    before = ScheduleTuner.__init__
    monkeypatch.setattr(ScheduleTuner, "__init__", lambda self, *a, **k: before(self, *a, **k | {"top": 2, "rounds": 3}))


def test_tuned_schedules_are_kept_and_taken_by_the_next_compilation(tmp_path, few):
    path = networks.residual_block(tmp_path / "m.onnx")
    found = OpenCLDelegate().tune(path, 60)
    assert {each.kernel for each in found} == {"conv", "product", "winograd"}
    assert all(each.after_ms <= each.before_ms for each in found)
    known = cached_schedules(open_cache(open_device(()), False))
    assert known == {(each.kernel, each.shape): each.choice for each in found}
    winograd = next(each for each in found if each.kernel == "winograd")
    assert ("winograd_in" in networks.kernels(path)) == bool(winograd.choice["USE"])
    assert networks.error(path) <= 1e-5


def test_what_is_known_is_not_measured_again(tmp_path, few):
    path = networks.residual_block(tmp_path / "m.onnx")
    assert OpenCLDelegate().tune(path, 60)
    assert OpenCLDelegate().tune(path, 60) == []


def test_spent_budget_begins_no_kernel(tmp_path):
    assert OpenCLDelegate().tune(networks.residual_block(tmp_path / "m.onnx"), 0) == []


def test_schedule_of_another_version_of_a_kernel_is_not_taken():
    cache = open_cache(open_device(()), False)
    found = Tuned("conv", "shape", 2.0, 1.0, {"VW": 6}, 2)
    cache.save(entries([found]))
    assert cached_schedules(cache) == {("conv", "shape"): {"VW": 6}}
    (entry,) = cache.entries("schedule")
    other = open_cache(open_device(()), True)
    other.save([type(entry)(entry.kind, entry.kernel, "another", entry.shape, entry.parameters, 1.0, 2.0)])
    assert cached_schedules(other) == {}
