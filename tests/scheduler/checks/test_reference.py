import numpy as np
import onnx
import onnxruntime
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.checks.reference import Reference, run_file
from scheduler.checks.verify import random_input
from scheduler.runtime.session import Session


@pytest.mark.slow
def test_every_tensor_between_subgraphs_is_what_a_session_computes(bundle_dir):
    bundle = load_bundle(bundle_dir)
    x = random_input(bundle)
    found = Reference(bundle).run(x)
    assert set(found) == {t.name for t in bundle.manifest.tensors} - {"x"}
    with Session(bundle) as session:
        tensors = session.tensors(x)
    for name, value in found.items():
        assert np.allclose(tensors[name], value, atol=1e-5)


def test_model_whose_weights_lie_outside_tells_its_output(bundle_dir):
    bundle = load_bundle(bundle_dir)
    x = random_input(bundle)
    expected = onnxruntime.InferenceSession(str(bundle_dir / "model.onnx")).run(None, {"x": x})[0]
    proto = onnx.load(bundle_dir / "model.onnx")
    onnx.save(proto, bundle_dir / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    found = Reference(bundle).run(x)
    assert list(found) == ["y"]
    assert np.array_equal(found["y"], expected)


def test_file_that_cannot_be_loaded_or_run_is_one_sentence(bundle_dir):
    with pytest.raises(StretchError, match="cannot run the model on this input"):
        run_file(bundle_dir / "stem.onnx", np.zeros((1, 4, 8, 8), np.float32))
    (bundle_dir / "stem.onnx").write_bytes(b"garbage")
    with pytest.raises(StretchError, match="ONNX Runtime cannot load"):
        run_file(bundle_dir / "stem.onnx", np.zeros((1, 3, 8, 8), np.float32))
