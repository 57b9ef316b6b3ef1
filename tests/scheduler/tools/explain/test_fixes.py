"""Changes of models that compute the same, and models compared."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from predictors.errors import StretchError
from scheduler.tools.explain.foreign import NEW_OPSET, fold_constants, largest_difference, raise_opset, tried
from tests.scheduler.tools.explain.files import FOREIGN, node, plain

RUNNABLE = [name for name in FOREIGN if name not in ("own_domain", "upsample")]


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_change_computes_what_the_original_does_by_the_definition_of_onnx(name):
    original = FOREIGN[name]()
    x = np.random.default_rng(1).standard_normal(
        [1 if d.dim_param else d.dim_value for d in original.graph.input[0].type.tensor_type.shape.dim]
    )
    kind = onnx.helper.tensor_dtype_to_np_dtype(original.graph.input[0].type.tensor_type.elem_type)
    wanted = ReferenceEvaluator(original).run(None, {"x": x.astype(kind)})[0]
    for _, changed in tried(original):
        onnx.checker.check_model(changed)
        takes = onnx.helper.tensor_dtype_to_np_dtype(changed.graph.input[0].type.tensor_type.elem_type)
        got = ReferenceEvaluator(changed).run(None, {"x": x.astype(takes)})[0]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_upsample_becomes_resize_in_a_newer_opset_and_computes_the_same():
    original = FOREIGN["upsample"]()
    changed = raise_opset(original)
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    wanted, got = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for m in (original, changed)
    )
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in changed.graph.node if node.op_type in ("Upsample", "Resize")] == ["Resize"]
    assert changed.opset_import[0].version == NEW_OPSET


def test_shapes_that_are_known_are_constants():
    assert [node.op_type for node in fold_constants(FOREIGN["foldable"]()).graph.node] == ["Conv", "Reshape"]


def test_originals_stay_as_they_are():
    for write in FOREIGN.values():
        original = write()
        before = original.SerializeToString(deterministic=True)
        list(tried(original))
        assert original.SerializeToString(deterministic=True) == before


def save(path, proto):
    onnx.save(proto, str(path))
    return path


def test_changed_weight_is_a_difference(tmp_path, foreign):
    other = plain()
    array = onnx.numpy_helper.to_array(other.graph.initializer[0]) * 1.5
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    assert largest_difference(foreign["plain"], save(tmp_path / "other.onnx", other)) == pytest.approx(0.5, rel=1e-3)


def test_other_shape_differs_without_bound(tmp_path, foreign):
    other = plain()
    other.graph.node[2].CopyFrom(node("Relu", ["r"], ["y"], "again"))
    other.graph.output[0].CopyFrom(FOREIGN["own_domain"]().graph.output[0])
    assert largest_difference(foreign["plain"], save(tmp_path / "other.onnx", other)) == math.inf


def test_other_names_are_refused(tmp_path, foreign):
    other = plain()
    other.graph.node[2].output[0] = other.graph.output[0].name = "z"
    with pytest.raises(StretchError, match="takes or gives other tensors"):
        largest_difference(foreign["plain"], save(tmp_path / "other.onnx", other))
