from collections import namedtuple

import pytest

from scheduler.bundle.load import load_bundle
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.delegate import pair_launches

Launch = namedtuple("Launch", "node kernel")
Row = namedtuple("Row", "launch ms")


def rows(*launches):
    return [Row(Launch(node, kernel), 1.0) for node, kernel in launches]


def test_launches_of_a_node_that_keeps_its_kernels_are_paired():
    before, after = rows(("a", "conv"), ("b", "pool")), rows(("a", "conv"), ("b", "pool"))
    assert pair_launches(before, after) == list(zip(before, after, strict=True))


def test_launches_of_a_node_with_another_algorithm_stand_alone():
    before, after = rows(("a", "conv")), rows(("a", "winograd_in"), ("a", "winograd_out"))
    assert pair_launches(before, after) == [(before[0], None), (None, after[0]), (None, after[1])]


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
