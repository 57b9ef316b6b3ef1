import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from scheduler.verify import TOLERANCE, verify_bundle


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


def test_all_problems_of_the_files_are_told_at_once(bundle_dir):
    (bundle_dir / "stem.onnx").unlink()
    (bundle_dir / "head.onnx").write_bytes(b"")
    result = verify_bundle(bundle_dir)
    assert len(result.problems) == 2
    assert result.max_error is None


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
    assert "cannot load" in verify_bundle(bundle_dir).problems[0]


def test_no_bundle_is_a_problem(tmp_path):
    assert "is not a bundle" in verify_bundle(tmp_path).problems[0]
