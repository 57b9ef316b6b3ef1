import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import TOLERANCE, verify_bundle
from scheduler.formats.tflite_schema import TFLITE
from stretch.export.tflite.bundle import export_tflite
from stretch.quantize.images import synthetic_images


def rehash(bundles, path, name):
    entry = msgspec.to_builtins(bundles.file_entry(path / name))
    bundles.edit(path, lambda m: m["files"].update({name: entry}))


def change_weight(path, factor):
    model = onnx.load(path)
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    path.write_bytes(model.SerializeToString())


def test_bundle_as_written_is_fine(bundle_dir):
    result = verify_bundle(bundle_dir)
    assert result.ok
    assert result.problems == ()
    assert result.max_error <= TOLERANCE


@pytest.mark.parametrize(("factor", "fine"), [(1 + 1e-7, True), (1.5, False)])
def test_subgraph_with_other_weights_than_the_whole_model_is_found_even_if_hashed(bundles, bundle_dir, factor, fine):
    change_weight(bundle_dir / "s2.gpu.onnx", factor)
    rehash(bundles, bundle_dir, "s2.gpu.onnx")
    result = verify_bundle(bundle_dir)
    assert result.ok == fine
    assert (result.max_error <= TOLERANCE) == fine
    if not fine:
        assert "differ from model.onnx" in result.problems[0]


def test_weights_that_give_nan_are_found(bundles, bundle_dir):
    change_weight(bundle_dir / "head.onnx", np.nan)
    rehash(bundles, bundle_dir, "head.onnx")
    assert "NaN" in verify_bundle(bundle_dir).problems[0]


def test_subgraph_that_does_not_load_is_a_problem(bundles, bundle_dir):
    model = onnx.load(bundle_dir / "stem.onnx")
    model.graph.node[0].op_type = "NoSuchOp"
    (bundle_dir / "stem.onnx").write_bytes(model.SerializeToString())
    rehash(bundles, bundle_dir, "stem.onnx")
    assert "stem/conv` (NoSuchOp): no bundle holds `NoSuchOp`: nn-stretch does not know" in verify_bundle(bundle_dir).problems[0]


@pytest.fixture
def tflite_dir(bundle_dir, tmp_path):
    """A bundle with a TFLite file."""
    pytest.importorskip("ai_edge_litert")
    export_tflite(load_bundle(bundle_dir), tmp_path / "tflite", synthetic_images((1, 3, 8, 8), 8), "synthetic")
    return tmp_path / "tflite"


def respell(bundles, path, change):
    """Change the tables of the TFLite file and enter its new hash."""
    model = TFLITE.decode((path / "model.tflite").read_bytes())
    change(model)
    (path / "model.tflite").write_bytes(TFLITE.encode(model))
    rehash(bundles, path, "model.tflite")


@pytest.mark.slow
def test_tflite_file_with_other_weights_is_found_even_if_hashed(bundles, tflite_dir):
    def double(model):
        at = max(range(len(model["buffers"]) - 1), key=lambda i: len(model["buffers"][i].get("data", ())))
        model["buffers"][at] = {"data": (model["buffers"][at]["data"].view(np.float32) * 2).view(np.uint8)}

    respell(bundles, tflite_dir, double)
    (problem,) = verify_bundle(tflite_dir).problems
    assert "the signatures of model.tflite differ from model.onnx" in problem


def test_truncated_tflite_file_is_a_problem(bundles, tflite_dir):
    file = tflite_dir / "model.tflite"
    file.write_bytes(file.read_bytes()[:-200])
    assert "model.tflite has" in verify_bundle(tflite_dir).problems[0]
    rehash(bundles, tflite_dir, "model.tflite")
    assert "is no TFLite file that nn-stretch wrote" in verify_bundle(tflite_dir).problems[0]


@pytest.mark.parametrize("key", ["design", "predicted", "checks"])
def test_garbage_in_what_the_manifest_states_is_a_problem(bundles, bundle_dir, key):
    bundles.edit(bundle_dir, lambda m: m.update({key: {"garbage": "all the way"}}))
    (problem, *_) = verify_bundle(bundle_dir).problems
    assert f"bundle.json: `{key}" in problem
