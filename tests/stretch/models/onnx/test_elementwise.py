import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case
from tests.stretch.models.onnx.graphs import computed, net
from tests.stretch.models.onnx.oracle import agrees, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

X = (1, 4, 3, 2)
PLAIN = (
    *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
    *("Asinh", "Atan", "Celu", "Cosh", "Sinh", "Shrink", "ThresholdedRelu"),
    *("Sin", "Softplus", "Softsign", "Tan", "Tanh", "Gelu", "Elu", "LeakyRelu", "HardSigmoid"),
)


@pytest.mark.parametrize("op", PLAIN)
def test_function_of_one_tensor_computes_what_the_runtime_does(tmp_path, op):
    agrees(tmp_path, Case(op, [random(X)]))


@pytest.mark.parametrize("op", ["Log", "Sqrt"])
def test_function_of_positive_numbers_computes_what_the_runtime_does(tmp_path, op):
    agrees(tmp_path, Case(op, [np.abs(random(X)) + 0.1]))


@pytest.mark.parametrize("op", ["Acos", "Asin", "Atanh"])
def test_function_of_sines_computes_what_the_runtime_does(tmp_path, op):
    agrees(tmp_path, Case(op, [np.tanh(random(X))]))


def test_function_of_numbers_above_one_computes_what_the_runtime_does(tmp_path):
    agrees(tmp_path, Case("Acosh", [np.abs(random(X)) + 1.1]))


def test_mean_of_several_tensors_computes_what_the_runtime_does(tmp_path):
    agrees(tmp_path, Case("Mean", [random(X), random((4, 1, 2), 1), random(X, 2)]))


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes_of_several_tensors_compute_what_the_runtime_does(tmp_path, op):
    agrees(tmp_path, Case(op, [random(X), random((4, 1, 2), 1), random(X, 2)]))


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_gate_of_any_slope_computes_what_the_runtime_does(tmp_path, alpha):
    agrees(tmp_path, Case("Swish", [random(X)], {"alpha": alpha}), 24)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="ONNX has no SwiGLU before opset 28")
@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_gate_times_another_tensor_computes_what_onnx_says(tmp_path, alpha):
    model = net(helper.make_node("SwiGLU", ["x", "other"], ["y"], alpha=alpha), stored={"other": random(X, 1)}, shape=X, opset=28)
    onnx.save(model, str(tmp_path / "m.onnx"))
    # ONNX Runtime has none yet.
    [want] = ReferenceEvaluator(model).run(None, {"x": random(X)})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", random(X)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [0.0, 0.3, 0.5])
def test_numbers_are_moved_towards_zero_as_the_runtime_does(tmp_path, bias):
    agrees(tmp_path, Case("Shrink", [random(X, scale=2)], {"lambd": 0.5, "bias": bias}))


@pytest.mark.parametrize("sides", [(1, 1), (1, 0), (0, 1)])
def test_infinities_are_found_as_the_runtime_does(tmp_path, sides):
    x = np.array([[1, np.inf, -np.inf, np.nan, -3]], np.float32)
    case = Case("IsInf", [x], dict(zip(("detect_positive", "detect_negative"), sides, strict=True)))
    path = save(tmp_path / "m.onnx", case)
    with torch.no_grad():
        np.testing.assert_array_equal(read_module(path)(torch.from_numpy(x)).numpy(), case.computed()[0])


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bits_are_combined_as_the_runtime_does(tmp_path, op):
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        helper.make_node(op, ["i", "bits"], ["j"]),
        helper.make_node("BitwiseNot", ["j"], ["k"]),
        helper.make_node("CastLike", ["k", "x"], ["y"]),
    ]
    model = net(*nodes, stored={"bits": np.array(0b1011, np.int32)}, shape=X, opset=18)
    onnx.save(model, str(tmp_path / "m.onnx"))
    x = random(X, scale=20)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(computed(tmp_path / "m.onnx", x), want)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.bool_])
def test_element_type_is_that_of_a_stored_tensor(tmp_path, kind):
    case = Case("CastLike", [random(X, scale=3), np.ones(2, kind)])
    path = save(tmp_path / "m.onnx", case)
    with torch.no_grad():
        got = read_module(path)(torch.from_numpy(case.inputs[0])).numpy()
    assert got.dtype == kind
    np.testing.assert_array_equal(got, case.inputs[0].astype(kind))


def test_remainder_has_the_sign_of_what_is_divided(tmp_path):
    agrees(tmp_path, Case("Mod", [random(X, scale=3), np.full((1,), 0.7, np.float32)], {"fmod": 1}))


@pytest.mark.parametrize("op", ["Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1), X, (3, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("first", [False, True])
def test_function_of_a_tensor_and_a_stored_one_computes_what_the_runtime_does(tmp_path, op, shape, first):
    stored, x = np.abs(random(shape, 1)) + 0.5, np.abs(random(X)) + 0.5
    case = Case(op, [x, stored], stored=(1,))
    if first:
        path = tmp_path / "m.onnx"
        model = case.model([onnx.ValueInfoProto(name="y0")])
        model.graph.node[0].input[:] = ["x1", "x0"]
        onnx.save(model, str(path))
        with torch.no_grad():
            got = read_module(path)(torch.from_numpy(x)).numpy()
        [want] = Case(op, [stored, x], stored=(0,)).computed()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    else:
        agrees(tmp_path, case)


@pytest.mark.parametrize("op", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparison_computes_what_the_runtime_does(tmp_path, op):
    x = np.round(random(X))
    path = save(tmp_path / "m.onnx", Case(op, [x, np.zeros((), np.float32)]))
    with torch.no_grad():
        got = read_module(path)(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(got, Case(op, [x, np.zeros((), np.float32)]).computed()[0])


@pytest.mark.parametrize("alpha", [0.2, 1 / 6])
def test_hard_sigmoid_of_any_slope_computes_what_the_runtime_does(tmp_path, alpha):
    agrees(tmp_path, Case("HardSigmoid", [random(X, scale=4)], {"alpha": alpha, "beta": 0.5}))


@pytest.mark.parametrize("shape", [(4, 1, 1), (1,), (1, 4, 1, 1)])
def test_slopes_are_for_all_or_for_each_channel(tmp_path, shape):
    agrees(tmp_path, Case("PRelu", [random(X), random(shape, 1)]))


def test_sum_of_several_and_choice_by_a_stored_mask(tmp_path):
    agrees(tmp_path, Case("Sum", [random(X), random(X, 1), random((4, 1, 1), 2)]))
    nodes = [helper.make_node("Where", ["mask", "x", "low"], ["y"])]
    mask = np.array([[True, False], [False, True], [True, True]])
    stored = [numpy_helper.from_array(mask, "mask"), numpy_helper.from_array(np.float32(-9), "low")]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, X) for name in ("x", "y")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)), str(tmp_path / "w.onnx"))
    x = random(X)
    with torch.no_grad():
        got = read_module(tmp_path / "w.onnx")(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(got, np.where(mask, x, np.float32(-9)))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("PRelu", [random(X), random((3, 1))]), "not one number a channel"),
        (Case("Shrink", [random(X)], {"lambd": -1.0}), "its lambd is -1"),
        (Case("IsInf", [random(X)], {"detect_positive": 0, "detect_negative": 0}), "looks for no infinity"),
        (Case("Cast", [random(X)], {"to": 14}), "casts to type 14"),
        (Case("Add", [random(X), random((5,))]), "torch does not take what it reads"),
    ],
)
def test_element_function_that_torch_has_not_is_refused(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)
