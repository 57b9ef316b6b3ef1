import numpy as np

from scheduler.bundle.load import load_bundle
from scheduler.runtime.sequential import Sequential
from stretch.quantize.replay import replay, runner

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
