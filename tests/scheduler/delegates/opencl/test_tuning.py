import pytest

from scheduler.bundle.load import load_bundle
from scheduler.delegates.opencl import OpenCLDelegate


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
