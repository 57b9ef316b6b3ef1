import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.stretch.models.onnx.graphs import computed, net
from tests.stretch.models.onnx.oracle import agrees, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

X = (2, 6, 5, 4)
REDUCED = ["ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"]


def weights(*shape, count=2):
    return [np.abs(random(shape, 1 + i)) + 0.5 for i in range(count)]


@pytest.mark.parametrize(
    "case",
    [
        Case("BatchNormalization", [random(X), *weights(6, count=4)], {"epsilon": 1e-3}),
        Case("BatchNormalization", [random((2, 6)), *weights(6, count=4)]),
        Case("LayerNormalization", [random(X), *weights(4)], {"axis": -1}),
        Case("LayerNormalization", [random(X), *weights(5, 4, count=1)], {"axis": 2}),
        Case("InstanceNormalization", [random(X), *weights(6)]),
        Case("GroupNormalization", [random(X), *weights(6)], {"num_groups": 3}, opset=21),
        Case("RMSNormalization", [random(X), *weights(4, count=1)], {"epsilon": 1e-3}, opset=23),
        Case("RMSNormalization", [random(X), *weights(5, 4, count=1)], {"axis": 2}, opset=23),
        Case("MeanVarianceNormalization", [random(X)]),
        Case("MeanVarianceNormalization", [random(X)], {"axes": [1, -1]}),
        *[Case("Hardmax", [random(X)], {"axis": axis}) for axis in (1, -1)],
        Case("Hardmax", [np.round(random(X))], {"axis": 3}, opset=11),
        Case("LpNormalization", [random(X)], {"axis": 1, "p": 2}),
        Case("LRN", [random(X)], {"size": 3, "alpha": 0.1}),
        *[Case(op, [random(X)], {"axis": axis, "keepdims": axis}) for op in ("ArgMax", "ArgMin") for axis in (0, 1)],
        *[
            Case(op, [random(X), np.array(axis)], {"exclusive": exclusive, "reverse": reverse}, opset=opset)
            for op, opset in (("CumSum", 20), ("CumProd", 26))
            for axis in (-1, 1)
            for exclusive in (0, 1)
            for reverse in (0, 1)
        ],
        *[Case(op, [random(X)], {"axis": axis}) for op in ("Softmax", "LogSoftmax") for axis in (1, -1)],
        *[Case("Softmax", [random(X)], {"axis": axis}, opset=11) for axis in (1, 3)],
    ],
    ids=lambda case: f"{case.op}-{case.attrs}-{case.opset}",
)
def test_normalisation_computes_what_the_runtime_does(tmp_path, case):
    agrees(tmp_path, case)


@pytest.mark.parametrize("op", REDUCED)
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(2, 3), (1,), (-1, -2), None])
def test_reduction_computes_what_the_runtime_does(tmp_path, op, keep, axes):
    agrees(tmp_path, Case(op, [random(X)], {"keepdims": keep} | ({} if axes is None else {"axes": list(axes)}), opset=11))
    if axes is not None:
        agrees(tmp_path, Case(op, [random(X), whole(*axes)], {"keepdims": keep}))


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("largest", [0, 1])
def test_largest_elements_and_their_places_are_those_of_the_runtime(tmp_path, axis, largest):
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest),
        helper.make_node("Cast", ["i"], ["r"], to=1),
        helper.make_node("Add", ["v", "r"], ["y"]),
    ]
    model = net(*nodes, stored={"k": whole(2)}, shape=X)
    onnx.save(model, str(tmp_path / "m.onnx"))
    x = random(X)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, rtol=1e-5, atol=1e-5)


def test_mean_over_the_image_is_a_pool_of_torch(tmp_path):
    made = agrees(tmp_path, Case("ReduceMean", [random(X), whole(-1, -2)]))
    assert [type(part).__name__ for part in made.children()] == ["AdaptiveAvgPool2d"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("BatchNormalization", [random(X), *weights(5, count=4)]), r"its weights have the shape \[5\], \[6\] are needed"),
        (Case("LayerNormalization", [random(X), *weights(5, 4)]), r"shape \[5, 4\], \[4\] are needed"),
        (Case("ReduceSum", [random(X)], {"noop_with_empty_axes": 1}), "reduces nothing"),
        (Case("CumSum", [random(X), np.array(7)]), "its axis is 7"),
        (Case("Hardmax", [random(X)], opset=11), "before opset 13"),
        (Case("LRN", [random(X)]), "its attributes are not understood"),
    ],
)
def test_normalisation_that_does_not_fit_is_refused(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)
