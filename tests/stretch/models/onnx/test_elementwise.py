"""Functions of elements in ONNX files against ONNX Runtime, also where several nodes are one of torch."""

from math import pi, sqrt

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from predictors.errors import StretchError
from stretch.models.builder import Builder
from stretch.models.onnx import read_module
from stretch.models.onnx.computing import UNSCALED, added, multiplied, times
from stretch.models.onnx.network import OnnxSite
from tests.scheduler.formats.onnx.shapes.oracle import Case
from tests.stretch.models.onnx.oracle import agrees, computed, functions, net, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


X = (1, 4, 3, 2)
PLAIN = (
    *("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
    *("Asinh", "Atan", "Celu", "Cosh", "Sinh", "Shrink", "ThresholdedRelu"),
    *("Sin", "Softplus", "Softsign", "Tan", "Tanh", "Gelu", "Elu", "LeakyRelu", "HardSigmoid"),
)


@pytest.mark.representatives(14)
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


@pytest.mark.representatives(22)
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


NUMBERS = {
    name: np.float32(value)
    for name, value in {
        "0": 0,
        "1": 1,
        "3": 3,
        "6": 6,
        "half": 0.5,
        "sixth": 1 / 6,
        "root2": sqrt(2),
        "inverse": 1 / sqrt(2),
        "cubic": 0.044715,
        "rootpi": sqrt(2 / pi),
        "8": 8,
    }.items()
}


def nodes(*lines):
    """Nodes written as `result = Operator first second …`."""
    built = []
    for line in lines:
        result, _, call = line.partition(" = ")
        kind, *reads = call.split()
        attrs = {"alpha": 1 / 6, "beta": 0.5} if kind == "HardSigmoid" else {}
        built.append(helper.make_node(kind, reads, [result], **attrs))
    return built


WRITTEN = {
    "silu": [("g = Sigmoid x", "y = Mul x g"), ("g = Sigmoid x", "y = Mul g x")],
    "hardswish": [
        ("g = HardSigmoid x", "y = Mul x g"),
        ("a = Add x 3", "c = Clip a 0 6", "d = Div c 6", "y = Mul x d"),
        ("a = Add 3 x", "c = Clip a 0 6", "m = Mul x c", "y = Div m 6"),
        ("a = Add x 3", "c = Clip a 0 6", "m = Mul c x", "y = Mul sixth m"),
    ],
    "hardsigmoid": [("a = Add x 3", "c = Clip a 0 6", "y = Div c 6"), ("a = Add x 3", "c = Clip a 0 6", "y = Mul c sixth")],
    "mish": [("s = Softplus x", "t = Tanh s", "y = Mul x t")],
    "gelu": [
        ("d = Div x root2", "e = Erf d", "a = Add e 1", "m = Mul x a", "y = Mul m half"),
        ("d = Mul x inverse", "e = Erf d", "a = Add 1 e", "h = Mul half x", "y = Mul h a"),
        ("d = Div x root2", "e = Erf d", "a = Add e 1", "h = Mul a half", "y = Mul x h"),
        ("p = Pow x 3", "c = Mul p cubic", "s = Add x c", "r = Mul s rootpi", "t = Tanh r", "a = Add t 1", "h = Mul x half", "y = Mul h a"),
    ],
}

CASES = [(name, lines) for name, options in WRITTEN.items() for lines in options]


@pytest.mark.parametrize(("name", "lines"), CASES, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_activation_is_found_however_it_is_written(tmp_path, name, lines):
    model = net(*nodes(*lines), stored=NUMBERS)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert functions(read_module(tmp_path / "m.onnx")) == [name]
    x = random((1, 4, 5, 3), scale=3)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "lines",
    [
        ("g = Sigmoid x", "r = Relu x", "y = Mul r g"),
        ("a = Add x 3", "c = Clip a 0 6", "m = Mul x c", "y = Div m 3"),
        ("a = Add x 6", "c = Clip a 0 6", "m = Mul x c", "y = Div m 6"),
        ("a = Add x 3", "c = Clip a 0 8", "m = Mul x c", "y = Div m 6"),
        ("d = Mul x 3", "e = Erf d", "a = Add e 1", "m = Mul x a", "y = Mul m half"),
        ("d = Div x root2", "e = Erf d", "a = Add e 3", "m = Mul x a", "y = Mul m half"),
        ("p = Pow x 6", "c = Mul p cubic", "s = Add x c", "r = Mul s rootpi", "t = Tanh r", "a = Add t 1", "h = Mul x half", "y = Mul h a"),
        ("s = Sigmoid x", "t = Tanh s", "y = Mul x t"),
    ],
    ids=" ".join,
)
def test_nodes_that_are_nearly_an_activation_stay_what_they_are(tmp_path, lines):
    model = net(*nodes(*lines), stored=NUMBERS)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert len(functions(read_module(tmp_path / "m.onnx"))) == len(lines)
    x = random((1, 4, 5, 3))
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(tmp_path / "m.onnx", x), want, rtol=1e-4, atol=1e-4)


ROUNDING_X = (1, 4, 5, 3)


def rounded(tmp_path, zero, scale, *before):
    """The module of a file that rounds what `before` makes of `x`, `t`, or `x` itself."""
    nodes = [
        *before,
        helper.make_node("QuantizeLinear", ["t" if before else "x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["r"]),
        helper.make_node("Tanh", ["r"], ["y"]),
    ]
    onnx.save(net(*nodes, stored={"scale": np.float32(scale), "zero": zero}, shape=ROUNDING_X), str(tmp_path / "m.onnx"))
    return functions(read_module(tmp_path / "m.onnx"))


SIN = helper.make_node("Sin", ["x"], ["t"])


@pytest.mark.parametrize("zero", [np.uint8(0), np.int8(-128)])
def test_range_from_zero_on_is_a_rectifier(tmp_path, zero):
    assert rounded(tmp_path, zero, 0.01, SIN) == ["sin", "relu", "tanh"]
    assert rounded(tmp_path, zero, 6 / 255, SIN) == ["sin", "relu6", "tanh"]


def test_rounding_changes_numbers_by_less_than_a_step(tmp_path):
    rounded(tmp_path, np.uint8(128), 0.05)
    x = random(ROUNDING_X)
    got = computed(tmp_path / "m.onnx", x)
    np.testing.assert_allclose(got, np.tanh(x), rtol=1e-5, atol=1e-6)


SHAPES = {nn.Linear: (2, 3), nn.Conv2d: (2, 3, 4, 4), nn.Conv1d: (2, 3, 4)}


def product(kind, *, bias=False, unscaled=True):
    """A layer that reads the input of a network, its site, and what both are made with."""
    builder = Builder(SHAPES[kind])
    layer = nn.Linear(3, 5, bias) if kind is nn.Linear else kind(3, 5, 3, padding=1, bias=bias)
    x = builder.module(layer, builder.input, "layer")
    x.meta[UNSCALED] = unscaled
    return OnnxSite([], "Op", "op", {}, 1, 17, builder), x


def given_by(site, x, kind):
    """What the layer gives."""
    with torch.no_grad():
        return site.builder.behind(x)(torch.from_numpy(random(SHAPES[kind]))).numpy()


def numbers_for(kind):
    """Five numbers, one for each channel."""
    return random((5,), 3) if kind is nn.Linear else random((5, *(1,) * (len(SHAPES[kind]) - 2)), 3)


def run(site, result, kind):
    with torch.no_grad():
        return site.builder.finish(result, "Network")(torch.from_numpy(random(SHAPES[kind]))).numpy()


def test_other_layers_and_numbers_stay_as_they_are():
    site, x = product(nn.Conv2d, unscaled=False)
    assert multiplied(site, x, numbers_for(nn.Conv2d)) is None
    assert added(site, x, numbers_for(nn.Conv2d)) is None
    site, x = product(nn.Conv2d)
    assert multiplied(site, x, random((4, 4))) is None
    assert multiplied(site, x, random((2, 5, 1, 1))) is None
    assert added(site, x, random((4,))) is None
    assert multiplied(site, site.builder.input, np.float32(2).reshape(())) is None


def test_any_tensor_is_scaled():
    for factor in (np.float32(0.5).reshape(()), random((5,))):
        site, x = product(nn.Linear, unscaled=False)
        want = given_by(site, x, nn.Linear)
        assert times(site, x, np.ones((), np.float32)) is x
        np.testing.assert_allclose(run(site, times(site, x, factor), nn.Linear), want * factor, rtol=1e-6)
