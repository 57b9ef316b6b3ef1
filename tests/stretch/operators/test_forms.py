import numpy as np
import pytest
import torch

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.formats.tflite import TFLITE
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.tflite import read_source
from stretch.operators.capturing import UnsupportedNode, pooling_window
from stretch.operators.elementwise import StochasticDepth
from stretch.operators.formats import tflite as module
from stretch.operators.formats.tflite import SubgraphBuilder, SubgraphPiece, SubgraphSource, Writer
from stretch.operators.lowerings import lowerings, make_module
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import codes, quant_of, rounded_source, run, snr_db

pytest.importorskip("ai_edge_litert")

POOL = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": False}


def graph_of(*ops, shape=(1, 4, 6, 6)):
    return OpGraph.build("case", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)


def case(*ops, shape=(1, 6, 5, 4), seed=0):
    graph, random = graph_of(*ops, shape=shape), np.random.default_rng(seed)
    return graph, graphs.weights_of(graph, random), random.normal(size=shape).astype(np.float32)


def reals(graph, folder, x):
    save_onnx(to_onnx(graph, {}), folder / "op.onnx")
    return ReferenceDelegate().compile(folder / "op.onnx").evaluate([x])


def source_in_int8(graph, values):
    return SubgraphSource(graph, {}, {op.name: quant_of(values[op.name]) for op in graph.ops})


def test_padding_of_a_maximum_never_wins(tmp_path):
    x = -1 - np.random.default_rng(0).random((1, 4, 6, 6), np.float32)
    graph = graph_of(Op("y", "max_pool", ("x",), POOL | {"dilation": (1, 1)}))
    values = reals(graph, tmp_path, x)
    assert (values["y"] < 0).all()
    assert np.array_equal(run(SubgraphSource(graph, {}), tmp_path, x), values["y"])
    rounded = source_in_int8(graph, values)
    assert [code for code, _ in codes(rounded)][:3] == ["QUANTIZE", "PADV2", "MAX_POOL_2D"]
    assert np.abs(run(rounded, tmp_path, x) - values["y"]).max() <= 2 * rounded.scales["y"].scale


def test_dilated_maximum_is_refused_by_name():
    graph = graph_of(Op("y", "max_pool", ("x",), POOL | {"dilation": (2, 2)}), shape=(1, 4, 9, 9))
    with pytest.raises(StretchError, match=r"operator `y` \(max_pool\) is dilated"):
        codes(SubgraphSource(graph, {}))


ACTIVATIONS = ("relu", "relu6", "hard_swish", "hard_sigmoid", "silu", "sigmoid", "tanh", "gelu", "elu", "leaky_relu", "mish", "clamp")
#: Numbers where an activation could go wrong: large values, values around zero and at its bends.
HARD = np.array([-1e4, -100, -88, -20, -6, -3, -1, -1e-3, 0, 1e-3, 1, 3, 6, 20, 88, 89, 100, 1e4], np.float32)
ATTRS = {"gelu": {"approximate": "none"}, "elu": {"alpha": 0.7}, "leaky_relu": {"slope": 0.2}, "clamp": {"low": -1.0, "high": 3.0}}


@pytest.mark.representatives(6)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_is_right_for_large_numbers_and_at_its_bends(tmp_path, kind):
    shape = (1, len(HARD), 1, 1)
    graph = graph_of(Op("y", kind, ("x",), ATTRS.get(kind, {})), shape=shape)
    got = run(SubgraphSource(graph, {}), tmp_path, HARD.reshape(shape)).ravel()
    expected = make_module(graph.by_name["y"], [shape])(torch.from_numpy(HARD).double().reshape(shape)).numpy().ravel()
    assert np.allclose(got, expected, rtol=1e-5, atol=2e-6)


def test_bands_of_one_scale_are_joined_without_rounding_them_again(tmp_path):
    """The bands are joined in reverse order: lower rows first."""
    bands = [Op(name, "slice_rows", ("x",), {"start": a, "stop": b}) for name, a, b in (("upper", 0, 2), ("lower", 2, 6))]
    graph, _, x = case(*bands, Op("y", "concat_rows", ("lower", "upper")), shape=(1, 4, 6, 6))
    source = source_in_int8(graph, dict.fromkeys(("x", "upper", "lower", "y"), x))
    assert [code for code, _ in codes(source)] == ["QUANTIZE", "SLICE", "SLICE", "CONCATENATION", "DEQUANTIZE"]
    step = source.scales["y"].scale
    assert np.abs(run(source, tmp_path, x) - np.concatenate([x[:, :, 2:], x[:, :, :2]], 2)).max() <= step


def test_flattened_image_that_leaves_the_subgraph_is_in_the_order_of_nchw(tmp_path):
    graph, weights, x = case(Op("y", "flatten", ("x",)))
    save_onnx(to_onnx(graph, weights), tmp_path / "op.onnx")
    source = read_source(tmp_path / "op.onnx")
    expected = graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x)
    assert np.allclose(run(source, tmp_path, x), expected, rtol=1e-4, atol=1e-4)
    assert [code for code, _ in codes(source)] == ["TRANSPOSE", "RESHAPE"]


def test_linear_layer_over_the_rows_of_an_image_is_refused():
    graph, weights, _ = case(Op("y", "linear", ("x",), {"out_features": 7, "bias": True}))
    b = SubgraphBuilder(SubgraphPiece(Writer("m"), "s"), {})
    with pytest.raises(StretchError, match=r"operator `y` \(linear\) reads 4 axes"):
        lowerings.get("linear").tflite(b, SubgraphSource(graph, weights), graph.by_name["y"], [b.input("x", (1, 5, 4, 6))])


@pytest.mark.parametrize("padding", [(1, 0, 2, 3), (-1, -1, 1, 1), (-2, 1, 0, -3), (-1, -2, -1, 0)])
def test_padding_adds_zeros_and_negative_padding_crops(tmp_path, padding):
    graph, _, x = case(Op("y", "pad", ("x",), {"padding": padding}), shape=(1, 4, 6, 6))
    top, left, bottom, right = padding
    want = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom)).numpy()
    assert np.array_equal(reals(graph, tmp_path, x)["y"], want)
    assert np.array_equal(run(SubgraphSource(graph, {}), tmp_path, x), want)


def test_batch_norm_that_cannot_be_folded_is_a_factor_and_an_offset(tmp_path):
    norm = Op("y", "batch_norm", ("x",), {"eps": 1e-3, "momentum": 0.1, "affine": False})
    graph, weights, x = case(norm)
    source = SubgraphSource(graph, weights)
    mapping = {key: value.reshape(1, -1, 1, 1) for key, value in weights["y"].items()}
    expected = (x - mapping["running_mean"]) / np.sqrt(mapping["running_var"] + 1e-3)
    assert np.allclose(run(source, tmp_path, x), expected, atol=1e-5)
    assert [code for code, _ in codes(source)] == ["MUL", "ADD"]


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth_drops_whole_samples_and_keeps_the_expectation(mode):
    torch.manual_seed(0)
    module = StochasticDepth(0.25, mode).train()
    x = torch.ones(4000, 2)
    out = torch.cat([module(x[i : i + 4]) for i in range(0, 4000, 4)])
    assert sorted(out.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1.0, abs=0.06)
    assert torch.equal(module.eval()(x), x)


def test_pooling_window_larger_than_its_padded_input_shrinks_to_it():
    assert pooling_window((1, 4, 2, 9), 5, 2, 1, True)["kernel"] == (4, 5)
    assert pooling_window((1, 4, 3, 9), 3, 2, 0, True, 2)["kernel"] == (2, 3)
    with pytest.raises(UnsupportedNode, match="dilated pooling window"):
        pooling_window((1, 4, 4, 9), 3, 2, 0, True, 2)


def test_weights_that_would_overflow_in_half_precision_stay_unchanged():
    b = SubgraphBuilder(SubgraphPiece(Writer("m"), "s"), {})
    b.half = True
    for weights, codes_there in (([1e6, 1.0], []), ([1.0, 2.0], ["DEQUANTIZE"])):
        b.weight("w", np.array(weights, np.float32))
        assert [list(b.piece.writer._opcodes)[op["opcode_index"]][0] for op in b.piece.operators] == codes_there


CONV = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "bias": True}


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_int8_weights_have_a_scale_for_each_output_channel(tmp_path, groups):
    graph, weights, x = case(Op("y", "conv", ("x",), CONV | {"groups": groups, "out_channels": 6}))
    # channels of very different size: one common scale would round the small ones to zero
    weights["y"]["weight"] *= (10.0 ** -np.arange(6)).reshape(-1, 1, 1, 1)
    weights["y"]["bias"] *= 10.0 ** -np.arange(6)
    source, values = rounded_source(graph, weights, x, tmp_path)
    assert snr_db(values["y"], run(source, tmp_path, x)) > 30
    tensors = TFLITE.decode(graphs.tflite_bytes(source.graph, source))["subgraphs"][0]["tensors"]
    (scales,) = (tensor["quantization"]["scale"] for tensor in tensors if tensor["name"] == "y.weight")
    assert (len(scales), max(scales) > 1e4 * min(scales)) == (6, True)


def test_weights_larger_than_a_file_can_hold_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    writer = Writer("m")
    writer.buffer(np.zeros(20, np.float32))
    with pytest.raises(StretchError, match="more than 2 GB of weights"):
        writer.buffer(np.zeros(6, np.float32))
