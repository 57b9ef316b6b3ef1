"""Norms, reductions, products, attention and recurrent layers of ONNX files against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from stretch.models.onnx import read_module
from tests.scheduler.formats.onnx.shapes.oracle import Case, whole
from tests.stretch.models.onnx.oracle import agrees, computed, functions, net, random, save

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


X = (2, 6, 5, 4)
REDUCED = ["ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"]


def weights(*shape, count=2):
    return [np.abs(random(shape, 1 + i)) + 0.5 for i in range(count)]


@pytest.mark.representatives(18)
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


@pytest.mark.representatives(16)
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


LAYER_NORMS_X = (2, 5, 8)
STORED = {"w": random((8,), 1), "b": random((8,), 2), "eps": np.float32(1e-3), "two": np.float32(2), "three": np.float32(3)}


def mean(read, written, **attrs):
    return helper.make_node("ReduceMean", [read], [written], **({"axes": [-1]} | attrs))


def node(kind, *names):
    return helper.make_node(kind, list(names[:-1]), [names[-1]])


def written(**changes):
    """The nodes of a layer norm, by what they write; `changes` replace some of them."""
    nodes = {
        "m": mean("x", "m"),
        "d": node("Sub", "x", "m", "d"),
        "p": node("Pow", "d", "two", "p"),
        "v": mean("p", "v"),
        "e": node("Add", "v", "eps", "e"),
        "s": node("Sqrt", "e", "s"),
        "n": node("Div", "d", "s", "n"),
        "t": node("Mul", "n", "w", "t"),
        "y": node("Add", "t", "b", "y"),
    }
    return net(*(nodes | changes).values(), stored=STORED, shape=LAYER_NORMS_X)


def check(path, model):
    """Assert that the module of a file computes what the runtime does; gives what it calls."""
    onnx.save(model, str(path))
    x = random(LAYER_NORMS_X)
    [want] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(computed(path, x), want, rtol=1e-4, atol=1e-4)
    return functions(read_module(path))


@pytest.mark.parametrize(
    "changes",
    [{}, {"m": mean("x", "m", axes=[2])}, {"t": node("Mul", "w", "n", "t"), "y": node("Add", "b", "t", "y")}],
    ids=["usual", "axis from the first", "turned round"],
)
def test_layer_norm_of_several_nodes_is_one_module(tmp_path, changes):
    assert check(tmp_path / "m.onnx", written(**changes)) == ["LayerNorm"]


@pytest.mark.parametrize(
    "changes",
    [
        {"m": mean("x", "m", axes=[1])},
        {"v": mean("p", "v", axes=[1])},
        {"p": node("Pow", "x", "two", "p")},
        {"p": node("Mul", "d", "x", "p")},
        {"n": node("Div", "x", "s", "n")},
        {"d": node("Sub", "x", "three", "d"), "p": node("Pow", "d", "two", "p")},
        {"t": node("Mul", "n", "three", "t")},
    ],
    ids=str,
)
def test_nodes_that_are_nearly_a_layer_norm_stay_what_they_are(tmp_path, changes):
    assert "LayerNorm" not in check(tmp_path / "m.onnx", written(**changes))


Q, K, V = (random(shape, i) for i, shape in enumerate([(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)]))
HEADS = {"q_num_heads": 4, "kv_num_heads": 4}
FLAT = [random((2, 5, 32)), random((2, 6, 32), 1), random((2, 6, 12), 2)]
MASK = np.random.default_rng(0).random((5, 6)) < 0.7


@pytest.mark.representatives(5)
@pytest.mark.parametrize(
    "case",
    [
        Case("Attention", [Q, K, V]),
        Case("Attention", [Q, K, V], {"scale": 0.1}),
        Case("Attention", [Q, K, V, random((5, 6), 4)]),
        Case("Attention", [Q, K, V, random((2, 1, 5, 6), 4)]),
        Case("Attention", [Q, K, V, MASK | (np.arange(6) == 0)]),
        Case("Attention", [Q, K, V], {"is_causal": 1}),
        Case("Attention", [Q, K[:, :2], V[:, :2]]),
        Case("Attention", FLAT, HEADS),
        Case("Attention", [FLAT[0], *(random((2, 6, 16), i) for i in (1, 2))], {"q_num_heads": 4, "kv_num_heads": 2}),
    ],
    ids=lambda case: f"{case.attrs}-{case.inputs[1].shape}-{len(case.inputs)}",
)
def test_attention_computes_what_the_runtime_does(tmp_path, case):
    assert "scaled_dot_product_attention" in functions(agrees(tmp_path, case, 23))


ANGLES = random((9, 4), 5)
TURNS = [np.cos(ANGLES), np.sin(ANGLES)]
OWN = [turn[None, :5].repeat(2, 0) for turn in TURNS]
PLACES = np.array([[0, 1, 2, 3, 4], [8, 7, 1, 0, 3]])


@pytest.mark.representatives(4)
@pytest.mark.parametrize("woven", [0, 1])
@pytest.mark.parametrize(
    "case",
    [
        Case("RotaryEmbedding", [Q, *TURNS, PLACES]),
        Case("RotaryEmbedding", [Q, *OWN]),
        Case("RotaryEmbedding", [FLAT[0], *TURNS, PLACES], {"num_heads": 4}),
        Case("RotaryEmbedding", [Q, *(turn[:, :2].copy() for turn in TURNS), PLACES], {"rotary_embedding_dim": 4}),
    ],
    ids=lambda case: f"{case.attrs}-{case.inputs[0].shape}-{len(case.inputs)}",
)
def test_turned_pairs_are_those_of_the_runtime(tmp_path, case, woven):
    agrees(tmp_path, Case(case.op, case.inputs, case.attrs | {"interleaved": woven}), 23)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Attention", [Q, K, V], {"softcap": 2.0}), "bounds its scores"),
        (Case("Attention", [Q, K, V, None, K, V]), "computed before"),
        (Case("Attention", [Q, K, V, MASK], {"is_causal": 1}), "sees no later tokens besides"),
        (Case("Attention", FLAT), "32 channels are not of 0 heads"),
        (Case("Attention", FLAT, {"q_num_heads": 5, "kv_num_heads": 4}), "32 channels are not of 5 heads"),
        (Case("Attention", [Q, K[..., :3], V]), "torch does not take what it reads"),
        (Case("RotaryEmbedding", [FLAT[0], *TURNS, PLACES]), "32 channels are not of 0 heads"),
        (Case("RotaryEmbedding", [Q, *TURNS, PLACES + 5]), "its positions"),
        (Case("RotaryEmbedding", [Q, *TURNS]), r"its cosines have the shape \[9, 4\], not \[2, 5, 4\]"),
        (Case("RotaryEmbedding", [Q, *TURNS, PLACES], {"rotary_embedding_dim": 9}), "it turns 9 of 8 channels"),
    ],
)
def test_attention_that_torch_has_not_is_refused(tmp_path, case, reason):
    case.opset = 23
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)


STEPS, BATCH, WIDTH, SIZE = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op, direction="forward", *, bias=True, state=False, results=1, **attrs):
    options, rows = 2 if direction == "bidirectional" else 1, GATES[op] * SIZE
    inputs = [random((STEPS, BATCH, WIDTH)), random((options, rows, WIDTH), 1), random((options, rows, SIZE), 2)]
    inputs.append(random((options, 2 * rows), 3) if bias else None)
    inputs += [None] + [random((options, BATCH, SIZE), 4)] * (2 if op == "LSTM" else 1) if state else []
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    return Case(op, inputs, {"hidden_size": SIZE, "direction": direction, **more, **attrs}, results=results)


@pytest.mark.representatives(7)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_computes_what_the_runtime_does(tmp_path, op, direction, bias):
    if not bias:
        case = layer(op, direction)
        case.inputs = case.inputs[:3]
        agrees(tmp_path, case)
    else:
        agrees(tmp_path, layer(op, direction))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (layer("GRU", linear_before_reset=0), "it resets before its product"),
        (layer("LSTM", activations=["Relu", "Tanh", "Tanh"]), "its activations are"),
        (layer("LSTM", clip=1.0), "it clips"),
        (layer("RNN", direction="sideways"), "its direction is `sideways`"),
    ],
)
def test_layer_that_torch_has_not_is_refused(tmp_path, case, reason):
    with pytest.raises(StretchError, match=reason):
        read_module(save(tmp_path / "m.onnx", case))


def test_weights_of_another_size_are_refused(tmp_path):
    case = layer("LSTM")
    case.inputs[2] = np.zeros((1, 16, 5), np.float32)
    with pytest.raises(StretchError, match="its weights have the shapes"):
        read_module(save(tmp_path / "m.onnx", case))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("matrices")


def layers(module):
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


@given(st.booleans(), st.sampled_from([None, (5,), (1, 5), (1,), ()]), st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 2.0]))
def test_general_product_is_a_linear_layer(folder, turned, bias, alpha, beta):
    weights = [random((5, 3) if turned else (3, 5), 1), *([] if bias is None else [random(bias, 2)])]
    built = agrees(folder, Case("Gemm", [random((2, 3)), *weights], {"transB": int(turned), "alpha": alpha, "beta": beta}))
    assert [layer.bias is None for layer in layers(built)] == [bias is None]


@pytest.mark.parametrize("equation", ["abc,acd->abd", "abc,acd->a", "abc,acd->dba"])
def test_product_by_letters_computes_what_the_runtime_does(tmp_path, equation):
    agrees(tmp_path, Case("Einsum", [random((2, 4, 3)), random((2, 3, 5), 1)], {"equation": equation}))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("Gemm", [random((3, 2)), random((3, 5))], {"transA": 1}), "it turns what it reads"),
        (Case("Gemm", [random((2, 3)), random((3, 5)), random((2, 1))]), "not one number a column"),
        (Case("MatMul", [random((2, 3)), random((4, 5))]), "torch does not take what it reads"),
    ],
)
def test_product_that_is_none_of_torch_is_refused(tmp_path, case, reason):
    path = save(tmp_path / "m.onnx", case)
    with pytest.raises(StretchError, match=reason):
        read_module(path)


def test_determinants_are_those_of_the_runtime(tmp_path):
    agrees(tmp_path, Case("Det", [random((2, 3, 4, 4))]))
