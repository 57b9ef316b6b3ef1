"""Tuning of schedules and work groups."""

from dataclasses import replace

import pytest

from scheduler.bundle.load import load_bundle
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.graph import read_graph
from scheduler.delegates.opencl.schedule import Options
from scheduler.delegates.opencl.tuner import (
    ScheduleTuner,
    Tuned,
    cached_schedules,
    device_kind,
    entries,
    kernel_hash,
    open_cache,
    tuned_key,
)
from scheduler.delegates.opencl.workgroups import GroupTuner, TunedGroup, apply_groups, group_entries, group_key
from scheduler.tuning import Entry
from scheduler.tuning.cache import write_entries
from scheduler.tuning.shipped import ANY_DRIVER, shipped_path
from tests.scheduler.delegates.opencl import networks


@pytest.fixture
def few(monkeypatch):
    """Measure two candidates, so that few kernels are built."""
    before = ScheduleTuner.__init__
    monkeypatch.setattr(ScheduleTuner, "__init__", lambda self, *a, **k: before(self, *a, **k | {"top": 2, "rounds": 3}))


@pytest.mark.slow
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


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """Ships schedules for the device of this machine."""
    monkeypatch.setattr("scheduler.tuning.shipped.FOLDER", tmp_path / "tables")

    def write(*entries):
        kind = device_kind(open_device(()), False)
        write_entries(shipped_path(kind), kind, ANY_DRIVER, entries)

    return write


SHAPE = "1x16x9x9->16x9x9 k3x3 s1x1"


def shipped(shape=SHAPE, source=None, **parameters):
    return Entry("schedule", "conv", source or kernel_hash("conv"), shape, parameters or {"VW": 2, "VC": 1, "CHANNELS_FIRST": 0}, 1.0, 2.0)


def tile(path, **options):
    """The tile of the network's 3×3 convolution."""
    compiled = OpenCLDelegate(options=Options(winograd="off", **options)).build(path)
    macros = next(dict(launch.defines) for launch in compiled.launches if tuned_key(launch) == ("conv", SHAPE))
    return {key: int(macros[key]) for key in ("VW", "VC", "CHANNELS_FIRST")}


@pytest.mark.slow
def test_shipped_schedule_is_taken_until_the_user_has_tuned(tmp_path, ship):
    path = networks.residual_block(tmp_path / "m.onnx")
    untuned = tile(path)
    ship(shipped())
    assert tile(path) == {"VW": 2, "VC": 1, "CHANNELS_FIRST": 0} != untuned
    assert tile(path, tuned=False) == untuned
    own = {"VW": 1, "VC": 1, "CHANNELS_FIRST": 1}
    open_cache(open_device(()), False).save(entries([Tuned("conv", SHAPE, 2.0, 1.0, own, 2)]))
    assert tile(path) == own


def test_interrupted_tuning_keeps_what_was_found(tmp_path, few):
    def interrupt(_):
        raise KeyboardInterrupt

    path = networks.residual_block(tmp_path / "m.onnx")
    with pytest.raises(KeyboardInterrupt):
        OpenCLDelegate().tune(path, 60, interrupt)
    kept = cached_schedules(open_cache(open_device(()), False))
    assert kept
    assert len(OpenCLDelegate().tune(path, 60)) + len(kept) == len(cached_schedules(open_cache(open_device(()), False)))


@pytest.mark.parametrize("mode", ["fast", "schedule"])
def test_steps_are_launches_or_convolutions(bundle_dir, tmp_path, monkeypatch, mode):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundle = load_bundle(bundle_dir)
    delegate = OpenCLDelegate.create(())
    launches = delegate.build(bundle.file("s1.gpu.onnx")).launches
    convolutions = {each.node for each in launches if each.macs}
    expected = len(launches) if mode == "fast" else len(convolutions)
    assert expected > 0
    assert delegate.tuning_from(bundle, "s1.gpu", mode).steps == expected


@pytest.fixture
def path(tmp_path):
    return networks.residual_block(tmp_path / "m.onnx")


def launches(path):
    return OpenCLDelegate().lowered(read_graph(path))


@pytest.mark.slow
def test_what_was_kept_is_applied_to_the_launch_it_was_found_for(path):
    before = launches(path)
    target = before[0]
    local = (1,) * len(target.grid)
    open_cache(open_device(()), False).save(group_entries([TunedGroup(target, 2.0, 1.0, local, 6)]))
    after = launches(path)
    assert after[0].local == local
    assert [a.local for a in after if group_key(a) != group_key(target)] == [b.local for b in before if group_key(b) != group_key(target)]
    assert networks.error(path) <= 1e-5


def test_group_of_another_version_of_a_kernel_is_not_taken(path):
    cache, target = open_cache(open_device(()), False), launches(path)[0]
    (entry,) = group_entries([TunedGroup(target, 2.0, 1.0, (1, 1, 1), 6)])
    cache.save([type(entry)(entry.kind, entry.kernel, "another", entry.shape, entry.parameters, 1.0, 2.0)])
    assert apply_groups([target], cache) == [target]


def test_launches_that_are_alike_are_measured_once(path):
    device = open_device(())
    compiled = OpenCLDelegate().build(path)
    compiled.launches = (compiled.launches[0], replace(compiled.launches[0], node="again"))
    steps = []
    found = list(GroupTuner(device, compiled, "fast").tune(60, steps.append))
    assert (len(found), len(steps)) == (1, 2)
