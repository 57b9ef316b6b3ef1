from dataclasses import replace

import pytest

from predictors.errors import StretchError
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.graph import read_graph
from scheduler.delegates.opencl.tuner import open_cache
from scheduler.delegates.opencl.delegate import GroupTuner, LaunchTimer, TunedGroup, apply_groups, group_entries, group_key
from tests.scheduler.delegates.opencl import networks


@pytest.fixture
def path(tmp_path):
    return networks.residual_block(tmp_path / "m.onnx")


def launches(path):
    return OpenCLDelegate().lowered(read_graph(path))


@pytest.mark.parametrize("mode", ["fast", pytest.param("exhaustive", marks=pytest.mark.slow)])
def test_tuned_groups_are_never_slower_and_the_network_stays_right(path, mode):
    found = OpenCLDelegate().tune_groups(path, mode, 5)
    assert found
    assert all(each.after_ms <= each.before_ms for each in found)
    assert networks.error(path) <= 1e-5


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


def test_template_that_was_not_beaten_is_left_as_it_is(path):
    assert group_entries([TunedGroup(launches(path)[0], 1.0, 1.0, None, 3)]) == []


def test_group_of_another_version_of_a_kernel_is_not_taken(path):
    cache, target = open_cache(open_device(()), False), launches(path)[0]
    (entry,) = group_entries([TunedGroup(target, 2.0, 1.0, (1, 1, 1), 6)])
    cache.save([type(entry)(entry.kind, entry.kernel, "another", entry.shape, entry.parameters, 1.0, 2.0)])
    assert apply_groups([target], cache) == [target]


def test_size_that_the_driver_refuses_is_an_error_of_one_sentence(path):
    device = open_device(())
    compiled = OpenCLDelegate().build(path)
    timer = LaunchTimer(device, compiled)
    assert timer.ms(0, compiled.launches[0].local) > 0
    assert timer.most_items(0) >= 1
    with pytest.raises(StretchError, match="does not run with the work-group"):
        timer.ms(0, (1 << 20,) + (1,) * (len(compiled.launches[0].grid) - 1))


def test_launches_that_are_alike_are_measured_once(path):
    device = open_device(())
    compiled = OpenCLDelegate().build(path)
    compiled.launches = (compiled.launches[0], replace(compiled.launches[0], node="again"))
    steps = []
    found = list(GroupTuner(device, compiled, "fast").tune(60, steps.append))
    assert (len(found), len(steps)) == (1, 2)


def test_spent_budget_begins_no_launch(path):
    assert OpenCLDelegate().tune_groups(path, "fast", 0) == []
