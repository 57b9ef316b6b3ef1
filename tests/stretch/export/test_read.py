import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from predictors.devices import load_device
from predictors.errors import StretchError
from predictors.predictor import LatencyPredictor
from stretch.export.read import read_graph

IDENTITIES = ("dropout", "stochastic_depth", "identity")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_regnet", "tiny_mobilenet", "tiny_efficientnet"])
def test_what_the_exporter_wrote_comes_back_but_for_identities(tmp_path, name):
    from stretch.capture import capture
    from stretch.export.onnx import save_onnx, to_numpy, to_onnx
    from stretch.models.load import load_model

    loaded = load_model(name, weights="none")
    captured = capture(loaded.module, loaded.input_shape, name)
    save_onnx(to_onnx(captured.graph, to_numpy(captured.weights)), tmp_path / "m.onnx")
    graph = read_graph(tmp_path / "m.onnx")
    kept = [op for op in captured.graph.ops if op.kind not in IDENTITIES]
    assert [(op.name, op.kind, op.shape) for op in graph.ops] == [(op.name, op.kind, op.shape) for op in kept]
    for got, op in zip(graph.ops, kept, strict=True):
        assert {k: pytest.approx(v) if isinstance(v, float) else v for k, v in got.attrs.items()} == {
            k: v for k, v in op.attrs.items() if k in got.attrs
        }
    assert (graph.macs, graph.params) == (captured.graph.macs, captured.graph.params)
    predictor = LatencyPredictor(load_device("pixel6"))
    for processor in ("cpu", "gpu"):
        assert predictor.predict(graph, processor).ms == pytest.approx(predictor.predict(captured.graph, processor).ms)


def model(path, nodes, weights=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 2, 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def test_silu_of_two_nodes_is_one_operator(tmp_path):
    nodes = [helper.make_node("Sigmoid", ["x"], ["y.sigmoid"]), helper.make_node("Mul", ["x", "y.sigmoid"], ["y"])]
    assert [op.kind for op in read_graph(model(tmp_path / "m.onnx", nodes)).ops] == ["input", "silu"]


def test_gate_that_only_looks_like_silu_stays_two_operators(tmp_path):
    nodes = [helper.make_node("Sigmoid", ["x"], ["gate"]), helper.make_node("Mul", ["x", "gate"], ["y"])]
    assert [op.kind for op in read_graph(model(tmp_path / "m.onnx", nodes)).ops] == ["input", "sigmoid", "mul"]


@pytest.mark.parametrize(
    "node", [helper.make_node("Sin", ["x"], ["y"], name="n"), helper.make_node("Relu", ["x"], ["y"], name="n", domain="theirs")]
)
def test_node_the_exporter_does_not_write_is_named(tmp_path, node):
    with pytest.raises(StretchError, match="node `n`"):
        read_graph(model(tmp_path / "m.onnx", [node]))


def test_clip_that_is_no_relu6_is_refused(tmp_path):
    bounds = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in (("low", 0.0), ("high", 5.0))]
    with pytest.raises(StretchError, match="clips to"):
        read_graph(model(tmp_path / "m.onnx", [helper.make_node("Clip", ["x", "low", "high"], ["y"], name="n")], bounds))


def conv_net(eps):
    """A batch-norm that nothing takes up, and a convolution."""
    from predictors.graph import Op, OpGraph

    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "groups": 1, "out_channels": 3, "bias": True}
    ops = [
        Op("x", "input", attrs={"shape": (1, 4, 5, 5)}),
        Op("b", "batch_norm", ("x",), {"eps": eps, "momentum": 0.1, "affine": True}),
        Op("r", "relu", ("b",)),
        Op("y", "conv", ("r",), window),
    ]
    return OpGraph.build("net", ops, "y")


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_subgraph_in_a_lower_precision_comes_back_as_if_in_reals(tmp_path, precision):
    from stretch.export.onnx import to_onnx
    from stretch.quantize.half import to_half
    from stretch.quantize.qdq import quantise

    graph = conv_net(1e-5)
    random = np.random.default_rng(0)
    weights = {
        op.name: {key: np.abs(random.normal(size=s)).astype(np.float32) for key, s in graph.op_weights(op).items()} for op in graph.ops
    }
    floats = to_onnx(graph, {name: own for name, own in weights.items() if own})
    samples = [random.normal(size=(1, 4, 5, 5)).astype(np.float32) for _ in range(8)]
    onnx.save(to_half(floats) if precision == "fp16" else quantise(floats, samples), str(tmp_path / "m.onnx"))
    back = read_graph(tmp_path / "m.onnx")
    # the lone batch-norm has become a depthwise convolution, and int8 takes activations into scales
    kinds = [op.kind for op in back.ops if op.kind != "relu"]
    assert kinds == ["input", "conv", "conv"]
    assert (back.input.name, back.output) == ("x", "y")
    assert back.by_name["y"].attrs["padding"] == (1, 1, 1, 1)
