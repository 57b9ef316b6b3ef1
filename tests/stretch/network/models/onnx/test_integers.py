import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from stretch.network.models.builder import Builder
from stretch.network.models.onnx import read_module
from stretch.network.models.onnx.network import Quantisation, common_quantisation, requantise
from tests.effort import examples
from tests.stretch.network.models.onnx.oracle import computed, functions, net, ran, random

pytestmark = pytest.mark.torch

MS = "com.microsoft"
X = (1, 4, 6, 5)

#: Quantisation steps of the input and of the output; the output steps are wide enough to clip nothing.
STEP, WIDE = np.float32(0.05), np.float32(0.25)


def zero_point(kind):
    """Return a zero point inside the range of a type."""
    return np.array(128 if kind == np.uint8 else 3, kind)


def on_steps(shape, seed=0, span=60):
    """Return multiples of `STEP`, which quantisation does not change."""
    return (np.random.default_rng(seed).integers(-span, span, shape) * STEP).astype(np.float32)


def some_bytes(shape, kind, seed=1):
    """Return random bytes; signed ones of 7 bits, as CPUs with AVX2 only add pairs of products in 16 bits."""
    low, high = (-64, 63) if kind == np.int8 else (0, 255)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(kind)


def agrees(folder, model, x, within):
    """Assert that a file's module differs from unoptimised ONNX Runtime by at most `within`; return the module."""
    path = folder / "m.onnx"
    onnx.save(model, str(path))
    want, got = ran(model, x, graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL), computed(path, x)
    assert got.shape == want.shape
    assert np.abs(want).max() > 0
    assert np.abs(got - want).max() <= within
    return read_module(path)


def between(node, stored, kind=np.uint8, shape=X, step=WIDE, opset=17):
    """Make a model whose node reads the input as bytes `q` and writes bytes `r` in wide steps."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        *([node] if isinstance(node, onnx.NodeProto) else node),
        helper.make_node("DequantizeLinear", ["r", "t", "u"], ["y"]),
    ]
    usual = {"s": STEP, "z": zero_point(kind), "t": np.float32(step), "u": zero_point(kind)}
    return net(*nodes, stored={**usual, **stored}, shape=shape, opset=opset)


@pytest.mark.representatives(3)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("case", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("bias", [False, True])
def test_convolution_of_bytes_computes_what_the_runtime_does(tmp_path, kind, case, bias):
    weight, count = some_bytes((6, 2, 3, 3), np.int8), 6 if case else 1
    scale = (np.arange(count) + 5).astype(np.float32) / 1000
    node = helper.make_node("QLinearConv", [*"qszw", "ws", "wz", *"tu", *(["b"] if bias else [])], ["r"], group=2, pads=[1, 0, 1, 2])
    stored = {
        "w": weight,
        "ws": scale if case else scale[0],
        "wz": np.zeros(count if case else (), np.int8),
        "b": some_bytes(6, np.int8).astype(np.int32) * 99,
    }
    built = agrees(tmp_path, between(node, stored, kind), on_steps(X), WIDE * 0.51)
    assert "Conv2d" in functions(built)[0]


def test_product_of_two_tensors_of_bytes_computes_what_the_runtime_does(tmp_path):
    turned = helper.make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1])
    node = helper.make_node("QLinearMatMul", [*"qszksztu"], ["r"])
    agrees(tmp_path, between([turned, node], {}, shape=(2, 3, 5)), on_steps((2, 3, 5)), WIDE * 0.51)


@pytest.mark.representatives(3)
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("rounds", [True, False])
def test_layer_of_bytes_computes_what_the_runtime_does(tmp_path, alpha, turned, rounds):
    weight = some_bytes((4, 5) if turned else (5, 4), np.int8)
    stored = {"w": weight, "ws": (np.arange(4) + 3).astype(np.float32) / 1000, "wz": np.zeros(4, np.int8)}
    stored["b"] = some_bytes(4, np.int8).astype(np.int32) * 50
    reads = [*"qszw", "ws", "wz", "b", *("tu" if rounds else "")]
    node = helper.make_node("QGemm", reads, ["r" if rounds else "y"], domain=MS, alpha=alpha, transB=turned)
    model = between(node, stored, shape=(3, 5))
    if not rounds:
        del model.graph.node[-1]
    built = agrees(tmp_path, model, on_steps((3, 5)), WIDE * 0.51 if rounds else 1e-4)
    assert functions(built) == ["Linear"]


@pytest.mark.representatives(3)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("stored", [True, False])
def test_function_of_two_tensors_of_bytes_computes_what_the_runtime_does(tmp_path, op, kind, stored):
    reads = [*"qszw", "ws", "wz", *"tu"] if stored else [*"qszqsztu"]
    initializers = {"w": some_bytes((4, 1, 1), kind), "ws": np.float32(0.03), "wz": zero_point(kind)}
    agrees(tmp_path, between(helper.make_node(op, reads, ["r"], domain=MS), initializers, kind), on_steps(X), WIDE * 0.51)


@pytest.mark.representatives(6)
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.1}),
        ("QLinearSoftmax", {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", {"axis": 2, "opset": 11}),
        ("QLinearAveragePool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
        ("QLinearGlobalAveragePool", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_function_of_bytes_computes_what_the_runtime_does(tmp_path, op, attrs, kind):
    node = helper.make_node(op, [*"qsztu"], ["r"], domain=MS, **attrs)
    step = np.float32(1 / 64)
    x = on_steps(X, span=30)
    # The runtime rounds the sum of an average once more; table look-ups round as the table's numbers do.
    agrees(tmp_path, between(node, {}, kind, step=step), x, step * 1.01)


@pytest.mark.parametrize("axis", [1, -1])
def test_tensors_of_several_steps_are_joined_as_the_runtime_does(tmp_path, axis):
    half = helper.make_node("QLinearMul", [*"qsz", "h", "s", "z", *"sz"], ["p"], domain=MS)
    node = helper.make_node("QLinearConcat", [*"tu", *"psz", *"qsz", "w", "ws", "wz"], ["r"], axis=axis, domain=MS)
    stored = {"h": np.array(148, np.uint8), "w": some_bytes(X, np.uint8), "ws": np.float32(0.02), "wz": np.array(9, np.uint8)}
    agrees(tmp_path, between([half, node], stored), on_steps(X, span=40) * 2, WIDE * 0.76)


def test_where_on_tensors_of_bytes_computes_what_the_runtime_does(tmp_path):
    node = helper.make_node("QLinearWhere", ["m", *"qsz", "w", "ws", "wz", *"tu"], ["r"], domain=MS)
    mask = np.arange(X[-1]) % 2 == 0
    stored = {"m": mask, "w": np.array([7], np.uint8), "ws": np.float32(0.02), "wz": np.array(9, np.uint8)}
    agrees(tmp_path, between(node, stored), on_steps(X), WIDE * 0.51)


def dynamic(product, weight, **attrs):
    """Make a model like `quantize_dynamic`: input quantised by its range, integer product, scale and bias."""
    bias = (1, 6, 1, 1) if product == "ConvInteger" else (6,)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(product, ["q", "w", "z", "wz"], ["i"], **attrs),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["s", "ws"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    return nodes, {"w": weight, "b": random(bias), "ws": np.float32(0.01), "wz": np.array(2, weight.dtype)}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_dynamically_quantised_product_is_one_linear_layer(tmp_path, kind):
    nodes, stored = dynamic("MatMulInteger", some_bytes((5, 6), kind))
    stored |= {"ws": (np.arange(6) + 1).astype(np.float32) / 100, "wz": np.full(6, 2, kind)}
    x = random((3, 5))
    built = agrees(tmp_path, net(*nodes, stored=stored, shape=(3, 5)), x, 5 * 2.6 * 6 / 100 * np.ptp(x))
    assert (functions(built), [layer.bias is None for layer in built.children()]) == (["Linear"], [False])


def test_dynamically_quantised_convolution_is_one_convolution(tmp_path):
    nodes, stored = dynamic("ConvInteger", some_bytes((6, 4, 3, 3), np.uint8), pads=[1, 1, 1, 1], strides=[2, 2])
    x = random(X)
    built = agrees(tmp_path, net(*nodes, stored=stored, shape=X), x, 36 * 253 * 0.01 * np.ptp(x) / 255 / 2)
    assert (functions(built), "rounds 1 activations" in built.warnings[0]) == (["Conv2d"], True)


@pytest.mark.parametrize(("scale", "called"), [([1.0], []), ([0.5], ["mul"]), (np.arange(1, 6), ["mul"])], ids=str)
def test_integers_outside_of_products_are_scaled_unless_the_scale_is_one(tmp_path, scale, called):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "z"], ["q"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Abs", ["i"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "scale"], ["y"], axis=1),
    ]
    stored = {"one": np.float32(1), "z": np.uint8(0), "w": some_bytes((4, 5), np.int8), "scale": np.squeeze(np.float32(scale))}
    built = agrees(tmp_path, net(*nodes, stored=stored, shape=(3, 4)), np.round(on_steps((3, 4)) / STEP).clip(0), 1e-3)
    assert functions(built) == ["Linear", "abs", *called]


@settings(max_examples=examples(20))
@given(st.sampled_from([0, 3, 128]), st.sampled_from([0.02, 0.05]), st.sampled_from(["Mul", "DequantizeLinear"]))
def test_product_of_bytes_with_stated_scales_is_scaled_back(tmp_path_factory, zero, step, scaling):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        *([helper.make_node("Cast", ["i"], ["f"], to=1), helper.make_node("Mul", ["f", "both"], ["y"])] if scaling == "Mul" else []),
        *([helper.make_node("DequantizeLinear", ["i", "both"], ["y"])] if scaling != "Mul" else []),
    ]
    x = np.random.default_rng(0).integers(0, 99, (3, 5)).astype(np.float32) * np.float32(step)
    stored = {"s": np.float32(step), "z": np.array(zero, np.uint8), "w": some_bytes((5, 6), np.int8), "both": np.float32(step * 0.01)}
    agrees(tmp_path_factory.mktemp("scaled"), net(*nodes, stored=stored, shape=(3, 5)), x, 1e-4)


@pytest.mark.parametrize("op", ["Mul", "Add"])
@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("shape", [(6, 1, 1), (4, 3), (2, 6, 1, 1), (3,)])
def test_factor_or_offset_joins_only_an_integer_convolution_and_only_per_channel(tmp_path, op, rounds, shape):
    weight = some_bytes((6, 4, 3, 3), np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("ConvInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=1),
        helper.make_node(op, ["c", "n"], ["y"]),
    ]
    nodes = nodes if rounds else [helper.make_node("Conv", ["x", "w"], ["c"]), nodes[-1]]
    stored = {"s": STEP, "z": zero_point(np.uint8), "w": weight if rounds else weight.astype(np.float32), "n": random(shape)}
    built = agrees(tmp_path, net(*nodes, stored=stored, shape=(2, 4, 6, 5)), on_steps((2, 4, 6, 5)), 0.1)
    assert functions(built)[-2:] == (["mul", "Conv2d"] if rounds and shape == (6, 1, 1) else ["Conv2d", op.lower()])


W = {"w": some_bytes((5, 4), np.int8), "ws": np.float32(0.1), "wz": np.array(0, np.int8)}


@pytest.mark.parametrize("case", [False, True], ids=["per tensor", "per column"])
@pytest.mark.parametrize("bias", [False, True])
def test_products_that_the_runtime_fuses_with_their_scales_are_one_layer(tmp_path, case, bias):
    per_column = {"ws": (np.arange(6) + 1).astype(np.float32) / 100, "wz": np.full(6, 2, np.int8)} if case else {}
    stored = {"w": some_bytes((5, 6), np.int8), "ws": np.float32([0.01]), "wz": np.int8([2]), "b": random((6,)), **per_column}
    x = on_steps((3, 5))
    tolerance = np.ptp(x) / 255 / 2 * 1.1 * np.abs(stored["w"] * stored["ws"]).sum(0).max()
    bias_input = ["b"] if bias else []
    fused = helper.make_node("DynamicQuantizeMatMul", ["x", "w", "ws", "wz", *bias_input], ["y"], domain=MS)
    built = agrees(tmp_path, net(fused, stored=stored, shape=(3, 5)), x, tolerance)
    assert functions(built) == ["Linear"]
    assert "rounds 1 activations" in built.warnings[0]
    first = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    second = helper.make_node("MatMulIntegerToFloat", ["q", "w", "s", "ws", "z", "wz", *bias_input], ["y"], domain=MS)
    built = agrees(tmp_path, net(first, second, stored=stored, shape=(3, 5)), x, tolerance)
    assert functions(built) == ["Linear"]


@pytest.mark.parametrize("options", [1, 2])
@pytest.mark.parametrize("case", [False, True], ids=["per tensor", "per gate"])
def test_dynamically_quantised_recurrent_layer_computes_what_the_runtime_does(tmp_path, options, case):
    scales = {f"{name}s": np.full((options, 12) if case else options, 0.004, np.float32) for name in "wr"}
    zeros = {f"{name}z": np.zeros((options, 12) if case else options, np.int8) for name in "wr"}
    stored = {"w": some_bytes((options, 5, 12), np.int8), "r": some_bytes((options, 3, 12), np.int8), "b": random((options, 24))}
    reads = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    direction = "bidirectional" if options == 2 else "forward"
    node = helper.make_node("DynamicQuantizeLSTM", reads, ["y"], domain=MS, hidden_size=3, direction=direction)
    agrees(tmp_path, net(node, stored=stored | scales | zeros, shape=(4, 2, 5)), random((4, 2, 5)), 0.03)


def product(read="q", zero="wz"):
    """Make a product of bytes with stored bytes."""
    return helper.make_node("QLinearMatMul", [read, *"szw", "ws", zero, *"tu"], ["r"])


QGEMM = helper.make_node("QGemm", [*"qszw", "ws", "wz", *"btu"], ["r"], domain=MS)


@pytest.mark.parametrize(
    ("node", "stored", "reason"),
    [
        (product("x"), W, "its input 0 is not rounded to bytes"),
        (product(zero="z"), W, "its input 3 is of type int8, and its zero point of type uint8"),
        (product(), W | {"ws": np.float32(np.nan)}, "its scale is no real number"),
        (product(), W | {"ws": np.ones(3, np.float32)}, "3 scales for the shape"),
        (product(), W | {"wz": np.zeros(3, np.int8)}, "3 numbers of type int8 for 1 scales"),
        (helper.make_node("QLinearMatMul", [*"qszw"], ["r"]), W, "its scale depends on the network's inputs, or is left out"),
        (helper.make_node("QLinearGlobalAveragePool", [*"qsztu"], ["r"], channels_last=1, domain=MS), {}, "its channels are last"),
        (helper.make_node("QLinearUnknown", [*"qsztu"], ["r"], domain=MS), {}, "there is no rule for this operator"),
        (QGEMM, W | {"b": np.zeros((999, 1), np.int32), "ws": np.ones(4, np.float32)}, r"its bias has the shape \[999, 1\] for 4 scales"),
        (QGEMM, W | {"b": np.zeros(4, np.int32), "ws": np.ones((999, 1), np.float32)}, "999 scales for the shape"),
        (
            helper.make_node("DynamicQuantizeLSTM", ["x", "w", "w", *[""] * 5, "ws", "wz", "ws", "wz"], ["r"], domain=MS, hidden_size=3),
            W,
            r"its weights have the shape \[5, 4\]",
        ),
        (helper.make_node("MatMulInteger", ["x", "w"], ["r"]), W, "its input 0 is not rounded to bytes"),
        (helper.make_node("Cast", ["q"], ["r"], to=1), {}, "computes with bytes"),
        (helper.make_node("QuantizeLinear", ["q", "s", "z"], ["r"]), {}, "is rounded already"),
    ],
)
def test_operator_on_bytes_that_cannot_be_read_is_refused(tmp_path, node, stored, reason):
    onnx.save(between(node, stored, shape=(3, 5)), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=reason) as caught:
        read_module(tmp_path / "m.onnx")
    assert "\n" not in caught.value.message


def steps(scale, zero, kind=np.uint8):
    return Quantisation(np.asarray(scale, np.float32), np.asarray(zero, kind))


def test_only_operators_that_move_bytes_keep_the_quantisation():
    current = steps(0.1, 3)
    assert common_quantisation("Concat", [current, None, steps(0.1, 3)]) is current
    assert common_quantisation("Tanh", [None]) is None


BUILDER = Builder((2, 3))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: steps([0.1] * 3, [0] * 3).dequantize(np.zeros((2, 4), np.uint8), 1), "3 scales for the shape"),
        (lambda: requantise(BUILDER, BUILDER.inputs["x"], steps([0.1] * 3, 0), steps(0.1, 0)), "other scales"),
        (lambda: requantise(BUILDER, BUILDER.inputs["x"], steps(0.0, 0), steps(0.1, 0)), "other scales"),
        (lambda: common_quantisation("Tanh", [steps(0.1, 3)]), "computes with bytes"),
        (lambda: common_quantisation("Concat", [steps(0.1, 3), steps(0.2, 3)]), "several scales"),
    ],
)
def test_scales_that_fit_no_axis_or_no_operator_are_refused(call, reason):
    with pytest.raises(StretchError, match=reason):
        call()
