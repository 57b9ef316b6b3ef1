"""ONNX files, what they tell and their weights."""

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.predictor import LatencyPredictor
from scheduler.formats.onnx import open_onnx
from scheduler.formats.onnx.file import stored_tensor
from tests.predictors.specified import specified
from tests.scheduler.bundles import onnx_model, stating
from tests.scheduler.delegates import graphs


def saved(path, nodes, shape=(1, 4, 2, 2), weights=()):
    """A file of these nodes from `x` to `y`."""
    onnx.save(onnx_model(nodes, {"x": shape}, {"y": shape}, weights), str(path))
    return path


def two(path):
    first, last = helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Add", ["z", "b"], ["y"], name="last")
    return saved(path, [stating("relu", first), stating("shift", last)], (1, 2), {"b": np.array([1, 2], np.float32)})


def test_file_tells_its_nodes_weights_and_the_shapes_of_every_tensor(tmp_path):
    path = two(tmp_path / "m.onnx")
    result = open_onnx(path)
    inferred = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    between = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inferred.graph.value_info}
    assert result.ends == ({"x": (1, 2)}, {"y": (1, 2)})
    assert result.shapes == {"x": (1, 2), "b": (2,), "y": (1, 2)} | between
    assert result.named == [("Relu_0", "Relu"), ("last", "Add")]
    assert [node.op_type for node in result.nodes] == ["Relu", "Add"]
    assert numpy_helper.to_array(result.initialisers["b"]).tolist() == [1.0, 2.0]
    assert result.external == set()


def test_operator_that_is_not_allowed_is_refused_once_the_check_is_asked_for(tmp_path):
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="n")
    result = open_onnx(saved(tmp_path / "m.onnx", [stating("relu", node)], (1, 2)))
    assert result.ends[1] == {"y": (1, 2)}
    for check, what in ((lambda: result.demand, "run"), (lambda: result.graph, "read")):
        with pytest.raises(StretchError, match=rf"m\.onnx cannot be {what}: operator `n` .*: no bundle holds `RandomNormalLike`"):
            check()


def test_damaged_file_is_refused_as_it_is_opened(tmp_path):
    (tmp_path / "m.onnx").write_bytes(two(tmp_path / "whole.onnx").read_bytes()[:-9])
    with pytest.raises(StretchError, match=r"m\.onnx is no ONNX model"):
        open_onnx(tmp_path / "m.onnx")


def test_weight_beside_the_file_is_not_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    assert stored_tensor(tensor, tmp_path / "m.onnx").values is None


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
    graph = open_onnx(tmp_path / "m.onnx").graph
    kept = [op for op in captured.graph.ops if op.kind not in IDENTITIES]
    assert [(op.name, op.kind, op.shape) for op in graph.ops] == [(op.name, op.kind, op.shape) for op in kept]
    assert [dict(op.attrs) for op in graph.ops] == [dict(op.attrs) for op in kept]
    assert (graph.macs, graph.params) == (captured.graph.macs, captured.graph.params)
    predictor = LatencyPredictor(specified("pixel6"))
    for processor in ("cpu", "gpu"):
        assert predictor.predict(graph, processor).ms == pytest.approx(predictor.predict(captured.graph, processor).ms)


def test_node_that_belongs_to_no_operator_is_refused(tmp_path):
    sigmoid = stating("sigmoid", helper.make_node("Sigmoid", ["x"], ["gate"], name="n"))
    product = helper.make_node("Mul", ["x", "gate"], ["y"], name="m")
    with pytest.raises(StretchError, match="writes `y` does not say which operator") as caught:
        _ = open_onnx(saved(tmp_path / "m.onnx", [sigmoid, product])).graph
    assert "stretch branch" in caught.value.hint


CONV = {"out_channels": 4, "kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1, "bias": False}
POOL = {"kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "ceil_mode": False, "count_include_pad": True}


def conv_node(**attributes):
    return helper.make_node("Conv", ["x", "w"], ["y"], name="n", **attributes)


@pytest.mark.parametrize(
    ("node", "kind", "attrs", "problem"),
    [
        (helper.make_node("Relu", ["x"], ["y"]), "reluu", {}, "operator kind `reluu`"),
        (helper.make_node("Relu", ["x"], ["y"]), "flatten", {}, r"states that it is a flatten of shape \[1, 16\], its node Relu makes"),
        (helper.make_node("Relu", ["x"], ["y"]), "conv", CONV, r"weight of shape \[4, 4, 1, 1\], its nodes read none"),
        (helper.make_node("Relu", ["x"], ["y"]), "conv", {}, "lacks or has a wrong attribute"),
        (conv_node(), "conv", CONV | {"out_channels": 5}, "of shape"),
        (conv_node(), "conv", CONV | {"groups": 2}, r"weight of shape \[4, 2, 1, 1\]"),
        (conv_node(), "conv", CONV | {"bias": True}, r"weight of shape \[4\]"),
        (conv_node(strides=[1, 1]), "conv", CONV | {"stride": (2, 1), "padding": (0, 0, 2, 0)}, r"with stride \(2, 1\), its node Conv has"),
        (
            helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 1]),
            "avg_pool",
            POOL | {"kernel": (3, 1), "padding": (1, 0, 1, 0)},
            "with kernel",
        ),
    ],
)
def test_operator_that_its_nodes_are_not_is_refused(tmp_path, node, kind, attrs, problem):
    weights = {"w": np.zeros((4, 4, 1, 1), np.float32)}
    with pytest.raises(StretchError, match=problem):
        _ = open_onnx(saved(tmp_path / "m.onnx", [stating(kind, node, attrs)], weights=weights)).graph


def conv_net():
    """A batch-norm that nothing takes up, and a convolution."""
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "groups": 1, "out_channels": 3, "bias": True}
    ops = [
        Op("x", "input", attrs={"shape": (1, 4, 5, 5)}),
        Op("b", "batch_norm", ("x",), {"eps": 1e-5, "momentum": 0.1, "affine": True}),
        Op("r", "relu", ("b",)),
        Op("y", "conv", ("r",), window),
    ]
    return OpGraph.build("net", ops, "y")


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_subgraph_in_a_lower_precision_comes_back_as_if_in_reals(tmp_path, precision):
    from stretch.export.onnx import to_onnx
    from stretch.quantize.qdq import quantise, to_half

    graph, random = conv_net(), np.random.default_rng(0)
    floats = to_onnx(graph, graphs.weights_of(graph, random))
    samples = [random.normal(size=(1, 4, 5, 5)).astype(np.float32) for _ in range(8)]
    onnx.save(to_half(floats) if precision == "fp16" else quantise(floats, samples), str(tmp_path / "m.onnx"))
    back = open_onnx(tmp_path / "m.onnx").graph
    # the lone batch-norm has become a depthwise convolution, and int8 takes activations into scales
    kinds = [op.kind for op in back.ops if op.kind != "relu"]
    assert kinds == ["input", "conv", "conv"]
    assert (back.input.name, back.output) == ("x", "y")
    assert back.by_name["y"].attrs["padding"] == (1, 1, 1, 1)
