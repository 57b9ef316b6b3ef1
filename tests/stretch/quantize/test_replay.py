import numpy as np
import onnx
import pytest

from scheduler.bundle.load import load_bundle
from scheduler.runtime.sequential import Sequential
from stretch.quantize.replay import replay, runner
from tests.scheduler.delegates import qdq

X = np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype(np.float32)


def test_tensors_of_a_bundle_end_in_the_whole_models_output(floats):
    bundle = load_bundle(floats)
    tensors = replay(bundle.manifest, {s.name: runner(str(bundle.file(s.file))) for s in bundle.manifest.subgraphs}, X)
    assert tensors.keys() == {tensor.name for tensor in bundle.manifest.tensors}
    assert all(tensors[tensor.name].shape == tensor.shape for tensor in bundle.manifest.tensors)
    assert np.allclose(tensors["y"], Sequential(floats / "model.onnx").run(X), atol=1e-4)


def test_joins_lay_side_by_side_and_add(floats):
    manifest = load_bundle(floats).manifest
    runs = {
        s.name: (lambda x, s=s: np.full(next(t.shape for t in manifest.tensors if t.name == s.output), hash(s.name) % 7, np.float32))
        for s in manifest.subgraphs
    }
    tensors = replay(manifest, runs, X)
    parts = [tensors[f"s1.{p}.y"] for p in ("cpu", "dsp", "gpu")]
    assert np.array_equal(tensors["t1"], np.concatenate(parts, 1))
    assert np.array_equal(tensors["t2"], tensors["s2.cpu.y"] + tensors["s2.dsp.y"] + tensors["s2.gpu.y"])


def test_int8_is_computed_as_the_reals_it_stands_for(tmp_path):
    qdq.save_conv(tmp_path / "m.onnx", y_scale=1 / 64)
    x = np.random.default_rng(1).uniform(-3, 3, (1, 3, 6, 6)).astype(np.float32)
    got = runner(onnx.load(tmp_path / "m.onnx"))(x) * 64
    assert np.abs(got - np.round(got)).max() == pytest.approx(0, abs=1e-4)
    assert got.min() >= -128
    assert got.max() <= 127
