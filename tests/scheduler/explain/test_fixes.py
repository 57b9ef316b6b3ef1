"""Changes of models that compute the same."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from scheduler.explain.fixing import NEW_OPSET, fix_batch, fold_constants, raise_opset, single_precision, tried
from tests.scheduler.explain.files import FOREIGN

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
    onnxruntime = pytest.importorskip("onnxruntime")
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


def test_open_batch_is_one_in_inputs_and_outputs():
    changed = fix_batch(FOREIGN["open_batch"]())
    ends = [value.type.tensor_type.shape.dim[0].dim_value for value in (*changed.graph.input, *changed.graph.output)]
    assert ends == [1, 1]


def test_doubles_are_gone():
    changed = single_precision(FOREIGN["doubles"]())
    assert {t.data_type for t in changed.graph.initializer} == {onnx.TensorProto.FLOAT}


def test_shapes_that_are_known_are_constants():
    pytest.importorskip("onnxruntime")
    assert [node.op_type for node in fold_constants(FOREIGN["foldable"]()).graph.node] == ["Conv", "Reshape"]


@pytest.mark.parametrize("change", [raise_opset, fix_batch, single_precision])
def test_nothing_is_changed_where_there_is_nothing_to_change(change):
    assert change(FOREIGN["plain"]()) is None


@pytest.mark.parametrize("name", FOREIGN)
def test_the_original_stays_as_it_is(name):
    original = FOREIGN[name]()
    before = original.SerializeToString(deterministic=True)
    list(tried(original))
    assert original.SerializeToString(deterministic=True) == before
