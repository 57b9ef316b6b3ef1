"""Tuning of schedules and work groups."""

from dataclasses import replace

import pytest

from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.tuner import ScheduleTuner, cached_schedules, open_cache, tuned_groups
from tests.scheduler.delegates.opencl import networks


@pytest.fixture
def few(monkeypatch):
    """Measure two candidates, so that few kernels are built."""
    before = ScheduleTuner.__init__
    monkeypatch.setattr(ScheduleTuner, "__init__", lambda self, *a, **k: before(self, *a, **k | {"top": 2, "rounds": 3}))


@pytest.mark.slow
def test_tuned_schedules_are_kept_and_taken_by_the_next_compilation(tmp_path, few):
    path = networks.residual_block(tmp_path / "m.onnx")
    tune = OpenCLDelegate().tune(path, 60)
    assert {item.kernel for item in tune} == {"conv", "product", "winograd"}
    assert all(item.after_ms <= item.before_ms for item in tune)
    known = cached_schedules(open_cache(open_device(()), False))
    assert known == {(item.kernel, item.shape): item.choice for item in tune}
    winograd = next(item for item in tune if item.kernel == "winograd")
    assert ("winograd_in" in networks.kernels(path)) == bool(winograd.choice["USE"])
    assert networks.error(path) <= 1e-5


def test_interrupted_tuning_keeps_what_was_found(tmp_path, few):
    def interrupt(_):
        raise KeyboardInterrupt

    path = networks.residual_block(tmp_path / "m.onnx")
    with pytest.raises(KeyboardInterrupt):
        OpenCLDelegate().tune(path, 60, interrupt)
    kept = cached_schedules(open_cache(open_device(()), False))
    assert kept
    assert len(OpenCLDelegate().tune(path, 60)) + len(kept) == len(cached_schedules(open_cache(open_device(()), False)))


def test_launches_that_are_alike_are_measured_once(tmp_path):
    device = open_device(())
    compiled = OpenCLDelegate().compile(networks.residual_block(tmp_path / "m.onnx"))
    compiled.launches = (compiled.launches[0], replace(compiled.launches[0], node="again"))
    steps = []
    tune = list(tuned_groups(device, compiled, "fast", 60, steps.append))
    assert (len(tune), len(steps)) == (1, 2)
